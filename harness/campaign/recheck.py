"""Confirms a new finding: does its trace fail again alone, and how short can the trace be?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

from ...targets.base.trace import Trace
from ..campaign_events import CampaignEvent, Improved
from ..group.findings.finding_store import FindingStore
from ..group.reduction.reduce import Reducer
from ..group.reduction.still_fails import UNEXPLAINED, same_symptom
from ..judge.outcome import Outcome
from ..judge.violation import Violation
from ..record.history import History
from ..tell.headline import headline_of
from ..tell.terminal import finding_text
from ..workers.protocol import Worker

HANG_PATIENCE = 0.1
"""Fraction of the time limit after which a candidate for a shorter hang counts as a hang."""
HANG_SECONDS_MIN = 2.0
RATE_RUNS = 2
"""Further runs of the reduced trace, for its reproduction rate."""


class Confirmation:
    """Confirms and reduces one finding. Its best trace is on disk at any moment.

    `worker` is the one to run it on; a campaign sets another one between two slices of the reduction.
    """

    def __init__(
        self,
        store: FindingStore,
        lock: Lock,
        worker: Worker,
        emit: Callable[[CampaignEvent], None],
        seconds: float,
    ) -> None:
        self.worker = worker
        self._store = store
        self._lock = lock
        self._emit = emit
        self._seconds = seconds
        self._name = self._signature = self._oracle = ""
        self._times_shown = self._times_tried = 0
        """Runs of traces that had failed before: how many failed again, and how many there were."""
        self._shown: tuple[Trace, Violation] | None = None
        self._reducer: Reducer | None = None
        self.history: History | None = None
        """That of the best trace, once it was recorded with the finding's failure."""

    def investigate(self, name: str, violation: Violation, trace: Trace, *, earlier: Trace | None) -> Trace | None:
        """Run the trace of a finding again; if it fails, reduce it, or the shorter one of an earlier campaign if that
        fails, too. Return the reduced trace, None if the trace did not fail again."""
        if not self.confirm(name, violation, trace, earlier=earlier):
            return None
        self.reduce(self._seconds)
        return self.finish()

    def confirm(self, name: str, violation: Violation, trace: Trace, *, earlier: Trace | None) -> bool:
        """Run the trace of a finding again, and the shorter one of an earlier campaign. Return True if one fails."""
        self._name, self._signature, self._oracle = name, violation.signature, violation.oracle
        with self._patience():
            reproduced = self._shows(trace)
            if earlier and self._shows(earlier):
                trace, reproduced = earlier, True
                self._better(earlier)
        if reproduced and self._shown:
            accepts = same_symptom(self._shown[1], trace)
            self._reducer = Reducer(trace, self._signature, self._run, 0.0, self._better, accepts)
        else:
            self._settle(reproduced=reproduced, reduced=False)
        return self._reducer is not None

    @property
    def is_confirmed(self) -> bool:
        """Return True once the trace has failed again."""
        return self._reducer is not None

    @property
    def shown(self) -> tuple[Trace, Violation]:
        """Return the best trace with its violation."""
        assert self._shown and self._reducer
        return self._reducer.best, self._shown[1]

    def reduce(self, seconds: float) -> bool:
        """Reduce a confirmed finding for some time. Return True if it does not get any shorter."""
        assert self._reducer
        with self._patience():
            return self._reducer.go_on(seconds)

    def finish(self, *, reduced: bool = True) -> Trace:
        """Record how it ended, with the explanation of a trace that is `reduced`. Return the best trace."""
        assert self._reducer
        best = self._reducer.best
        if reduced and self._oracle not in UNEXPLAINED:
            with self._patience():
                self._explain(best)
        self._settle(reproduced=True, reduced=reduced)
        return best

    def _settle(self, *, reproduced: bool, reduced: bool) -> None:
        with self._lock:
            finding = self._store.settle(
                self._name,
                reproduced=reproduced,
                shown=self._times_shown,
                tried=self._times_tried,
                reduced=reduced,
            )
        self._emit(Improved(finding))

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """Wait less long for a hang than a campaign does."""
        worker, patience = self.worker, self.worker.trace_seconds
        if self._oracle == "HANG":
            worker.trace_seconds = max(patience * HANG_PATIENCE, min(HANG_SECONDS_MIN, patience))
        try:
            yield
        finally:
            worker.trace_seconds = patience

    def _explain(self, trace: Trace) -> None:
        """Save the explanation of the best trace, and count how often it fails."""
        outcome, history = self.worker.explain(trace)
        if self._count(outcome) and outcome.violation:
            self.history = history
            with self._lock:
                phrase = headline_of(trace, history, outcome.violation, ()).title
                self._store.explain(self._name, outcome.violation, history, finding_text(history), phrase)
        for _ in range(RATE_RUNS if history.moments else 0):  # restarting a worker is expensive
            self._shows(trace)

    def _run(self, trace: Trace) -> Outcome:
        outcome = self.worker.run(trace, twice=self._oracle == "DETERMINISM")
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
