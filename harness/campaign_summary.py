"""What a campaign has found and done so far: plain data, which its files hold and its outputs show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

Reason = Literal["time", "steps", "traces", "risk", "interrupted", "error"]
"""Why a campaign ended: one of its limits, a signal, or an error."""
Source = Literal["seeded", "hypothesis"]
"""What draws a campaign's traces from its seed: a PRNG, or Hypothesis."""
Number = Annotated[int, Meta(ge=0, le=10**10)]
"""A count; a larger one in a file is damage, and would take long to estimate from."""


class Waiting(Struct, frozen=True):
    """A failing trace that is counted for a finding by its signature alone, and that nobody has looked into yet.

    seed, index    number of the trace in the campaign with this seed, negative for one that this campaign did not draw;
                   its file is `waiting/SEED-INDEX.json`
    finding        name of the finding that it is counted for
    """

    seed: int
    index: int
    finding: str
    signature: str


Level = Literal["P0", "P1", "P2", "P3", ""]
"""How severe a finding is, P0 first; "" if nothing says so (`group.findings.severity`)."""
Effect = Literal["wrong tokens", "corrupt cache", "dead engine", "failed call", "hang", "leak", "slower", ""]
"""What a client gets (`judge.oracles.rules.Client`). Of a corrupt cache: wrong tokens from a later request, perhaps; in
the runs that were made, the right ones."""


class Reach(Struct, frozen=True):
    """How near a server as it comes is to one that fails, found by running a trace with one setting changed at a time.

    needs       settings without which the trace does not fail, as a person types them; () if it fails on the stock
                server
    rare        those of them that few servers have
    untried     those of them of which the harness cannot run the stock value: the failure may not need them
    scheduling  "synchronous", "asynchronous" -> True if one of the runs failed then; of targets that have both
    implementations  title -> True if the trace with what it needs fails there; of parts with more than one
    default     title of the default one, "" if there is only one
    runs        runs of the trace that this took; `is_complete` is False if the time for it was over before
    """

    needs: Sequence[str] = ()
    rare: Sequence[str] = ()
    untried: Sequence[str] = ()
    scheduling: Mapping[str, bool] = {}
    implementations: Mapping[str, bool] = {}
    default: str = ""
    runs: int = 0
    is_complete: bool = True

    @property
    def is_on_default(self) -> bool:
        """True if the default implementation fails, or if there is only one. One that cannot run the trace does not."""
        return not self.default or self.implementations.get(self.default, False)


class Severity(Struct, frozen=True):
    """How much a finding matters (`group.findings.severity`).

    Without `reach` there is no level, and `unmeasured` says why."""

    level: Level
    effect: Effect
    reach: Reach | None = None
    unmeasured: Literal["", "the target declares no stock server", "each run takes the time limit"] = ""


class Cause(Struct, frozen=True):
    """A known bug with a patch that explains a failure: with the patches of all known bugs the failing trace is silent,
    or gets further, and without this one's it fails as before (`group.known.recognition`).

    name      of its entry in known.toml; "" if no single bug is known to show it
    number    in the table of the release's causes, 0 if it has none there
    phrase    what happens, in a few words; "" where no text stands beside the patch
    severity  how much it matters, as measured on the release that it is packaged for; None if it was not
    """

    name: str
    number: int = 0
    phrase: str = ""
    severity: Severity | None = None


class Finding(Struct, frozen=True):
    """All failing traces with one cause, as far as the evidence shows (`group.causes`).

    signature   symptom of its smallest trace; several findings may share it
    name        its stable name and the stem of its files: the signature of the first trace, for a further cause behind
                that signature with ".2", ".3", ...
    symptoms    number of failing traces by signature
    extras      paths of further traces that differ most from the smallest one and from each other
    unsorted    how many of its traces were counted by their signature alone, because the time for sorting was spent
    trace       path of the shortest trace so far; `events` is its length
    index       number of the first trace of the campaign that failed this way, -1 for one of the corpus
    count       number of traces that failed this way
    reproduced  True if the trace failed again when it ran alone
    shown, tried    how often its traces failed when they ran alone, and how often they ran
    reduced     True once the reducer has finished
    known       the reason in known.toml for which this is not a new finding, "" for a new one
    damaged     True if its trace is gone or cannot be read, which only `merge` reports
    cause       the known bug that explains it, whose patch this campaign does not run with: it is not reduced
    like        a known bug without a patch here whose traces look like it, and the bug's reason, "" for none: no run
                proves that it is this one, so it counts as new
    phrase      what goes wrong, in a few words
    setting     the implementation and the model that its trace stands for, such as "V1 model runner"; "" if there is
                only one
    severity    how much it matters, None until that was found out, and in folders of older versions
    """

    signature: str
    oracle: str
    message: str
    step: int
    event: int
    events: int
    trace: str
    index: int
    count: int = 1
    reproduced: bool = True
    reduced: bool = False
    shown: int = 0
    tried: int = 0
    known: str = ""
    name: str = ""
    symptoms: Mapping[str, int] = {}
    extras: Sequence[str] = ()
    unsorted: int = 0
    damaged: bool = False
    cause: Cause | None = None
    like: str = ""
    phrase: str = ""
    setting: str = ""
    severity: Severity | None = None

    @property
    def id(self) -> str:
        """The name by which outputs, files and the bug history identify the finding."""
        return self.name or self.signature

    @property
    def flaky(self) -> bool:
        """True if the trace did not fail every time it ran alone."""
        return not self.reproduced or self.shown < self.tried

    @property
    def unfinished(self) -> bool:
        """True if it waits to be confirmed or reduced; one that a known bug explains by name is not reduced."""
        return self.reproduced and not self.reduced and not (self.cause and self.cause.name)


