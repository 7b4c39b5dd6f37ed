"""The thread of one worker: first the chores, then new traces until there are none, and the findings that they give.

Chores are findings that an earlier process did not finish reducing, the corpus of the folder and, with the source
"hypothesis", the traces of its database. They come before new traces, so that rare states are reached first.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import structs

from ...targets.base.protocol import TargetError
from ...targets.base.trace import Trace, TraceError
from ..campaign_events import Finding, Found, Notice, TraceDone, TracesDone, WorkerGivenUp, WorkerLost, WorkerState
from ..draw.files import load_trace
from ..group.conditions import evidence_of, with_conditions
from ..group.known import Known
from ..group.same_symptom import UNEXPLAINED
from ..group.store import OutputError
from ..judge.environment_fault import EnvironmentFault, FaultyEnvironment
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
        self._doing = ""
        worker.on_busy = self._waits
        self._state = state
        self._schedule = schedule
        self._has_given_up = False
        """True once its node has too little memory for it beside the others."""

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
        """Work on one node. Return True once nothing is left, False if the worker has to start again or elsewhere."""
        state, schedule, joined = self._state, self._schedule, ""
        self._announce("starting")
        schedule.join(joined)
        try:
            ready = self.worker.start()
            schedule.move(joined, self.worker.node)
            joined = self.worker.node
            state.node_joined(ready, joined)
            self._announce("fuzzing")
            while not self._has_given_up and (work := schedule.next(self.worker.batch, joined, self._rest)):
                try:
                    self._do(work)
                finally:
                    schedule.finished()
        except FaultyEnvironment as error:  # the worker cannot start, or not again
            self.busy = False
            state.node_left(joined)
            if self._give_up(joined, CORPUS_INDEX, error.fault):
                return True
            if not state.began:
                raise
            state.try_later(error.fault)
            return False
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
        finally:
            schedule.leave(joined, is_member=not self._has_given_up)
        state.node_left(joined)
        return True

    def _waits(self, what: str) -> None:
        """Show what the worker waits for; "" shows again what it does."""
        self._state.emit(WorkerState(self.number, what or self._doing, self.worker.node))

    def _rest(self) -> None:
        """End the process, since another worker wants its node for itself."""
        self._announce("waiting for a trace that runs alone")
        self.worker.pause()

    def _give_up(self, node: str, index: int, fault: EnvironmentFault) -> bool:
        """Let this worker end for want of memory. False if it is the only one of its node: it goes on."""
        left = self._schedule.give_up(node)
        if left:
            self._has_given_up = True
            self._state.given_up(WorkerGivenUp(self.number, left, index, fault.kind, fault.message, node))
        return self._has_given_up

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
        except FaultyEnvironment as error:
            self._state.emit(Notice(f"an earlier trace was not run again: {error}"))

    def _fuzz(self, batch: Fuzz) -> None:
        left = set(batch.indexes)
        try:
            for ran in self.worker.fuzz(batch):
                if isinstance(ran, Ran) and ran.outcome.fault:
                    self._try_alone(batch, ran, ran.outcome.fault, left)
                else:
                    self._count(ran, left)
                if self._has_given_up or self._state.stopping.is_set():
                    break
        finally:
            if left:
                self._state.give_back(left)

    def _count(self, ran: Ran | Counts, left: set[int]) -> None:
        """Take what ran of a batch. `left` are the numbers that have not."""
        if isinstance(ran, Counts):
            left.difference_update(ran.indexes)
            self._state.add(ran, self.worker.node)
            self._state.emit(TracesDone(self.number, len(ran.indexes), ran.steps, self.worker.node))
        else:
            left.discard(ran.index)
            self._take(ran)

    def _try_alone(self, batch: Fuzz, ran: Ran, fault: EnvironmentFault, left: set[int]) -> None:
        """Run a trace for which there was no memory, or no device, again: in a new process, alone on its node.

        If it runs, the load was too much, and this worker gives up. Nothing is taken if the campaign stops before.
        """
        state, node = self._state, self.worker.node
        again: Ran | Counts | None = ran
        if not state.failed_alone(ran.trace):
            again = self._alone(batch, ran.index, fault)
        elif fault.kind != "out of memory":  # the process cannot use its device any more
            self.worker.pause()
        if again is None:
            return
        if isinstance(again, Ran) and again.outcome.fault:
            left.discard(ran.index)
            state.not_run(self.number, again, again.outcome.fault, node)
        else:
            state.ran_alone()
            self._give_up(node, ran.index, fault)
            self._count(again, left)
        self._announce("fuzzing")

    def _alone(self, batch: Fuzz, index: int, fault: EnvironmentFault) -> Ran | Counts | None:
        """Return the result of a trace alone on this node, None if the campaign stops before it has any."""
        self._announce(f"waiting to run trace {index} alone: {fault.kind}")
        self.worker.pause()
        with self._schedule.alone(self.worker.node) as is_alone:
            if not is_alone:
                return None
            self._announce(f"running trace {index} alone")
            traces = batch.traces and [batch.traces[batch.indexes.index(index)]]
            again = next(iter(self.worker.fuzz(structs.replace(batch, first=index, count=1, traces=traces))), None)
            if isinstance(again, Ran) and again.outcome.fault:
                self.worker.pause()
                self._state.try_later(again.outcome.fault, again.trace)
            return again

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
        if ran.outcome.opened:
            state.emit(TraceDone(self.number, ran.index, ran.outcome.steps, signature, node))
        if ran.lost:
            state.emit(WorkerLost(self.number, ran.index, ran.lost, node))
        if violation and ran.trace:
            self._look_into(taken, violation, ran.trace)
        self.busy = False

    def _look_into(self, taken: Claim | Unsorted | None, violation: Violation, trace: Trace) -> None:
        """Investigate the first failure with its signature, and sort a further one by its cause."""
        try:
            self._sort_or_investigate(taken, violation, trace)
        except FaultyEnvironment as error:
            self._state.emit(Notice(f"{violation.signature} is not looked into any further: {error}"))
            self.busy = False
            self._announce("fuzzing")

    def _sort_or_investigate(self, taken: Claim | Unsorted | None, violation: Violation, trace: Trace) -> None:
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
        self._doing = words
        self._state.emit(WorkerState(self.number, words, self.worker.node))
