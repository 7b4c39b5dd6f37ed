"""Confirms a new finding: does its trace fail again alone, and how short can the trace be?"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock

from ...targets.base.trace import Trace
from ..campaign_events import CampaignEvent, Improved
from ..group.reduce import reduce_trace
from ..group.same_symptom import UNEXPLAINED, same_symptom
from ..group.store import FindingStore
from ..judge.outcome import Outcome
from ..judge.violation import Violation
from ..record.history import History
from ..tell.terminal import finding_text
from ..workers.protocol import Worker

HANG_PATIENCE = 0.1
"""Fraction of the time limit after which a candidate for a shorter hang counts as a hang."""
HANG_SECONDS_MIN = 2.0
RATE_RUNS = 2
"""Further runs of the reduced trace, for its reproduction rate."""


class Confirmation:
    """Confirms and reduces one finding on one worker. Its best trace is on disk at any moment."""

    def __init__(
        self,
        store: FindingStore,
        lock: Lock,
        worker: Worker,
        emit: Callable[[CampaignEvent], None],
        seconds: float,
    ) -> None:
        self._store = store
        self._lock = lock
        self._worker = worker
        self._emit = emit
        self._seconds = seconds
        self._name = self._signature = ""
        self._twice = False
        self._times_shown = self._times_tried = 0
        """Runs of traces that had failed before: how many failed again, and how many there were."""
        self._shown: tuple[Trace, Violation] | None = None
        self.history: History | None = None
        """That of the best trace, once it was recorded with the finding's failure."""

    def investigate(self, name: str, violation: Violation, trace: Trace, *, earlier: Trace | None) -> Trace | None:
        """Run the trace of a finding again; if it fails, reduce it, or the shorter one of an earlier campaign if that
        fails, too. Return the reduced trace, None if the trace did not fail again."""
        self._name, self._signature = name, violation.signature
        self._twice = violation.oracle == "DETERMINISM"
        worker, patience = self._worker, self._worker.trace_seconds
        if violation.oracle == "HANG":
            worker.trace_seconds = max(patience * HANG_PATIENCE, min(HANG_SECONDS_MIN, patience))
        best = None
        try:
            reproduced = self._shows(trace)
            if earlier and self._shows(earlier):
                trace, reproduced = earlier, True
                self._better(earlier)
            if reproduced and self._shown:
                best = reduce_trace(
                    trace,
                    self._signature,
                    self._run,
                    seconds=self._seconds,
                    on_better=self._better,
                    accepts=same_symptom(self._shown[1], trace),
                )
                if violation.oracle not in UNEXPLAINED:
                    self._explain(best)
        finally:
            worker.trace_seconds = patience
        with self._lock:
            finding = self._store.settle(name, reproduced=reproduced, shown=self._times_shown, tried=self._times_tried)
        self._emit(Improved(finding))
        return best

    def _explain(self, trace: Trace) -> None:
        """Save the explanation of the best trace, and count how often it fails."""
        outcome, history = self._worker.explain(trace)
        if self._count(outcome) and outcome.violation:
            self.history = history
            with self._lock:
                self._store.explain(self._name, outcome.violation, history, finding_text(history))
        for _ in range(RATE_RUNS if history.moments else 0):  # restarting a worker is expensive
            self._shows(trace)

    def _run(self, trace: Trace) -> Outcome:
        outcome = self._worker.run(trace, twice=self._twice)
        if outcome.violation and outcome.violation.signature == self._signature:
            self._shown = trace, outcome.violation
        return outcome

    def _shows(self, trace: Trace) -> bool:
        return self._count(self._run(trace))

    def _count(self, outcome: Outcome) -> bool:
        shown = outcome.violation is not None and outcome.violation.signature == self._signature
        self._times_tried += 1
        self._times_shown += shown
        return shown

    def _better(self, trace: Trace) -> None:
        """Save a shorter trace."""
        violation = self._shown[1] if self._shown and self._shown[0] == trace else None
        with self._lock:
            finding = self._store.improve(self._name, trace, violation)
        self._emit(Improved(finding))