class Canary(Struct, frozen=True):
    """Result of a campaign's self-test: a bug is planted in a copy of the built-in target and must be found.

    state   "silent": no planted bug was found, the campaign was blind; "unfinished": interrupted before a result;
            "none": the configuration leaves no planted bug within reach
    slug    the mutant planted last; `silent` lists those that were not found
    traces, seconds    over all mutants planted; CPU seconds
    """

    slug: str
    found: bool
    state: Literal["found", "silent", "unfinished", "none"]
    signature: str
    traces: int
    seconds: float
    silent: Sequence[str] = ()


class Node(Struct, frozen=True):
    """A machine of a cluster, or one part of a merged campaign.

    workers    workers on it now
    lost       worker processes that were lost and replaced
    state      "up"; "lost": its workers went on elsewhere; "refused": its engine or hybridfuzz has another version
    """

    name: str
    workers: int = 0
    traces: int = 0
    steps: int = 0
    lost: int = 0
    seconds: float = 0.0
    state: Literal["up", "lost", "refused"] = "up"

    @property
    def traces_per_second(self) -> float:
        """Traces per second since its first worker was ready."""
        return self.traces / self.seconds if self.seconds else 0.0


Verdict = Literal["still there", "fixed upstream", "patch no longer applies", "not fixed by its patch", "not tested"]
"""The state of a known bug (`group.known.fixes`)."""


class KnownBug(Struct, frozen=True):
    """One entry of known.toml as a campaign met it. The verdict comes from its traces on the unpatched target.

    patched   True if the campaign ran with its patch: no failure is this bug
    failed, traces    how many of its traces failed unpatched, and how many ran
    covered   number of failing traces of the campaign that it acknowledged
    warning   a reason not to rely on the entry, "" if there is none
    """

    name: str
    reason: str
    verdict: Verdict = "not tested"
    detail: str = ""
    patched: bool = False
    failed: int = 0
    traces: int = 0
    covered: int = 0
    warning: str = ""

    @property
    def outdated(self) -> bool:
        """True if the entry has to be removed, or its patch adapted."""
        return self.verdict not in ("still there", "not tested")


class Seen(Struct, frozen=True):
    """What the traces of one distribution have shown, for estimates of what is left (`risk.estimates`).

    Only traces that a campaign drew by their number count: none of the corpus, none that ran again. A species is a pair
    of situations in one event of a trace (`judge.situations`).

    traces, failing    how many there were, and how many of them failed
    species            that were seen; `once` of them in exactly one trace, `twice` in exactly two
    alone              traces that showed a species which no other trace showed
    paired             pairs of traces that showed a species which no third trace showed
    once_squares       sum over `alone` of the square of how many such species, `twice_squares` likewise over `paired`
    campaigns          campaigns in the folder, or parts of a merged one, whose traces count
    is_full            True if there were more species than are counted: then nothing can be estimated
    """

    traces: Number
    failing: Number
    species: Number
    once: Number
    twice: Number
    alone: Number
    paired: Number
    once_squares: Number
    twice_squares: Number
    campaigns: Number = 1
    is_full: bool = False


class ChangedLine(Struct, frozen=True):
    """A line of an engine's source that has changed, by its place in the checkout, and how many traces ran it."""

    file: str
    line: int
    traces: int = 0


class Changed(Struct, frozen=True):
    """What ran of the lines that have changed in a checkout.

    since       what the user named: a branch, tag or commit
    lines       first lines of changed statements in functions
    unrecorded  further changed lines with code: they run when a module is imported, or compiled as a kernel, or a fix
                replaces them
    traces      traces that ran while lines were recorded
    """

    since: str
    lines: Sequence[ChangedLine] = ()
    unrecorded: int = 0
    traces: int = 0

    @property
    def ran(self) -> int:
        """Number of lines that some trace ran."""
        return sum(line.traces > 0 for line in self.lines)


