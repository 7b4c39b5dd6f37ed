"""The thread of one worker: first the chores, then new traces until there are none, and the findings that they give.

Chores are findings that an earlier process did not finish reducing, the corpus of the folder and, with the source
"hypothesis", the traces of its database. They come before new traces, so that rare states are reached first.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ...targets.base.protocol import TargetError
from ...targets.base.trace import Trace, TraceError
from ..campaign_events import Finding, Found, Notice, TraceDone, TracesDone, WorkerLost, WorkerState
from ..draw.files import load_trace
from ..group.conditions import evidence_of, with_conditions
from ..group.known import Known
from ..group.same_failure import UNEXPLAINED
from ..group.store import OutputError
from ..judge.violation import Violation
from ..workers.client import InternalError, Stopped
from ..workers.losses import Counts, Ran
from ..workers.messages import Fuzz
from ..workers.protocol import NodeLost, NodeRefused, Worker
from .recheck import Confirmation
from .schedule import Schedule
from .sorting import SORT_SECONDS, Sorter
from .state import CampaignState, Claim, Unsorted

Chore = Callable[["WorkerLoop"], None]

OVERTIME_SECONDS = 5.0
"""A reduction may take this long even if the campaign's time is over by then."""
CORPUS_INDEX = -1
"""Number of a trace of the corpus."""


def plan_chores(state: CampaignState) -> list[Chore]:
    """Return the chores of a campaign."""
    chores: list[Chore] = [
        partial(WorkerLoop.learn_known, entry=entry)
        for entry in with_conditions(state.settings.known, state.settings.target)
    ]
    for finding in state.store.findings.values():
        if finding.reproduced and not finding.reduced:
            chores.append(partial(WorkerLoop.reduce_again, finding=finding))
    chores += [partial(WorkerLoop.run_again, path=path) for path in state.corpus.files()]
    if state.settings.source == "hypothesis" and not state.settings.earlier:  # else they are this campaign's own
        chores.append(WorkerLoop.run_kept)
    return chores


