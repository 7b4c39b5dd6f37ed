"""Runs traces for a gate and turns their outcomes into verdicts. One worker process, started when needed; another one
for the traces of known bugs, which run on the unpatched target.

The budget of the search is converted to a number of *traces*: seconds times the nominal rate that the target declares.
Hence runs on different machines, or with different numbers of processes, run the same traces and give the same
verdicts. The clock is only a guard against an engine that has become much slower: once the search has taken `OVERTIME`
times its budget, the remaining traces are skipped, which the summary reports.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Literal

from msgspec import Struct

from ...targets.base.protocol import Capabilities, TargetError
from ...targets.base.registry import parse
from ...targets.base.trace import Trace, TraceError, check_config
from ..campaign.recheck import Confirmation
from ..draw.files import load_trace
from ..draw.overrides import check_overrides
from ..group.conditions import evidence_of, matching, with_conditions
from ..group.evidence import FindingEvidence
from ..group.fixes import Fixes, check
from ..group.investigate import Investigation
from ..group.known import Known, reason_for
from ..group.same_symptom import UNEXPLAINED
from ..group.store import FindingStore, OutputError, replay_command
from ..judge.outcome import Outcome
from ..judge.violation import Violation
from ..quoting import terminal_line
from ..tell.terminal import finding_text
from ..workers.client import WorkerClient
from ..workers.messages import Fuzz
from ..workers.process import memory_share
from .settings import PACKAGED_CORPUS, GateSettings

OVERTIME = 5
TWICE_EVERY = 50
REDUCE_SECONDS = 20.0
EVIDENCE_SECONDS = 60.0
"""Rarely used up: a verdict should not depend on the machine."""
TRACE_SECONDS = 60.0


class ItemVerdict(Struct, frozen=True):
    """The verdict on one trace, and the text that pytest shows. `warning` is for the summary."""

    state: Literal["clean", "failed", "known", "skipped"]
    text: str = ""
    outcome: Outcome | None = None
    warning: str = ""


class Judge:
    """One target with known bugs fixed. Methods raise TargetError or InternalError.

    There are `processes` judges on this machine, each with a worker, and one more for known bugs.
    """

    def __init__(
        self, settings: GateSettings, seed: int, fixes: Fixes, known: Sequence[Known], processes: int = 1
    ) -> None:
        self.settings = settings
        self.seed = seed
        self._known = known
        self._known_causes: dict[str, FindingEvidence] | None = None
        self._fixes = fixes
        self._memory = memory_share(2 * processes)
        self._worker = WorkerClient(settings.target, fixes.launch, TRACE_SECONDS, self._memory)
        self._unpatched: WorkerClient | None = None
        self._store: FindingStore | None = None
        self._searched = 0.0
        self._capabilities: Capabilities | None = None

    @property
    def capabilities(self) -> Capabilities:
        """The target's capabilities. Starts the worker."""
        if self._capabilities is None:
            self._capabilities = self._worker.start().capabilities
            check_overrides(self.settings.overrides, self._capabilities)
        return self._capabilities

    @property
    def search_count(self) -> int:
        """The number of traces that the budget stands for, at least 1."""
        return max(round(self.settings.budget * self.capabilities.traces_per_second), 1)

    def close(self) -> None:
        """End the workers."""
        self._worker.__exit__()
        if self._unpatched:
            self._unpatched.__exit__()

    def replay(self, path: Path) -> ItemVerdict:
        """Run a trace of the corpus, twice: both runs must be identical."""
        if (family := family_of(path)) not in ("", parse(self.settings.target).name):
            return ItemVerdict("skipped", f"a trace for {family}")
        try:
            trace = load_trace(path)
            check_config(trace.config)
        except TraceError as error:
            return ItemVerdict("failed", f"{error}\nThe file is broken: fix or remove it.")
        assert self.capabilities
        try:
            outcome = self._worker.run(trace, twice=True)
        except TraceError as error:
            return ItemVerdict("skipped", str(error))
        if outcome.violation is None:
            return ItemVerdict("clean", outcome=outcome)
        if reason := self._reason(outcome.violation, trace):
            return ItemVerdict("known", terminal_line(f"{outcome.violation.signature}: {reason}"), outcome)
        where = f"{len(trace.events)} events, from the corpus"
        return self._failed(outcome, outcome.violation, where, path, explained=True)

    def check_known(self, entry: Known) -> ItemVerdict:
        """Run the traces of a known bug on the unpatched target: an outdated entry fails."""
        if entry.traces and self._unpatched is None:
            unpatched = self._fixes.unpatched
            self._unpatched = WorkerClient(self.settings.target, unpatched, TRACE_SECONDS, self._memory)
            self._unpatched.start()
        [bug] = check([entry], self._fixes.problems, self._unpatched or self._worker)
        text = terminal_line(f"known bug {bug.name} ({bug.reason}): {bug.verdict}: {bug.detail}")
        return ItemVerdict("failed" if bug.outdated else "skipped" if bug.verdict == "not tested" else "clean", text)

    def search(self, index: int) -> ItemVerdict:
        """Run trace `index` of the search."""
        assert self.capabilities
        limit = OVERTIME * self.settings.budget
        if self._searched > limit:
            return ItemVerdict("skipped", f"stopped early: the search took {OVERTIME} times its budget")
        began = time.monotonic()
        try:
            request = Fuzz(self.seed, index, 1, dict(self.settings.overrides), TWICE_EVERY)
            [ran] = self._worker.fuzz(request)
        finally:
            self._searched += time.monotonic() - began
        violation = ran.outcome.violation or ran.flaky
        if violation is None:
            return ItemVerdict("clean", outcome=ran.outcome, warning=ran.lost)
        assert ran.trace
        if reason := self._reason(violation, ran.trace):
            return ItemVerdict("known", terminal_line(f"{violation.signature}: {reason}"), ran.outcome)
        try:
            where, path, new = self._save(violation, index, ran.trace, flaky=ran.flaky is not None)
        except OutputError as error:
            lost = f"{violation.message}\n\nsignature  {violation.signature}\ntrace      {ran.trace.origin}\n\n{error}"
            return ItemVerdict("failed", lost, ran.outcome)
        return self._failed(ran.outcome, violation, where, path, explained=new and ran.flaky is None)

    def _reason(self, violation: Violation, trace: Trace) -> str:
        """Return why a failure is a known bug, "" for a new one."""
        if reason := reason_for(self._known, violation.signature, self.settings.target):
            return reason
        entries = with_conditions(self._known, self.settings.target)
        if not entries or violation.oracle in UNEXPLAINED:
            return ""
        assert self.capabilities
        if self._known_causes is None:
            found = {one.title: evidence_of(one, self._worker, self.capabilities, EVIDENCE_SECONDS) for one in entries}
            self._known_causes = {title: evidence for title, (evidence, _) in found.items() if evidence}
        investigation = Investigation(self._worker, self.capabilities, EVIDENCE_SECONDS)
        evidence = investigation.evidence(investigation.reduce(trace, violation))
        entry = matching(evidence, entries, self._known_causes) if evidence else None
        return entry.reason if entry else ""

    def _save(self, violation: Violation, index: int, trace: Trace, *, flaky: bool) -> tuple[str, Path, bool]:
        """Save a failure and, if its signature is new in this process, reduce it. A loss of the worker that did not
        happen again (`flaky`) cannot be reduced.

        Returns a description of its origin, its file, and True if the signature is new.
        """
        store = self._store = self._store or FindingStore(self.settings.out, self.settings.target)
        where, finding = f"{len(trace.events)} events, {trace.origin}", store.count(violation)
        new = finding is None
        if finding is None:
            finding, earlier = store.claim(violation, index, trace)
            if flaky:
                store.settle(finding.id, reproduced=False, shown=0, tried=1)
            else:
                case = Confirmation(store, Lock(), self._worker, lambda record: None, REDUCE_SECONDS)
                try:
                    case.investigate(finding.id, violation, trace, earlier=earlier)
                except TargetError as error:  # the target does not start again after its crash
                    return f"{where}; it could not run again: {error}", Path(finding.trace), True
            finding = store.findings[finding.id]
        if finding.reproduced:
            where += f"; {'reduced to' if new else 'see the one reduced to'} {finding.events}"
        else:
            where += "; did not fail again when run alone"
        return where, Path(finding.trace), new

    def _failed(
        self, outcome: Outcome, violation: Violation, where: str, path: Path, *, explained: bool
    ) -> ItemVerdict:
        target, file = self.settings.target, near(path)
        lines = [
            terminal_line(violation.message),
            "",
            f"signature  {violation.signature}",
            f"trace      {where}",
            f"replay     {replay_command(target, file)}",
            f"report     {shlex.join(['hybridfuzz', 'repro', file, '--target', target, '-o', 'repro'])}",
        ]
        if explained and (text := self._explanation(path)):
            lines += ["", text]
        return ItemVerdict("failed", "\n".join(lines), outcome)

    def _explanation(self, path: Path) -> str:
        try:
            return finding_text(self._worker.explain(load_trace(path))[1])
        except TargetError as error:  # the target does not start again after its crash
            return f"no explanation: {error}"


def near(path: Path) -> str:
    """Return a path as a user would type it: relative if it is below the working directory."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def family_of(path: Path) -> str:
    """Return the engine that a packaged trace is for, "" for any engine and for the repository's own traces."""
    if not path.is_relative_to(PACKAGED_CORPUS):
        return ""
    return str(path.relative_to(PACKAGED_CORPUS).parent).strip(".")


def corpus_files(settings: GateSettings) -> Iterator[tuple[str, Path]]:
    """Yield (readable id, file) of every trace: the packaged ones, then the repository's own."""
    for path in sorted(PACKAGED_CORPUS.rglob("*.json")):
        yield f"corpus/{path.relative_to(PACKAGED_CORPUS).with_suffix('')}", path
    for folder in settings.corpus:
        for path in sorted(folder.rglob("*.json")) if folder.is_dir() else [folder]:
            yield f"{folder.stem}/{path.relative_to(folder).with_suffix('') if folder.is_dir() else path.stem}", path
