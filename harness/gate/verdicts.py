"""Runs traces for a gate and turns their outcomes into verdicts. One worker process, started when needed; another one
for the traces of known bugs, which run on the unpatched target, beside the other items.

A verdict is one item's. Which items fail by one cause is found out at the end (`causes`): reducing each
failure when it is met would take longer than the search.

All of it happens within the time of the run (`allowance`): once that is over, the workers are stopped.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal

from msgspec import Struct

from ...targets.base.protocol import Capabilities, MisfitError
from ...targets.base.trace import Trace, TraceError, check_config
from ..campaign_summary import KnownBug
from ..draw.overrides import check_overrides
from ..draw.trace_files import json_below, load_trace
from ..group.causes.evidence import FindingEvidence
from ..group.causes.investigate import Investigation
from ..group.findings.finding_store import replay_command
from ..group.known.conditions import evidence_of, matching, with_conditions
from ..group.known.fixes import Fixes, check, packaged_traces
from ..group.known.known_toml import Known, reason_for
from ..group.reduction.still_fails import UNEXPLAINED
from ..judge.outcome import Outcome
from ..judge.target_exception import misfit
from ..judge.violation import Violation
from ..quoting import terminal_line
from ..record.changed_lines import ChangedSource, ChangedTally
from ..units import plural
from ..workers.machine import memory_share, queued_seconds
from ..workers.messages import Fuzz
from ..workers.worker_client import Stopped, WorkerClient
from ..workers.worker_process import Lost
from .allowance import SORTING_SECONDS, Allowance, whole
from .causes import Cause, Causes, ItemFailure, near
from .packaged_bugs import fixes_words
from .settings import PACKAGED_CORPUS, GateSettings

STOPPED = "stopped early"
"""Beginning of the reason for a skipped item for which there was no time."""
PATIENCE_RUNS = 2.1
"""Time limits of one run, for an item that has begun: it may run twice."""
TWICE_EVERY = 50
EVIDENCE_SECONDS = 60.0
"""Rarely used up: a verdict should not depend on the machine."""


class ItemVerdict(Struct, frozen=True):
    """The verdict on one trace, and the text that pytest shows. `warning` is for the summary; a `failure` is a
    violation, which may have its cause in common with other items. "misfit": the adapter does not fit the engine."""

    state: Literal["clean", "failed", "misfit", "known", "skipped"]
    text: str = ""
    outcome: Outcome | None = None
    warning: str = ""
    failure: ItemFailure | None = None


class Verdicts:
    """Gives the verdicts on one target with known bugs fixed. Methods raise TargetError or InternalError.

    On this machine there are `processes` of these, each with a worker, and one more for known bugs.
    """

    def __init__(
        self,
        settings: GateSettings,
        seed: int,
        fixes: Fixes,
        known: Sequence[Known],
        processes: int = 1,
        changed: ChangedSource | None = None,
        allowance: Allowance | None = None,
    ) -> None:
        self.settings = settings
        self.seed = seed
        self._known = known
        self._known_causes: dict[str, FindingEvidence] | None = None
        self._fixes = fixes
        self._memory = memory_share(2 * processes)
        self._changed = ChangedTally(changed) if changed else None
        watched = changed.watched if changed else {}
        self._worker = WorkerClient(settings.target, fixes.launch, memory_limit=self._memory, watched=watched)
        self._unpatched: WorkerClient | None = None
        self._beside = ThreadPoolExecutor(1)
        """Where known bugs are checked. Nothing else uses their worker."""
        self._checks: dict[str, Future[KnownBug]] = {}
        self._has_started = False
        self._item: tuple[float, Lost | None] | None = None
        """What had been spent when the item began that runs, and the last loss before it."""
        self.known_capabilities: Capabilities | None = None
        self.allowance = allowance or Allowance(whole(settings.budget))
        self._queued_before = queued_seconds()
        self.allowance.waited = self._queued

    @property
    def capabilities(self) -> Capabilities:
        """The target's capabilities. Starts the worker unless another process has told them."""
        return self.known_capabilities or self._start()

    def take(self, capabilities: Capabilities) -> None:
        """Take the target's capabilities from another process."""
        self.known_capabilities = self.known_capabilities or capabilities

    def _start(self) -> Capabilities:
        """Start the worker, unless it has been."""
        if not self._has_started or self.known_capabilities is None:
            self.allowance.then(self._stop, self._may_stop)
            self.known_capabilities = able = self._worker.start().capabilities
            check_overrides(self.settings.overrides, able)
            self._has_started = True
        return self.known_capabilities

    @property
    def search_count(self) -> int:
        """The number of traces that the budget stands for, at least 1."""
        return max(round(self.settings.budget * self.capabilities.traces_per_second), 1)

    def begin_checks(self, entries: Iterable[Known]) -> None:
        """Begin to check known bugs, each once. An engine is imported for seconds: all that happens beside other items.

        Only those with traces run anything.
        """
        for entry in entries:
            if entry.title not in self._checks:
                self._checks[entry.title] = self._beside.submit(self._checked, entry)

    def _checked(self, entry: Known) -> KnownBug:
        if entry.traces and self._unpatched is None:
            self._unpatched = WorkerClient(self.settings.target, self._fixes.unpatched, memory_limit=self._memory)
            self._unpatched.start()
        if self.allowance.left <= 0:
            raise Stopped
        [bug] = check([entry], self._fixes.problems, self._unpatched or self._worker)
        return bug

    def _may_stop(self) -> bool:
        """Return False while an item runs that may still turn out to hang: both runs of a trace have a limit of their
        own. After a loss there is nothing to wait for."""
        if self._item is None:
            return True
        began, lost = self._item
        hangs = self._worker.last_lost is not lost
        return hangs or self.allowance.spent - began > PATIENCE_RUNS * self._worker.trace_seconds

    def _queued(self) -> float:
        """Return the seconds in which this process or its worker had to wait for a processor."""
        return queued_seconds() + self._worker.queued - self._queued_before

    def _stop(self) -> None:
        """Stop the workers: the time is over. What they do raises Stopped."""
        self._worker.stop()
        if self._unpatched:
            self._unpatched.stop()

    def close(self) -> None:
        """End the workers."""
        self.allowance.close()
        self._worker.__exit__()
        if self._unpatched:
            self._unpatched.stop()
        self._beside.shutdown(cancel_futures=True)
        if self._unpatched:
            self._unpatched.__exit__()

    def causes(self, failures: Sequence[ItemFailure]) -> list[Cause]:
        """Return the causes of the failures of a run."""
        self.allowance.give(0.0 if self._has_started else SORTING_SECONDS)
        try:
            capabilities: Capabilities | None = self._start()
        except Stopped:  # a process that had no worker, at the end of the time
            capabilities = None
        left = self.allowance.left if capabilities else 0.0
        return Causes(self.settings, self._fixes, self._worker, capabilities, left).sorted(failures)

    def in_time(self, item: str, check: Callable[[str], ItemVerdict]) -> ItemVerdict:
        """Return the verdict on an item, "skipped" if there is no time for it. A process that was lost fails, also
        if no time was left to run the trace again."""
        if not self.allowance.allows_item:
            return ItemVerdict("skipped", f"{STOPPED}: no time was left")
        began, lost = self._item = self.allowance.spent, self._worker.last_lost
        try:
            verdict = check(item)
        except Stopped:
            last = self._worker.last_lost
            if last is not None and last is not lost:
                again = f"no time was left to run it again\n\nagain      {self._again(item)}"
                return ItemVerdict("failed", f"{last.kind}: the target {terminal_line(last.what)}; {again}")
            text = f"{STOPPED}: it was cut off after {self.allowance.spent - began:.0f} s; again: "
            return ItemVerdict("skipped", text + self._again(item), warning=text + self._again(item))
        finally:
            self._item = None
        if verdict.state == "failed":
            self.allowance.keep_for_causes()
        return verdict

    def _again(self, item: str) -> str:
        """Return the command that runs an item alone."""
        return f"pytest --hybridfuzz-target {shlex.quote(self.settings.target)} hybridfuzz::{item}"

    def replay(self, item: str, path: Path) -> ItemVerdict:
        """Run a trace of the corpus, twice: both runs must be identical."""
        try:
            trace = load_trace(path)
            check_config(trace.config)
        except TraceError as error:
            return ItemVerdict("failed", f"{error}\nThe file is broken: fix or remove it.")
        self._start()
        try:
            outcome = self._worker.run(trace, twice=True)
        except TraceError as error:
            return ItemVerdict("skipped", str(error))
        self._learn(outcome, trace)
        if outcome.violation is None:
            return ItemVerdict("clean", outcome=outcome)
        where = f"{plural(len(trace.events), 'event')}, from the corpus"
        again = replay_command(self.settings.target, near(path), fixes_words(self.settings, self._fixes))
        return self._violated(outcome, ItemFailure(item, outcome.violation, trace, where), again)

    def check_known(self, item: str, entry: Known) -> ItemVerdict:
        """Run the traces of a known bug on the unpatched target: an outdated entry fails. That of a packaged list is a
        warning: whoever changes the engine cannot change the list. What is checked beside other items needs no time."""
        del item
        self.begin_checks([entry])
        try:
            bug = self._checks[entry.title].result()
        except Stopped:
            return ItemVerdict("skipped", f"{STOPPED}: no time was left to check it")
        text = terminal_line(f"known bug {bug.name} ({bug.reason}): {bug.verdict}: {bug.detail}")
        if bug.outdated and Path(entry.folder).is_relative_to(PACKAGED_CORPUS):  # the list is not the repository's own
            return ItemVerdict("skipped", text, warning="" if bug.verdict == "patch no longer applies" else text)
        return ItemVerdict("failed" if bug.outdated else "skipped" if bug.verdict == "not tested" else "clean", text)

    def _learn(self, outcome: Outcome, trace: Trace | None) -> None:
        if self._changed:
            self._changed.add(outcome.ran, trace)

    def search(self, item: str, index: int, *, aims: bool = False) -> ItemVerdict:
        """Run trace `index` of the search. If it `aims`, it is drawn for the changed lines, by what this process has
        run so far."""
        self._start()
        aim = self._changed.aim() if self._changed and aims else {}
        request = Fuzz(self.seed, index, 1, dict(self.settings.overrides), TWICE_EVERY, aim=aim)
        [ran] = self._worker.fuzz(request)
        self._learn(ran.outcome, ran.trace)
        violation = ran.outcome.violation or ran.flaky
        if violation is None:
            return ItemVerdict("clean", outcome=ran.outcome, warning=ran.lost)
        assert ran.trace
        where = f"{plural(len(ran.trace.events), 'event')}, {ran.trace.origin}"
        failure = ItemFailure(item, violation, ran.trace, where, flaky=ran.flaky is not None)
        return self._violated(ran.outcome, failure, self._again(item))

    def _violated(self, outcome: Outcome, failure: ItemFailure, again: str) -> ItemVerdict:
        """Return the verdict on a violation: known, of the adapter, or new."""
        violation = failure.violation
        if lacking := misfit(violation):
            return ItemVerdict("misfit", misfit_text(lacking), outcome)
        try:
            reason = self._reason(violation, failure.trace)
        except Stopped:
            text = (
                f"{STOPPED}: fails as {violation.signature}, and no time was left to tell whether that is a known bug"
            )
            return ItemVerdict("skipped", text, outcome, warning=text)
        if reason:
            return ItemVerdict("known", terminal_line(f"{violation.signature}: {reason}"), outcome)
        lines = [
            terminal_line(violation.message),
            "",
            f"signature  {violation.signature}",
            f"trace      {failure.where}",
            f"again      {again}",
        ]
        return ItemVerdict("failed", "\n".join(lines), outcome, failure=failure)

    def _reason(self, violation: Violation, trace: Trace) -> str:
        """Return why a failure is a known bug, "" for a new one."""
        if reason := reason_for(self._known, violation.signature, self.settings.target):
            return reason
        entries = with_conditions(self._known, self.settings.target)
        if not entries or violation.oracle in UNEXPLAINED:
            return ""
        if self._known_causes is None:
            found = {one.title: evidence_of(one, self._worker, self.capabilities, EVIDENCE_SECONDS) for one in entries}
            self._known_causes = {title: evidence for title, (evidence, _) in found.items() if evidence}
        investigation = Investigation(self._worker, self.capabilities, EVIDENCE_SECONDS)
        evidence = investigation.evidence(investigation.reduce(trace, violation))
        entry = matching(evidence, entries, self._known_causes) if evidence else None
        return entry.reason if entry else ""


def misfit_text(error: MisfitError | str) -> str:
    """Return why a gate says nothing about this version of the engine, or about a part of it."""
    return terminal_line(f"hybridfuzz does not fit this version of the engine: {error}")


def corpus_files(settings: GateSettings) -> Iterator[tuple[str, Path]]:
    """Yield (readable id, file) of every trace for this engine: the packaged ones, then the repository's own."""
    for path in packaged_traces(settings.target):
        yield f"corpus/{path.relative_to(PACKAGED_CORPUS).with_suffix('')}", path
    for folder in settings.corpus:
        for path in json_below(folder) if folder.is_dir() else [folder]:
            yield f"{folder.stem}/{path.relative_to(folder).with_suffix('') if folder.is_dir() else path.stem}", path
