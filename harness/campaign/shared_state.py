"""Settings of a campaign, and everything that its workers share, behind one lock.

The state on disk is exact: a finding and the number of the trace that failed are written in one go, so a campaign that
was killed at any moment continues without losing a finding or counting a trace twice (`trace_counts`, `resume`).

    next_batch    hands out trace numbers, as long as the budget lasts
    take, add     count what ran; `take` returns the claim of a new finding
    save_locked   writes the state to disk
    summary       what all outputs and the state on disk show (`Summary`)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock
from typing import Literal

from msgspec import Struct, structs

from ...targets.base.launch import Launch
from ...targets.base.protocol import Capabilities
from ...targets.base.tested import narrower
from ...targets.base.trace import Trace
from ..campaign_events import CampaignEvent, Found, Improved, LinesReached, NodeLeft, Notice, NotRun, WorkerGivenUp
from ..campaign_summary import Canary, Finding, Reason, Seen, Source, Summary, Waiting
from ..defaults import REDUCE_SECONDS, TRACE_SECONDS, TRIAGE_SHARE
from ..draw.near_stock import with_unreached, without_defaults
from ..draw.overrides import check_overrides
from ..draw.workload import DEFAULT, Workload, differences
from ..group.bug_history import BugHistory
from ..group.causes.evidence import Evidence, FindingEvidence
from ..group.causes.same_cause import known_cause, same_cause
from ..group.findings.finding_store import FindingStore, OutputError, fixes_asked
from ..group.known.fixes import Fixes
from ..group.known.known_toml import Known, reason_for
from ..group.known.recognition import Explained, Recognizer
from ..group.reduction.still_fails import UNEXPLAINED, names_of, relation
from ..judge.environment_fault import EnvironmentFault
from ..judge.oracles import applicable
from ..judge.outcome import Outcome
from ..judge.state_catalogue import required_oracles, required_states
from ..judge.violation import Violation
from ..record.changed_lines import ChangedSource, ChangedTally
from ..record.reached_lines import ReachedLines, lines_file
from ..risk.estimates import chance_of_new
from ..risk.species_counts import SPECIES_FILE, SavedSpecies, Stream
from ..units import WHOLE, Shard, to_milliseconds
from ..workers.messages import Fuzz, Overrides, Ready
from ..workers.results import Counts, Ran
from ..workers.worker_client import WorkerClient
from .backlog import Backlog, Symptom
from .could_not_run import EnvironmentFaults
from .familiar import Familiar
from .known_bugs import KnownBugs
from .nodes import NodeTotals
from .rare_traces import CampaignCorpus
from .refusals import Refusals, check_started
from .species import CampaignSpecies, check_independent
from .trace_counts import Progress
from .triage import Triage

Task = Callable[..., "Task | None"]
"""Looks into a failure on the worker of a loop, its only argument; returns what has to follow (`worker_loop`)."""


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a campaign. Without any limit it runs until it is stopped.

    seconds, steps, traces    limits
    trace_seconds     time limit of one trace; a trace that takes longer is a hang
    reduce_seconds    time limit for the reduction of each finding
    triage_share      share of the time of all workers in which failures are looked into (`triage`)
    memory_limit      bytes for each worker, 0 for none
    twice_every       every so many traces run twice, to find nondeterminism; 0 for none
    canaries          broken targets, started as `canary_launch`: the campaign is blind if it finds none of them
    earlier           the last state of this very campaign if it was killed or interrupted
    known             acknowledged bugs
    fixes             known bugs for this target, with those whose patch is in effect
    packaged          known bugs by which failures are recognized, with their patches applied; None for none
    last              the last state of another, earlier campaign in this folder
    shard             share of the seed's traces to run; `traces` is a limit of the whole
    history           bugs of earlier campaigns in this folder: those that are not met are tested again
    modules           modules of the engine whose reached lines are recorded (`Scope.modules`)
    source            what draws the traces
    workload          ratios by which they are drawn
    until_risk        the campaign ends when the chance that the next trace shows something new is below this
    species           what campaigns in this folder have seen; None to start over
    changed           statements that have changed in the checkout under test; None if that was not asked for
    asked             options of the command that choose what runs, and that no other field has
    """

    target: str
    launch: Launch
    seed: int
    out: Path
    jobs: int = 1
    seconds: float | None = None
    steps: int | None = None
    traces: int | None = None
    overrides: Overrides = {}
    trace_seconds: float = TRACE_SECONDS
    reduce_seconds: float = REDUCE_SECONDS
    triage_share: float = TRIAGE_SHARE
    memory_limit: int = 0
    twice_every: int = 50
    canaries: Sequence[str] = ()
    canary_launch: Launch = Launch(sys.executable, {})
    earlier: Summary | None = None
    known: Sequence[Known] = ()
    fixes: Fixes | None = None
    packaged: Fixes | None = None
    last: Summary | None = None
    history: BugHistory = {}
    shard: Shard = WHOLE
    modules: Sequence[str] = ()
    source: Source = "seeded"
    workload: Workload = DEFAULT
    until_risk: float | None = None
    species: SavedSpecies | None = None
    changed: ChangedSource | None = None
    asked: Sequence[str] = ()


