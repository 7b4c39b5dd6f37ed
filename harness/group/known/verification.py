"""Does a patch fix a finding? Its traces, their neighbours and a short campaign run without the patch and with it.

A failure with the patch is compared with what the same trace does without it:

    remains   the same signature at the same event: the patch does not reach this failure
    broken    without the patch the trace runs clean, or at least further: the patch causes it
    later     without the patch the trace fails earlier, or otherwise at the same event: it lies behind the finding
    other     the same failure with and without the patch, but not with a signature of the finding

Signatures are symptoms: what fails `later` or is `other` may be another bug, or the same one in a trace to which the
patch does not reach. Neither is a fix that can be called right, so both leave the verdict open. Both sides should
therefore run with the patches of the other known bugs.

Grouping by cause is a guess; a patch is better evidence. The kept traces of a campaign's other findings run on both
sides, too: one of which a trace passes or fails later with the patch probably has this cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct, field, structs

from ....targets.base.protocol import Capabilities
from ....targets.base.trace import Config, Trace, TraceError
from ...defaults import REDUCE_SECONDS
from ...draw.trace_files import file_name, save_trace
from ...judge.outcome import Outcome
from ...judge.violation import Violation
from ...suggestions import did_you_mean
from ...workers.messages import Fuzz, Overrides
from ...workers.worker_client import WorkerClient
from ..causes.evidence import EXTRA_TRACES_MAX
from ..findings.finding_store import FINDINGS_FOLDER, OutputError, make_folder, read_state
from ..reduction.neighbours import neighbours
from ..reduction.reduce import reduce_trace

FIXED, NOT_FIXED, BROKEN = "fixes it", "does not fix it", "fixes it, but breaks something else"
OPEN = "fixes what the finding shows, but traces like it still fail in other ways"
Kind = Literal["clean", "remains", "broken", "later", "other"]
SEVERITY: tuple[Kind, ...] = ("remains", "broken", "other", "later")
EMPTY: Mapping[str, Sequence[Trace]] = {}
BATCH = 25
FIELDS = (
    "mamba_cache_mode",
    "enable_prefix_caching",
    "num_speculative_tokens",
    "eagle_block_drop",
    "async_depth",
    "policy",
)
"""Configuration fields that the campaign takes from the finding; sizes are drawn."""


class VerifiedPart(Struct):
    """One part of the test: how many traces ran, and how many failed without and with the patch, by signature.

    In a campaign only those that fail with the patch run without it, too.
    """

    name: str
    traces: int = 0
    steps: int = 0
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)

    def count(self, before: Violation | None, after: Violation | None, kind: Kind) -> None:
        """Count the results of one trace."""
        for counts, key in (
            (self.before, before.signature if before else ""),
            (self.after, after.signature if after else ""),
            (self.kinds, kind),
        ):
            if key:
                counts[key] = counts.get(key, 0) + 1


class FailedTrace(Struct, frozen=True):
    """A failure with the patch, and where its trace is saved."""

    kind: Kind
    signature: str
    message: str
    trace: str
    events: int


class Silenced(Struct, frozen=True):
    """Another finding of the campaign: of its kept traces, how many fail without the patch, and how many of these run
    further with it, or to their end."""

    finding: str
    failing: int
    silent: int


class Verification(Struct, frozen=True):
    """The result. `failures` are the first of each kind and signature, what decides first; `silenced` are the other
    findings of which the patch silences a trace. They have no part in the verdict."""

    verdict: str
    signatures: tuple[str, ...]
    rows: tuple[VerifiedPart, ...]
    failures: tuple[FailedTrace, ...] = ()
    silenced: tuple[Silenced, ...] = ()

    @property
    def fixes(self) -> bool:
        """True if the patch fixes the finding, and nothing fails with it."""
        return self.verdict == FIXED


def kind_of(before: Violation | None, after: Violation | None, wanted: Iterable[str]) -> Kind:
    """Return what a failure with the patch means."""
    if after is None:
        return "clean"
    if before is None or after.event < before.event:
        return "broken"
    if after.event > before.event or after.signature != before.signature:
        return "later"
    return "remains" if after.signature in wanted else "other"


def traces_of(finding: Path, name: str = "") -> list[Path]:
    """Return the traces of a finding: a trace file and those kept beside it, or those of a finding in a folder.

    Raises TraceError if there is no such finding.
    """
    if not finding.is_dir():
        also = [finding.with_name(f"{finding.stem}.also-{number}.json") for number in range(1, EXTRA_TRACES_MAX + 1)]
        return [finding, *(path for path in also if path.exists())]
    summary = read_state(finding)
    found = {one.id: one for one in summary.findings} if summary else {}
    if name not in found:
        there = f"there are: {', '.join(found) or 'none'}"
        if not name:
            raise TraceError(f"{finding}: name one of its findings with --id; {there}")
        raise TraceError(f"{finding}: there is no finding {name!r}{did_you_mean(name, found)}; {there}")
    return traces_of(finding / FINDINGS_FOLDER / Path(found[name].trace).name)


def others_of(finding: Path, name: str) -> dict[str, list[Path]]:
    """Return the traces of the other findings in a campaign's folder; none for a trace file."""
    summary = read_state(finding) if finding.is_dir() else None
    return {one.id: traces_of(finding, one.id) for one in summary.findings if one.id != name} if summary else {}