class WorkerLoop:
    """One worker and its thread. `busy` while it investigates a finding: a limit lets it finish that."""

    def __init__(self, number: int, state: CampaignState, worker: Worker, schedule: Schedule[Chore]) -> None:
        self.number = number
        self.worker = worker
        self.busy = False
        self._state = state
        self._schedule = schedule

    def work(self) -> None:
        """Run chores and traces: the body of the thread. Errors become events."""
        state = self._state
        try:
            with self.worker:
                while not self._serve():
                    pass
        except Stopped:
            pass
        except (OutputError, TargetError, TraceError, InternalError) as error:
            state.events.put(error)
        except Exception as error:
            state.events.put(InternalError(f"{type(error).__name__}: {error}", traceback.format_exc()))
        self.busy = False
        self._announce("ended")

    def _serve(self) -> bool:
        """Work on one node. Return True once nothing is left, False if the worker has to be placed elsewhere."""
        state, joined = self._state, ""
        self._announce("starting")
        try:
            ready = self.worker.start()
            joined = self.worker.node
            state.node_joined(ready, joined)
            self._announce("fuzzing")
            while work := self._schedule.next(self.worker.batch):
                try:
                    self._do(work)
                finally:
                    self._schedule.finished()
        except NodeRefused as error:
            state.node_left(error.node, "refused", str(error))
            return False
        except NodeLost as error:
            self.busy = False
            state.node_left(joined, "lost", str(error))
            return False
        except BaseException:
            state.node_left(joined)
            raise
        state.node_left(joined)
        return True

    def _do(self, work: Chore | Fuzz) -> None:
        """Do a chore or run traces. What a lost node leaves goes back to the schedule."""
        if isinstance(work, Fuzz):
            self._fuzz(work)
            return
        try:
            work(self)
        except NodeLost:
            self._schedule.put(work)
            raise

    def _fuzz(self, batch: Fuzz) -> None:
        left = set(batch.indexes)
        try:
            for ran in self.worker.fuzz(batch):
                if isinstance(ran, Counts):
                    left.difference_update(ran.indexes)
                    self._state.add(ran, self.worker.node)
                    self._state.emit(TracesDone(self.number, len(ran.indexes), ran.steps, self.worker.node))
                else:
                    left.discard(ran.index)
                    self._take(ran)
                if self._state.stopping.is_set():
                    break
        finally:
            if left:
                self._state.give_back(left)

    def learn_known(self, entry: Known) -> None:
        """Collect the evidence of a known bug that goes by its condition, from the traces of its entry."""
        evidence, problem = evidence_of(entry, self.worker, self._state.capabilities, SORT_SECONDS)
        if problem:
            self._state.emit(Notice(f"known bug {entry.title}: {problem}"))
        if evidence:
            self._state.learn_known(entry, evidence)

    def reduce_again(self, finding: Finding) -> None:
        """Continue a reduction that was cut off."""
        try:
            trace = load_trace(finding.trace)
            violation = self.worker.run(trace, twice=finding.oracle == "DETERMINISM").violation
        except TraceError as error:  # the target may have changed since then
            self._state.emit(Notice(f"{finding.id} is not reduced: {error}"))
            return
        if violation and violation.signature == finding.signature:
            self._investigate(Claim(finding, None), violation, trace)

    def run_again(self, path: Path) -> None:
        """Run a trace of the folder's corpus. It is not counted, but its violation is a finding."""
        state = self._state
        trace = state.corpus.load(path)
        if isinstance(trace, str):
            state.emit(Notice(trace))
            return
        try:
            outcome = self.worker.run(trace)
        except TraceError as error:  # the target has changed since then
            state.emit(Notice(f"{path}: {error}"))
            return
        if outcome.violation is None:
            state.keep(trace, outcome.reached, path)
        else:
            self.look_into(outcome.violation, trace)

    def run_kept(self) -> None:
        """Run the traces of Hypothesis's database, which are not counted, either."""
        from ..workers.hypothesis_worker import HypothesisWorker

        assert isinstance(self.worker, HypothesisWorker)
        for trace in self.worker.kept():
            try:
                violation = self.worker.run(trace).violation
            except TraceError as error:  # the target has changed since then
                self._state.emit(Notice(f"a trace of Hypothesis's database: {error}"))
                continue
            if violation:
                self.look_into(violation, trace)

    def look_into(self, violation: Violation, trace: Trace) -> None:
        """Make a failure of a trace that is not counted a finding, or a part of one, and investigate it."""
        self._look_into(self._state.claim(violation, trace, CORPUS_INDEX), violation, trace)

    def _take(self, ran: Ran) -> None:
        """Count a trace, and look into its violation."""
        state, violation = self._state, ran.outcome.violation
        self.busy = violation is not None
        node = self.worker.node
        taken = state.take(ran, node)
        signature = violation.signature if violation else ""
        state.emit(TraceDone(self.number, ran.index, ran.outcome.steps, signature, node))
        if ran.lost:
            state.emit(WorkerLost(self.number, ran.index, ran.lost, node))
        if violation and ran.trace:
            self._look_into(taken, violation, ran.trace)
        self.busy = False

    def _look_into(self, taken: Claim | Unsorted | None, violation: Violation, trace: Trace) -> None:
        """Investigate the first failure with its signature, and sort a further one by its cause."""
        state = self._state
        if isinstance(taken, Claim):
            state.emit(Found(taken.finding, self.worker.node))
            self._investigate(taken, violation, trace)
        elif isinstance(taken, Unsorted):
            self.busy = True
            self._announce(f"sorting {violation.signature}")
            if claim := Sorter(state, self.worker).sort(taken):
                self._investigate(claim, violation, load_trace(claim.finding.trace))
            self.busy = False
            self._announce("fuzzing")

    def _investigate(self, claim: Claim, violation: Violation, trace: Trace) -> None:
        """Confirm, reduce and sort a finding. If the node is lost meanwhile, another worker starts again."""
        try:
            self._confirm(claim, violation, trace)
        except NodeLost:
            self._schedule.put(partial(WorkerLoop.reduce_again, finding=claim.finding))
            raise

    def _confirm(self, claim: Claim, violation: Violation, trace: Trace) -> None:
        state = self._state
        self.busy = True
        self._announce(f"reducing {claim.finding.id}")
        left, seconds = state.left(), state.settings.reduce_seconds
        if left is not None:
            seconds = min(seconds, max(left, OVERTIME_SECONDS))
        confirmation = Confirmation(state.store, state.lock, self.worker, state.emit, seconds)
        name = claim.finding.id
        best = confirmation.investigate(name, violation, trace, earlier=claim.shorter)
        if best and violation.oracle not in UNEXPLAINED:
            Sorter(state, self.worker).settle(name, best, seconds, confirmation.history)
        self.busy = False
        self._announce("fuzzing")

    def _announce(self, words: str) -> None:
        self._state.emit(WorkerState(self.number, words, self.worker.node))