class Summary(Struct, frozen=True):
    """Totals of a campaign; also the content of its state file.

    exercised, reached                counts for every applicable oracle and required state, zeros included
    never_exercised, never_reached    those with a count of 0: not empty means vacuous
    canary                            None without a self-test, or while it is running
    done, beyond                      trace numbers that are counted: all below `done`, and those in the ranges
                                      [first, end) of `beyond`; with `shard`, positions in that share of the numbers
    source                            what drew the traces
    shard                             "I/N" if the campaign ran a share of its seed's traces
    nodes                             machines of a cluster, or parts of a merged campaign
    merged                            names of the campaigns that were merged; empty for a campaign that ran
    known_bugs                        the entries of known.toml for this target
    version                           the engine's, as its environment says it
    lines                             lines of the engine's cache modules that were reached, None if not recorded
    traces, steps                     of traces that were opened; `refused` and `not_run` are not among them
    refused                           traces that did not run, as the target refused their configuration when it was
                                      opened
    not_run                           traces that did not run for want of memory or a device, by what was missing
    given_up                          workers that were given up for the same reason
    workload                          ratios of the workload that are not the usual ones (`draw.workload`)
    effort                            seconds of all workers by what they did: "fuzzing", "confirming", "reducing",
                                      "identity" (which cause a failure has), "severity" (how much it
                                      matters); what is none of the last four is fuzzing
    took                              seconds of the traces' workers, by what they went into (`workers.stopwatch`); at
                                      most those of "fuzzing"
    triage_share                      the share of the workers' time that the last four may take
    waiting                           failing traces that were kept to be looked into later
    seen                              what is needed to estimate what is left; None where nothing can be estimated, as
                                      the traces are not drawn independently
    defaults                          settings of the stock server -> steps of traces that have its value, also 0;
                                      empty for a target without a server
    changed                           lines that have changed in the checkout, None if that was not asked for
    asked                             options of the command that choose what runs, and that no other field has
    """

    target: str
    version: str
    seed: int
    overrides: Mapping[str, object]
    exit_reason: Reason | None
    traces: int
    steps: int
    seconds: float
    findings: Sequence[Finding]
    exercised: Mapping[str, int]
    reached: Mapping[str, int]
    never_exercised: Sequence[str]
    never_reached: Sequence[str]
    lost_workers: int = 0
    canary: Canary | None = None
    done: int = 0
    beyond: Sequence[tuple[int, int]] = ()
    shard: str = ""
    source: Source = "seeded"
    nodes: Sequence[Node] = ()
    merged: Sequence[str] = ()
    known_bugs: Sequence[KnownBug] = ()
    lines: int | None = None
    refused: int = 0
    not_run: Mapping[str, int] = {}
    given_up: int = 0
    workload: Mapping[str, str] = {}
    effort: Mapping[str, float] = {}
    took: Mapping[str, float] = {}
    triage_share: float = 0.0
    waiting: Sequence[Waiting] = ()
    seen: Seen | None = None
    changed: Changed | None = None
    asked: Sequence[str] = ()
    defaults: Mapping[str, int] = {}

    @property
    def default_shares(self) -> Mapping[str, float]:
        """Settings of the stock server -> the share of the steps that ran with them, rare ones first."""
        return {
            name: count / self.steps
            for name, count in sorted(self.defaults.items(), key=lambda pair: (pair[1], pair[0]))
            if self.steps
        }

    @property
    def unopened(self) -> int:
        """Traces that were drawn and did not run."""
        return self.refused + sum(self.not_run.values())

    @property
    def outdated(self) -> Sequence[KnownBug]:
        """Known bugs that have to be removed from known.toml, or whose patch has to be adapted."""
        return [bug for bug in self.known_bugs if bug.outdated]

    @property
    def blind(self) -> bool:
        """True if the self-test failed: a planted bug within reach was not found."""
        return self.canary is not None and self.canary.state == "silent"

    @property
    def vacuous(self) -> bool:
        """True if an applicable oracle was never exercised or a required state never reached."""
        return bool(self.never_exercised or self.never_reached)

    @property
    def new_findings(self) -> Sequence[Finding]:
        """Findings that known.toml does not acknowledge."""
        return [finding for finding in self.findings if not finding.known]

    @property
    def steps_per_second(self) -> float:
        """Engine steps per second of the whole campaign, reductions included."""
        return self.steps / self.seconds if self.seconds else 0.0