def overrides_of(config: Config) -> Overrides:
    """Return what a campaign fixes so that it draws configurations like this one."""
    return {**{field: getattr(config, field) for field in FIELDS}, **config.options}


class Verifier:
    """One test of one patch. Both workers must have been started; `capabilities` are the target's."""

    def __init__(
        self,
        before: WorkerClient,
        after: WorkerClient,
        capabilities: Capabilities,
        out: Path,
        progress: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._before, self._after = before, after
        self._capabilities = capabilities
        self._out, self._progress = out, progress
        self._wanted: set[str] = set()
        self._failures: dict[tuple[Kind, str], FailedTrace] = {}

    def verify(
        self,
        traces: Sequence[Trace],
        *,
        count: int,
        steps: int,
        seed: int,
        others: Mapping[str, Sequence[Trace]] = EMPTY,
    ) -> Verification:
        """Run the traces, `count` neighbours and a campaign of `steps` steps; a part that settles it is the last. Then
        run the traces of the other findings.

        Raises TraceError if no trace fails without the patch, OutputError if a trace cannot be saved, and what a
        worker raises.
        """
        make_folder(self._out)
        violations = [self._before.run(trace).violation for trace in traces]
        self._wanted = {violation.signature for violation in violations if violation}
        if not self._wanted:
            raise TraceError("no trace of the finding fails without the fix: nothing to verify; check --target")
        rows = [VerifiedPart("traces of the finding")]
        for trace in traces:
            self._pair(rows[0], trace)
        if not self._is_settled():
            rows.append(VerifiedPart("their neighbours"))
            for trace in neighbours(traces, self._capabilities, seed, count):
                self._pair(rows[1], trace)
                if rows[1].traces % 50 == 0:
                    self._progress(f"{rows[1].traces} neighbours")
        if not self._is_settled():
            rows.append(VerifiedPart("campaign"))
            self._campaign(rows[2], traces[0].config, steps, seed)
        kinds = {kind for kind, _ in self._failures}
        failures = sorted(self._failures.values(), key=lambda failure: SEVERITY.index(failure.kind))
        verdict = NOT_FIXED if "remains" in kinds else BROKEN if "broken" in kinds else OPEN if kinds else FIXED
        silenced = [self._silenced(finding, kept) for finding, kept in others.items()]
        return Verification(
            verdict,
            tuple(sorted(self._wanted)),
            tuple(rows),
            tuple(failures),
            tuple(one for one in silenced if one.silent),
        )

    def _silenced(self, finding: str, traces: Sequence[Trace]) -> Silenced:
        """Run the traces of another finding on both sides. One that a side refuses is not counted."""
        failing = silent = 0
        for trace in traces:
            try:
                if before := self._before.run(trace).violation:
                    after = self._after.run(trace).violation
                    silent += after is None or after.event > before.event
                    failing += 1
            except TraceError:
                continue
        return Silenced(finding, failing, silent)

    def _is_settled(self) -> bool:
        return any(kind in ("remains", "broken") for kind, _ in self._failures)

    def _pair(self, row: VerifiedPart, trace: Trace) -> None:
        """Run a trace on both sides. One that a side refuses is not counted."""
        try:
            before, after = self._before.run(trace), self._after.run(trace)
        except TraceError:
            return
        self._count(row, trace, before.violation, after)

    def _campaign(self, row: VerifiedPart, config: Config, steps: int, seed: int) -> None:
        """Run new traces with the patch, `BATCH` at a time; one that fails runs without it, too."""
        overrides = overrides_of(config)
        while row.steps < steps:
            for ran in self._after.fuzz(Fuzz(seed, row.traces, BATCH, overrides)):
                failed = ran.outcome.violation and ran.trace
                before = self._before.run(failed).violation if failed else None
                self._count(row, failed or Trace(config, ()), before, ran.outcome)
            self._progress(f"campaign: {row.steps} steps")

    def _count(self, row: VerifiedPart, trace: Trace, before: Violation | None, after: Outcome) -> None:
        kind = kind_of(before, after.violation, self._wanted)
        row.traces += 1
        row.steps += after.steps
        row.count(before, after.violation, kind)
        if after.violation:
            self._keep(kind, trace, after.violation)

    def _keep(self, kind: Kind, trace: Trace, violation: Violation) -> None:
        """Save the first failure of its kind and signature; what the patch breaks is reduced."""
        key = kind, violation.signature
        if key in self._failures:
            return
        path = self._out / f"{kind}-{file_name(violation.signature)}.json"
        if kind == "broken":
            trace = reduce_trace(trace, violation.signature, self._run_broken, seconds=REDUCE_SECONDS)
        try:
            save_trace(trace, path)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}") from error
        self._failures[key] = FailedTrace(kind, violation.signature, violation.message, str(path), len(trace.events))

    def _run_broken(self, trace: Trace) -> Outcome:
        """Run a candidate with the patch; a failure counts only if the patch causes it."""
        outcome = self._after.run(trace)
        if outcome.violation and kind_of(self._before.run(trace).violation, outcome.violation, ()) != "broken":
            return structs.replace(outcome, violation=None)
        return outcome