def species_of(settings: Settings) -> CampaignSpecies:
    """Return what the campaign has seen so far: nothing, or what its folder has of the same stream."""
    stream = Stream(
        target=settings.target,
        version=settings.launch.version,
        overrides={key: str(value) for key, value in settings.overrides.items()},
        workload=differences(settings.workload),
        hybridfuzz=version("hybridfuzz"),
        avoided=tuple(entry.title for entry in settings.known if entry.condition and entry.condition.traits),
    )
    species = CampaignSpecies(
        settings.out, stream, settings.seed, "" if settings.shard.of == 1 else str(settings.shard)
    )
    if settings.earlier:
        species.resume(settings.species, settings.earlier)
    elif settings.last:
        species.follow(settings.species, settings.last)
    return species


class Claim(Struct, frozen=True):
    """A finding that has yet to be confirmed and reduced. `shorter` is the trace of an earlier campaign."""

    finding: Finding
    shorter: Trace | None


class Unsorted(Struct, frozen=True):
    """A failing trace that counts for finding `name` by its signature and that may be sorted by its cause. `kept` is
    its entry in the backlog, None if it has none."""

    name: str
    violation: Violation
    trace: Trace
    index: int
    kept: Waiting | None = None


def symptom_of(violation: Violation, trace: Trace) -> Symptom:
    """Return the symptom of a failing trace."""
    return violation.signature, relation(violation, names_of(trace))


def recognizer(settings: Settings) -> Recognizer | None:
    """Return what recognizes failures that known bugs explain, None if there are none."""
    packaged, fixes = settings.packaged, settings.fixes
    ours = {entry.title for entry in fixes.in_effect} if fixes else set()
    entries = [entry for entry in packaged.in_effect if entry.title not in ours] if packaged else []
    if not packaged or not entries:
        return None
    worker = partial(
        WorkerClient, settings.target, trace_seconds=settings.trace_seconds, memory_limit=settings.memory_limit
    )
    most = max(1, int(settings.triage_share * settings.jobs))
    return Recognizer(packaged, entries, settings.target, worker, most)


def without_a_patch(settings: Settings) -> tuple[Known, ...]:
    """Return packaged known bugs that no patch mends here, without those in the campaign's own list."""
    taken = {entry.title for entry in settings.known}
    packaged = settings.packaged.acknowledged if settings.packaged else ()
    return tuple(entry for entry in packaged if entry.title not in taken)


class CampaignState:
    """The shared state. Methods may be called from any thread; `lock` guards changes to findings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lock = Lock()
        self.stopping = Event()
        self.started = Event()
        self.events: SimpleQueue[CampaignEvent | Exception] = SimpleQueue()
        self.store = FindingStore(settings.out, settings.target, fixes_asked(settings.asked))
        self.corpus = CampaignCorpus(settings.out)
        self.known_bugs = KnownBugs(settings.fixes, settings.last)
        self.reason: Reason | None = None
        self.canary: Canary | None = None
        self.nodes = NodeTotals(settings.earlier)
        self._progress = Progress(settings.earlier, settings.shard)
        self._refusals = Refusals(settings.earlier.refused if settings.earlier else 0)
        self._faults = EnvironmentFaults(settings.earlier.not_run if settings.earlier else {})
        self._given_up = settings.earlier.given_up if settings.earlier else 0
        self._lines = (
            ReachedLines(settings.out, settings.target, settings.launch.version, settings.seed)
            if settings.modules
            else None
        )
        self._species = species_of(settings)
        self._changed = (
            ChangedTally(settings.changed, settings.earlier.changed if settings.earlier else None)
            if settings.changed
            else None
        )
        self._capabilities: Capabilities | None = None
        self._started: float | None = None
        self._keeping = True
        self._known = {entry.title: entry for entry in settings.known}
        self.packaged = {entry.title: entry for entry in without_a_patch(settings)}
        """Known bugs that a finding is only said to resemble, by title."""
        self._known_causes: dict[str, FindingEvidence] = {}
        """Title -> evidence of the bugs in both of these that go by a condition."""
        self.avoid = [
            entry.condition.circumstances for entry in settings.known if entry.condition and entry.condition.traits
        ]
        effort = settings.earlier.effort if settings.earlier else {}
        self.triage = Triage[Task](settings.triage_share, settings.jobs, self.spent, effort)
        before = settings.earlier or settings.last
        self._familiar = Familiar()
        self._looks = self.extra_looks = 0
        """How many extra looks wait, and how many have begun."""
        self.backlog = Backlog(settings.out, before.waiting if before and before.target == settings.target else ())
        self.recognizer = recognizer(settings)
        self._unsettled: dict[Explained, Callable[..., None]] = {}
        """Failures that known bugs explain, until it is settled which one."""
        self._proofs = set[int]()
        """Ranks with which a test of them waits."""
        if settings.earlier:
            if self._lines:
                self._lines.resume(settings.earlier.traces)
            self.canary = settings.earlier.canary
            self.store.resume(
                [structs.replace(one, known=self.known(one.signature)) for one in settings.earlier.findings]
            )

    @property
    def began(self) -> bool:
        """True once a worker was ready: then the clock runs."""
        return self._started is not None

    def ready(self, ready: Ready) -> None:
        """Start the clock when the first worker is ready. Raises TraceError for overrides that the target lacks."""
        check_overrides(self.settings.overrides, ready.capabilities)
        if self.settings.until_risk is not None:
            check_independent(ready.capabilities)
        with self.lock:
            self._capabilities = ready.capabilities
            first = self._started is None
            if first:
                self._started = time.monotonic()
        self.started.set()
        for problem in self.store.problems if first else ():
            self.emit(Notice(f"{problem}: it will be written again"))
        if first and ready.capabilities.notes:
            self.emit(Notice(f"in this version: {'; '.join(ready.capabilities.notes)}"))
        if first and (notice := narrower(self.settings.target, self.settings.launch.version, ready.capabilities)):
            self.emit(Notice(notice))

    def node_joined(self, ready: Ready, node: str) -> None:
        """Note that a worker is ready, on a node of a cluster or here (""). Raises TraceError as `ready` does."""
        self.ready(ready)
        with self.lock:
            self.nodes.joined(node)

    def node_left(self, node: str, state: Literal["up", "lost", "refused"] = "up", reason: str = "") -> None:
        """Note that a worker has left a node: it has ended, or it has to be placed elsewhere."""
        with self.lock:
            first = self.nodes.left(node, state)
        if state != "up" and first:
            self.emit(NodeLeft(node, state, reason))

    def emit(self, record: CampaignEvent) -> None:
        """Report an event to the reader of the campaign."""
        self.events.put(record)

    def spent(self) -> float:
        """Return the seconds since the start, those before a kill included."""
        return self._progress.seconds + (time.monotonic() - self._started if self._started else 0.0)

    def left(self) -> float | None:
        """Return the seconds left, None without a limit or before the start."""
        if self.settings.seconds is None or self._started is None:
            return None
        return max(self.settings.seconds - self.spent(), 0.0)

    def next_batch(self, most: int) -> Fuzz | None:
        """Return the next trace numbers, at most `most`, None if none are left."""
        settings, shard = self.settings, self.settings.shard
        with self.lock:
            batch = (
                range(0) if self.stopping.is_set() or self.out_of_steps else self._progress.allot(most, settings.traces)
            )
            wanted = self.corpus.wanted(self._states()) if self._keeping else []
            aim = self._changed.aim() if self._changed and batch.start // most % 2 else {}  # every other batch
        if not batch:
            return None
        first, count = shard.trace(batch.start), len(batch)
        return Fuzz(
            settings.seed,
            first,
            count,
            settings.overrides,
            settings.twice_every,
            wanted,
            shard.of,
            self.avoid,
            settings.modules,
            takes_unopened=True,
            workload=settings.workload,
            aim=aim,
        )

    def has_traces(self) -> bool:
        """Return True if there are trace numbers that no worker was given yet."""
        with self.lock:
            return self._progress.has_more(self.settings.traces) and not self.out_of_steps

    def give_back(self, indexes: Collection[int]) -> None:
        """Take back trace numbers that a worker was given and did not run."""
        with self.lock:
            self._progress.give_back(indexes)

    def add(self, counts: Counts, node: str) -> None:
        """Count traces of which only totals are reported."""
        with self.lock:
            self._ran()
            self._progress.count_many(counts)
            self._species.count(len(counts.indexes), sum(counts.repeats.values()))
            for index, species in counts.species.items():
                self._species.add(species, index)
            self.nodes.count(node, len(counts.indexes), counts.steps, counts.lost)
            for signature, times in counts.repeats.items():
                self.store.repeat(signature, times)

    def take(self, ran: Ran, node: str = "") -> Claim | Unsorted | None:
        """Count a trace. A violation is on disk when this returns, together with the count: as a finding of its own if
        its signature is new, else, unsorted, for the finding of its signature.

        A loss of the worker that did not happen again is a finding, too, but one that cannot be reduced.
        Raises TargetError if the target seems to refuse every trace now, or to fail before the first step of each.
        """
        violation, trace = ran.outcome.violation, ran.trace
        with self.lock:
            taken = self._take(violation, trace, ran.index) if violation and trace else None
            loss = self._take(ran.flaky, trace, ran.index) if ran.flaky and trace else None
            if isinstance(loss, Claim):
                finding = self.store.settle(loss.finding.id, reproduced=False, shown=0, tried=1)
                self.emit(Found(finding))
                self.emit(Improved(finding))
            self._progress.count(ran)
            if ran.outcome.refused:
                self._refuse(ran)
            else:
                self._record(ran)
                self._species.count(1, violation is not None)
                self._species.add(ran.species, ran.index)
                self.nodes.count(node, 1, ran.outcome.steps, bool(ran.lost))
                self._ran()
                if trace and not violation:
                    self._keep(trace, ran.outcome.reached, None)
            if isinstance(taken, Claim) or isinstance(loss, Claim):
                self.save_locked()
            check_started(self._progress.traces, self._progress.steps)
        return taken

    def _ran(self) -> None:
        self._refusals.ran()
        self._faults.ran()

    def failed_alone(self, trace: Trace | None) -> bool:
        """Return True if there is no memory for a trace with this configuration on a node for itself, either."""
        with self.lock:
            return self._faults.is_known(trace)

    def try_later(self, fault: EnvironmentFault, trace: Trace | None = None) -> None:
        """Note that a trace could not run, or a worker not start, alone; wait for memory or the device.

        Raises TargetError if it seems that nothing can run.
        """
        with self.lock:
            seconds = self._faults.failed_alone(trace)
            self._faults.check(fault)
        self.stopping.wait(seconds)

    def not_run(self, worker: int, ran: Ran, fault: EnvironmentFault, node: str) -> None:
        """Take a trace that is not run. Its number is taken, and nothing else is counted."""
        with self.lock:
            self._progress.count(ran)
            self._faults.count(fault)
        self.emit(NotRun(worker, ran.index, fault.kind, fault.message, node))

    def ran_alone(self) -> None:
        """Note that a trace for which there had been no memory ran alone."""
        with self.lock:
            self._faults.ran_alone()

    def given_up(self, event: WorkerGivenUp) -> None:
        """Count a worker that ends for want of memory."""
        with self.lock:
            self._given_up += 1
        self.emit(event)

    def _refuse(self, ran: Ran) -> None:
        if warning := self._refusals.add(ran.index, ran.outcome.refused):
            self.emit(Notice(warning))
        self._refusals.check(self.capabilities)

    def check_ran(self) -> None:
        """Raise TargetError if no trace of the campaign ran and nothing was found."""
        if not self.store.findings:
            self._refusals.check_all(self._drawn)
            self._faults.check_all(self._progress.traces)

    @property
    def _drawn(self) -> int:
        return self._progress.traces + self._refusals.count + sum(self._faults.not_run.values())

    def refused(self) -> str:
        """Return a warning about the traces that the target refused, "" if there are none."""
        return self._refusals.total(self._drawn)

    def _record(self, ran: Ran) -> None:
        """Take the lines that a trace reached."""
        if self._lines:
            self._lines.trace_ended()
            if new := self._lines.add(ran.lines):
                self.emit(LinesReached(ran.index, new, self._lines.total))
        if self._changed:
            self._changed.add(ran.outcome.ran, ran.trace)

    def replayed(self, trace: Trace, outcome: Outcome) -> None:
        """Count the changed lines that a trace of a corpus ran, which is not counted otherwise."""
        if self._changed:
            with self.lock:
                self._changed.add(outcome.ran, trace)

    def claim(self, violation: Violation, trace: Trace, index: int) -> Claim | Unsorted | None:
        """Take a violation of a trace that is not counted itself."""
        with self.lock:
            return self._take(violation, trace, index)

    def _take(self, violation: Violation, trace: Trace, index: int) -> Claim | Unsorted | None:
        """Return a claim for a new signature, an unsorted trace for one that was met before; None if it cannot be
        sorted."""
        counted = self.store.count(violation)
        if counted is None:
            return Claim(*self.store.claim(violation, index, trace, self.known(violation.signature)))
        sortable = violation.oracle not in UNEXPLAINED and counted.reproduced
        return Unsorted(counted.id, violation, trace, index) if sortable else None

    def let_wait(self, failure: Unsorted) -> tuple[Unsorted, int, bool] | None:
        """Keep a failing trace until there is time to sort it; None if nothing is to be done about it in this campaign,
        as there are too many of its symptom.

        Also returns how many with its symptom there were before it, and whether it is `familiar`.
        """
        seed, index, symptom = self.settings.seed, failure.index, symptom_of(failure.violation, failure.trace)
        with self.lock:
            seen = self.backlog.seen(symptom)
            one = Waiting(seed, index, failure.name, failure.violation.signature)
            is_familiar = self._familiar.has(failure.trace, failure.violation)
            kept = self.backlog.keep(one, symptom, failure.trace, is_familiar=is_familiar)
            is_due = self.backlog.is_due(symptom, seen) or not is_familiar
        return (structs.replace(failure, kept=kept), seen, is_familiar) if kept and is_due else None

    def compared(self, trace: Trace, violation: Violation, *, is_known: bool) -> None:
        """Note whether known bugs explain a failure."""
        with self.lock:
            self.backlog.compared(symptom_of(violation, trace), is_known=is_known)

    def explained(self, bug: str, trace: Trace, violation: Violation) -> None:
        """Note which known bug explains a failing trace."""
        with self.lock:
            self._familiar.learn(bug, trace, violation)

    def is_familiar(self, failure: Unsorted) -> bool:
        """Return True if a failing trace looks like those of a known bug that has shown its signature."""
        with self.lock:
            return self._familiar.has(failure.trace, failure.violation)

    def let_look(self, most: int) -> bool:
        """Reserve one more extra look unless `most` are waiting. Return True if it is reserved."""
        with self.lock:
            is_let = self._looks < most
            self._looks += is_let
            return is_let

    def extra_look_begins(self) -> None:
        """Note that a look that `let_look` allowed begins."""
        with self.lock:
            self._looks -= 1
            self.extra_looks += 1

    def let_settle(self, failure: Explained, then: Callable[..., None]) -> None:
        """Let a failure wait until it is settled which known bug explains it."""
        with self.lock:
            self._unsettled[failure] = then

    def unsettled(self) -> list[Explained]:
        """Return the failures that wait."""
        with self.lock:
            return list(self._unsettled)

    def let_prove(self, rank: int) -> bool:
        """Note that a test waits with a rank. Return False if one does already."""
        with self.lock:
            is_new = rank not in self._proofs
            self._proofs.add(rank)
            return is_new

    def prove(self, rank: int) -> list[Explained]:
        """Note that the test with a rank begins. Return the failures that wait for it."""
        with self.lock:
            self._proofs.discard(rank)
            return list(self._unsettled)

    def settle(self, failure: Explained) -> Callable[..., None] | None:
        """Remove a failure that waits. Return what to call with the loop of a worker and the cause; None if another
        test has settled it meanwhile."""
        with self.lock:
            return self._unsettled.pop(failure, None)

    def looked_into(self, kept: Waiting | None) -> None:
        """List a trace that waited no longer."""
        if kept:
            with self.lock:
                self.backlog.drop(kept)

    def left_behind(self) -> list[Finding]:
        """Return the findings that an earlier campaign of this target in this folder did not finish."""
        last = self.settings.last
        return [one for one in last.findings if one.unfinished] if last and last.target == self.settings.target else []

    @property
    def capabilities(self) -> Capabilities:
        """The target's, known once a worker was ready."""
        assert self._capabilities is not None
        return self._capabilities

    def known(self, signature: str) -> str:
        """Return the reason in known.toml for which a signature is no new finding, "" for a new one."""
        return reason_for(self.settings.known, signature, self.settings.target)

    def learn_known(self, entry: Known, evidence: FindingEvidence) -> None:
        """Take the evidence of a known bug, and judge all findings again."""
        with self.lock:
            self._known_causes[entry.title] = evidence
            for name in self.store.findings:
                self.judge(name)

    def judge(self, name: str) -> None:
        """Note if a finding is a known bug that goes by its condition, or like one; the caller holds the lock.

        Each kept trace must be like one of the known bug's, and its condition must hold for one of them.
        """
        finding, evidence = self.store.findings[name], self.store.evidence.get(name)
        seen = evidence.evidence if evidence else ()
        known, like = self._alike(seen, self._known), self._alike(seen, self.packaged)
        if not like:
            bare = (entry for entry in self.packaged.values() if entry.covers(finding.signature, self.settings.target))
            like = next(bare, None)
        self.store.findings[name] = structs.replace(
            finding,
            known=self.known(finding.signature) or (known.reason if known else ""),
            like=f"{like.title} ({like.reason})" if like else "",
        )

    def _alike(self, seen: Sequence[Evidence], entries: Mapping[str, Known]) -> Known | None:
        """Return the known bug that all traces of a finding are like, and whose condition holds for one of them."""
        causes = {title: self._known_causes[title] for title in entries if title in self._known_causes}
        title = next(filter(None, (known_cause(each, causes) for each in seen)), "")
        alike = title and all(same_cause([each], {title: causes[title]}) for each in seen)
        return entries[title] if alike else None

    def save_locked(self) -> Summary:
        """Write the state to disk and return it; the caller holds the lock. Raises OutputError.

        The reached lines and the species come first: those of a counted trace must not be missing.
        """
        if self._lines:
            try:
                self._lines.save()
            except OSError as error:
                raise OutputError(f"cannot write {lines_file(self.settings.out)}: {error.strerror}") from error
        if self._draws_independently:
            try:
                self._species.save()
            except OSError as error:
                raise OutputError(f"cannot write {self.settings.out / SPECIES_FILE}: {error.strerror}") from error
        summary = self._summary()
        self.store.save_state(summary)
        self.backlog.sweep()
        return summary

    def keep(self, trace: Trace, reached: dict[str, int], path: Path) -> None:
        """Decide again about a trace of the corpus."""
        with self.lock:
            self._keep(trace, reached, path)

    def _keep(self, trace: Trace, reached: dict[str, int], path: Path | None) -> None:
        """Keep a trace if it reaches rare states. A corpus that cannot be written does not end the campaign."""
        if not self._keeping:
            return
        try:
            self.corpus.offer(trace, reached, self._states(), path)
        except OutputError as error:
            self._keeping = False
            self.emit(Notice(f"{error}: no more traces are kept in the corpus"))

    @property
    def out_of_steps(self) -> bool:
        """True if the step limit is reached."""
        return self.settings.steps is not None and self._progress.steps >= self.settings.steps

    def is_below_risk(self) -> bool:
        """Return True if the chance of something new is below the one that is asked for, by the end of its interval."""
        if self.settings.until_risk is None:
            return False
        with self.lock:
            seen = self._seen()
        return bool(seen and seen.traces and not seen.is_full and chance_of_new(seen).high < self.settings.until_risk)

    @property
    def resumed(self) -> int:
        """Number of traces that ran before a kill."""
        return self.settings.earlier.traces if self.settings.earlier else 0

    def summary(self) -> Summary:
        """Return the totals so far."""
        with self.lock:
            return self._summary()

    def save(self) -> Summary:
        """Write the totals so far to disk and return them. Raises OutputError."""
        with self.lock:
            return self.save_locked()

    def _states(self) -> list[str]:
        return required_states(self._capabilities, self.settings.overrides) if self._capabilities else []

    def _oracles(self) -> list[str]:
        return required_oracles(self._capabilities, self.settings.overrides) if self._capabilities else []

    def _summary(self) -> Summary:
        settings, progress, states = self.settings, self._progress, self._states()
        oracles = applicable(self._capabilities) if self._capabilities else []
        reached, defaults = without_defaults(progress.reached)
        if self._capabilities:
            defaults = with_unreached(defaults, self._capabilities)
        return Summary(
            target=settings.target,
            version=settings.launch.version,
            seed=settings.seed,
            overrides=settings.overrides,
            exit_reason=self.reason,
            traces=progress.traces,
            steps=progress.steps,
            seconds=round(self.spent(), 3),
            findings=list(self.store.findings.values()),
            exercised=dict.fromkeys(oracles, 0) | progress.exercised,
            reached=dict.fromkeys(states, 0) | reached,
            defaults=defaults,
            never_exercised=[oracle for oracle in self._oracles() if not progress.exercised[oracle]],
            never_reached=[state for state in states if not progress.reached[state]],
            lost_workers=progress.lost,
            canary=self.canary,
            done=progress.done,
            beyond=progress.beyond.ranges(),
            shard="" if settings.shard.of == 1 else str(settings.shard),
            source=settings.source,
            nodes=self.nodes.totals(),
            known_bugs=self.known_bugs.reports(self.store.findings.values(), progress.traces),
            lines=self._lines.total if self._lines else None,
            refused=self._refusals.count,
            not_run=dict(self._faults.not_run),
            given_up=self._given_up,
            workload=differences(settings.workload),
            effort=self.triage.effort(),
            took=to_milliseconds(progress.took),
            triage_share=settings.triage_share,
            waiting=self.backlog.entries(),
            seen=self._seen(),
            changed=self._changed.result() if self._changed else None,
            asked=settings.asked,
        )

    def _seen(self) -> Seen | None:
        """Return what the traces have shown, None where they depend on each other."""
        return self._species.seen() if self._draws_independently else None

    @property
    def _draws_independently(self) -> bool:
        shared = self._capabilities.traces_per_configuration if self._capabilities else 1
        return (
            self.settings.source == "seeded" and shared == 1 and not self.settings.changed
        )  # which traces are aimed at
