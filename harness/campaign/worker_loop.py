"""The thread of one worker: first the chores, then new traces until there are none, and the findings that they give.

Chores are the corpus of the folder and, with the source "hypothesis", the traces of its database. They come before new
traces, so that rare states are reached first. A failure is looked into as `triage` allows, by whichever worker is free.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from msgspec import structs

from ...targets.base.protocol import TargetError
from ...targets.base.trace import Trace, TraceError
from ..campaign_events import Found, Graded, Notice, TraceDone, TracesDone, WorkerGivenUp, WorkerLost, WorkerState
from ..campaign_summary import Cause, Finding, Severity, Waiting
from ..draw.trace_files import load_trace
from ..group.findings.finding_store import OutputError
from ..group.findings.measured_reach import severity_on
from ..group.known.conditions import evidence_of, with_conditions
from ..group.known.fixes import packaged_traces
from ..group.known.known_toml import Known
from ..group.known.recognition import Explained
from ..group.reduction.still_fails import UNEXPLAINED
from ..judge.environment_fault import EnvironmentFault, FaultyEnvironment
from ..judge.violation import Violation
from ..workers.messages import Fuzz
from ..workers.protocol import NodeLost, NodeRefused, Worker
from ..workers.results import Counts, Ran
from ..workers.worker_client import InternalError, Stopped
from .recheck import Confirmation
from .schedule import Schedule
from .shared_state import CampaignState, Claim, Unsorted
from .sorting import SORT_SECONDS, Sorter
from .triage import EXPLAINED, FINDING, FURTHER, LEFT_BEHIND, NEW, TEST

Chore = Callable[["WorkerLoop"], "Chore | None"]
"""Returns what has to follow at once. If a node is lost, this step alone is done again."""

OVERTIME_SECONDS = 5.0
"""A reduction may take this long even if the campaign's time is over by then."""
SLICE_SECONDS = 5.0
"""A reduction is interrupted after this time: another finding may have had less."""
SEVERITY_SECONDS = 10.0
"""Time to find out how much one finding matters."""
LOOKS = 2
"""So many further failures of each symptom are compared with known bugs in time for the next test."""
MORE_LOOKS = 12
"""Beyond that, so many unfamiliar ones at a time (`familiar`), in turn with slices of explained findings."""
PROOF_MIN = 6
"""Further failures that wait for it are worth the start of a process that lacks some fixes."""
UNSETTLED_MAX = 40
"""Beyond that, further failures that known bugs explain are only counted by their signature."""
CORPUS_INDEX = -1
"""Number of a trace of the corpus."""


def plan_chores(state: CampaignState) -> list[Chore]:
    """Return the chores of a campaign. What an earlier process or campaign did not look into waits from now on."""
    chores: list[Chore] = [
        partial(WorkerLoop.learn_known, entry=entry)
        for entry in with_conditions(state.settings.known, state.settings.target)
    ]
    for number, entry in enumerate(with_conditions(state.packaged.values(), state.settings.target)):
        state.triage.put(partial(WorkerLoop.learn_known, entry=entry), FINDING, NEW, 1, number)
    chores += [partial(WorkerLoop.run_again, path=path) for path in state.corpus.files()]
    if state.settings.changed and not state.settings.earlier:
        chores += [partial(WorkerLoop.run_packaged, path=path) for path in packaged_traces(state.settings.target)]
    if state.settings.source == "hypothesis" and not state.settings.earlier:  # else they are this campaign's own
        chores.append(WorkerLoop.run_kept)
    for finding in state.store.findings.values():
        if finding.unfinished:
            state.triage.put(partial(WorkerLoop.reduce_again, finding=finding), FINDING, NEW, 0, finding.index)
        elif finding.reduced and not finding.severity:
            state.triage.put(partial(WorkerLoop.grade, name=finding.id), FINDING, NEW, 0, finding.index)
    for number, finding in enumerate(state.left_behind()):
        state.triage.put(partial(WorkerLoop.take_up, finding=finding), LEFT_BEHIND, 0, number)
    for one in state.backlog.entries():
        state.triage.put(partial(WorkerLoop.sort_again, kept=one), LEFT_BEHIND, 1, one.index)
    return chores


class Case:
    """A finding that is being reduced, slice by slice."""

    def __init__(self, claim: Claim, violation: Violation, trace: Trace, confirmation: Confirmation) -> None:
        self.name = claim.finding.id
        self.violation = violation
        self.trace = trace
        self.index = claim.finding.index
        self.confirmation = confirmation
        self.seconds = 0.0
        """Time that its reduction has taken."""
        self.slices = 0
        self.is_checked = False
        """True once it was compared with known bugs."""
        self.is_explained = False
        """True if known bugs explain it."""
        self.is_reduced = False


class WorkerLoop:
    """One worker and its thread. `busy` while it looks into a failure: a limit lets it finish that."""

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
        """Do a chore, and what follows, or run traces. What a lost node leaves goes back to the schedule."""
        if isinstance(work, Fuzz):
            self._fuzz(work)
            return
        try:
            follows = work(self)
        except NodeLost:
            self._schedule.put(work)
            raise
        except FaultyEnvironment as error:
            self._state.emit(Notice(f"an earlier trace was not run again: {error}"))
            return
        if follows:
            self._do(follows)

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
        if fault.is_shared:
            again = self._apart(batch, ran.index)
            if not (isinstance(again, Ran) and again.outcome.fault):
                self._count(again, left)
                return
            ran, fault = again, again.outcome.fault
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

    def _apart(self, batch: Fuzz, index: int) -> Ran | Counts:
        """Return the result of a trace in a process that shares no device: a fault of it is its own."""
        self._announce(f"running trace {index} in a process that shares no device")
        self.worker.pause(apart=True)
        again = next(iter(self.worker.fuzz(_only(batch, index))))
        self.worker.pause()
        self._announce("fuzzing")
        return again

    def _alone(self, batch: Fuzz, index: int, fault: EnvironmentFault) -> Ran | Counts | None:
        """Return the result of a trace alone on this node, None if the campaign stops before it has any."""
        self._announce(f"waiting to run trace {index} alone: {fault.kind}")
        self.worker.pause()
        with self._schedule.alone(self.worker.node) as is_alone:
            if not is_alone:
                return None
            self._announce(f"running trace {index} alone")
            again = next(iter(self.worker.fuzz(_only(batch, index))), None)
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

    def reduce_again(self, finding: Finding) -> Chore | None:
        """Continue with a finding that was cut off."""
        if finding.id not in self._state.store.findings:  # it was merged into another one meanwhile
            return None
        trace, violation = self._still_fails(finding)
        if not (trace and violation and violation.signature == finding.signature):
            return None
        return partial(WorkerLoop.confirm, claim=Claim(finding, None), violation=violation, trace=trace)

    def take_up(self, finding: Finding) -> Chore | None:
        """Take up a finding that an earlier campaign in this folder did not finish: it counts for this one now."""
        trace, violation = self._still_fails(finding)
        return self.look_into(violation, trace) if trace and violation else None

    def _still_fails(self, finding: Finding) -> tuple[Trace | None, Violation | None]:
        """Run the trace of a finding. Return None for one that cannot be read or run any more."""
        try:
            trace = load_trace(finding.trace)
            return trace, self.worker.run(trace, twice=finding.oracle == "DETERMINISM").violation
        except TraceError as error:  # the target may have changed since then
            self._state.emit(Notice(f"{finding.id} is not reduced: {error}"))
            return None, None

    def sort_again(self, kept: Waiting) -> Chore | None:
        """Sort a trace that an earlier process, or an earlier campaign in this folder, kept for later."""
        state = self._state
        try:
            trace = load_trace(state.backlog.path(kept))
            violation = self.worker.run(trace).violation
        except TraceError as error:  # the target may have changed since then
            state.emit(Notice(f"a failing trace that was kept is not looked into: {error}"))
            violation = None
        if violation and state.settings.earlier and kept.seed == state.settings.seed:  # it is counted already
            return self.sort(Unsorted(kept.finding, violation, trace, max(kept.index, CORPUS_INDEX), kept))
        follows = self.look_into(violation, trace) if violation else None  # that of an earlier campaign counts now
        state.looked_into(kept)
        return follows

    def run_again(self, path: Path) -> Chore | None:
        """Run a trace of the folder's corpus. It is not counted, but its violation is a finding."""
        state = self._state
        trace = state.corpus.load(path)
        if isinstance(trace, str):
            state.emit(Notice(trace))
            return None
        try:
            outcome = self.worker.run(trace)
        except TraceError as error:  # the target has changed since then
            state.emit(Notice(f"{path}: {error}"))
            return None
        state.replayed(trace, outcome)
        if outcome.violation:
            return self.look_into(outcome.violation, trace)
        state.keep(trace, outcome.reached, path)
        return None

    def run_packaged(self, path: Path) -> Chore | None:
        """Run a trace of the packaged corpus for the changed lines that it runs. It is not counted, either."""
        try:
            trace = load_trace(path)
            outcome = self.worker.run(trace)
        except TraceError:  # for another version, or with what this target does not have
            return None
        self._state.replayed(trace, outcome)
        return self.look_into(outcome.violation, trace) if outcome.violation else None

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
                self._do(partial(WorkerLoop.look_into, violation=violation, trace=trace))

    def look_into_at_once(self, violation: Violation, trace: Trace) -> None:
        """Look into a failure of a trace that is not counted, at the end of a campaign. At a time limit it is only
        confirmed."""
        self._do(partial(WorkerLoop.look_into, violation=violation, trace=trace))
        while self._state.left() != 0 and (task := self._state.triage.next(idle=True)):
            self._do(task)

    def look_into(self, violation: Violation, trace: Trace) -> Chore | None:
        """Make a failure of a trace that is not counted a finding, or a part of one. Return what confirms it."""
        return self._look_into(self._state.claim(violation, trace, CORPUS_INDEX), violation, trace)

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
            if confirm := self._look_into(taken, violation, ran.trace):
                self._do(confirm)
            while not state.stopping.is_set() and (task := state.triage.next()):
                self._do(task)
        self.busy = False

    def _look_into(self, taken: Claim | Unsorted | None, violation: Violation, trace: Trace) -> Chore | None:
        """Return what confirms the first failure with its signature; let a further one wait."""
        state = self._state
        if isinstance(taken, Claim):
            state.emit(Found(taken.finding, self.worker.node))
            return partial(WorkerLoop.confirm, claim=taken, violation=violation, trace=trace)
        if isinstance(taken, Unsorted) and (waits := state.let_wait(taken)):
            failure, seen, is_familiar = waits
            if (recognizer := state.recognizer) and seen < LOOKS:
                look = partial(WorkerLoop.look, failure=failure, seen=seen)
                order = TEST, 2 * recognizer.tests + 1, seen, failure.index
                state.triage.put(look, FINDING, *order, compares=True)
            elif recognizer and not is_familiar and state.let_look(MORE_LOOKS):
                look = partial(WorkerLoop.look_extra, failure=failure, seen=seen)
                turn = state.extra_looks // MORE_LOOKS  # in turn with the slices of explained findings
                state.triage.put(look, FINDING, EXPLAINED, turn, failure.index, compares=True)
            else:
                self._let_sort(failure, seen, is_familiar=is_familiar)
        return None

    def _let_sort(self, failure: Unsorted, seen: int, *, is_familiar: bool) -> None:
        """Let a further failure wait until it is sorted, a familiar one behind the others."""
        if is_familiar:
            sort = partial(WorkerLoop.sort, failure=failure)
        else:
            sort = partial(WorkerLoop.sort_unfamiliar, failure=failure, seen=seen)
        compares = self._state.recognizer is not None
        self._state.triage.put(sort, FURTHER, is_familiar, seen, failure.index, compares=compares)

    def _let_sort_new(self, failure: Unsorted, seen: int) -> None:
        """Let a further failure that known bugs do not explain wait until it is sorted."""
        sort = partial(WorkerLoop.sort, failure=failure, is_new=True)
        self._state.triage.put(sort, FURTHER, False, seen, failure.index)

    def _give_up_on(self, violation: Violation, error: FaultyEnvironment) -> None:
        self._state.emit(Notice(f"{violation.signature} is not looked into any further: {error}"))
        self.busy = False
        self._announce("fuzzing")

    def look(self, failure: Unsorted, seen: int) -> None:
        """Compare a further failure of a signature with known bugs; if they do not explain it, it is sorted later."""
        if explained := self._explained(failure.trace, failure.violation):
            self._let_settle(explained, failure)
        else:
            self._let_sort_new(failure, seen)
        self._announce("fuzzing")

    def look_extra(self, failure: Unsorted, seen: int) -> None:
        """Compare a further failure that `CampaignState.let_look` allowed, unless it is familiar by now."""
        self._state.extra_look_begins()
        if self._state.is_familiar(failure):
            self._let_sort(failure, seen, is_familiar=True)
        else:
            self.look(failure, seen)

    def sort_unfamiliar(self, failure: Unsorted, seen: int) -> Chore | None:
        """Sort a further failure, but later if it is familiar by now."""
        if self._state.is_familiar(failure):
            self._let_sort(failure, seen, is_familiar=True)
            return None
        return self.sort(failure)

    def sort(self, failure: Unsorted, *, is_new: bool = False) -> Chore | None:
        """Sort a further failure of a signature by its cause. Return what confirms a finding of its own. `is_new` if it
        is clear that known bugs do not explain it."""
        state, claim = self._state, None
        self.busy = True
        self._announce(f"sorting {failure.violation.signature}")
        try:
            explained = None if is_new else self._explained(failure.trace, failure.violation)
            if explained:
                self._let_settle(explained, failure)
            else:
                claim = Sorter(state, self.worker).sort(failure)
                state.looked_into(failure.kept)
        except FaultyEnvironment as error:
            self._give_up_on(failure.violation, error)
        self.busy = False
        self._announce("fuzzing")
        if claim is None:
            return None
        trace = load_trace(claim.finding.trace)
        return partial(WorkerLoop.confirm, claim=claim, violation=failure.violation, trace=trace)

    def _let_settle(self, explained: Explained, failure: Unsorted) -> None:
        """Let a further failure that known bugs explain wait until it is settled which one."""
        state = self._state
        if len(state.unsettled()) >= UNSETTLED_MAX:
            self._settle_further(Cause(""), failure)
            return
        state.let_settle(explained, partial(WorkerLoop._settle_further, failure=failure))
        self._let_prove()

    def _settle_further(self, cause: Cause | None, failure: Unsorted) -> None:
        """Count a failure for the known bug that explains it; without an answer it is sorted like a new one."""
        if cause is None:
            self._let_sort_new(failure, 0)
            return
        if cause.name:
            self._state.explained(cause.name, failure.trace, failure.violation)
        Sorter(self._state, self.worker).sort_known(failure, cause)
        self._state.looked_into(failure.kept)

    def confirm(self, claim: Claim, violation: Violation, trace: Trace) -> None:
        """Confirm a finding; its reduction waits."""
        state, name = self._state, claim.finding.id
        self.busy = True
        self._announce(f"confirming {name}")
        confirmation = Confirmation(state.store, state.lock, self.worker, state.emit, 0.0)
        try:
            with state.triage.timed("confirming"):
                if confirmation.confirm(name, violation, trace, earlier=claim.shorter):
                    self._let_wait(Case(claim, violation, trace, confirmation))
        except FaultyEnvironment as error:
            self._give_up_on(violation, error)
        self.busy = False
        self._announce("fuzzing")

    def _let_wait(self, case: Case) -> None:
        order = EXPLAINED if case.is_explained else NEW, case.slices, case.index
        compares = self._state.recognizer is not None and not case.is_checked
        self._state.triage.put(partial(WorkerLoop.go_on, case=case), FINDING, *order, compares=compares)

    def go_on(self, case: Case) -> None:
        """Look into a finding for a while: reduce it; once that is done, explain it and sort it by its cause."""
        if case.name not in self._state.store.findings:  # it was merged into another one meanwhile
            return
        self.busy = True
        self._announce(f"reducing {case.name}")
        case.confirmation.worker = self.worker
        try:
            self._go_on(case)
        except FaultyEnvironment as error:
            self._give_up_on(case.violation, error)
        self.busy = False
        self._announce("fuzzing")

    def _go_on(self, case: Case) -> None:
        state, limit = self._state, self._state.settings.reduce_seconds
        if not case.is_checked:
            case.is_checked = True
            if self._is_explained(case, case.trace):
                return
        left, began = state.left(), time.monotonic()
        overtime = max(left, OVERTIME_SECONDS) if left is not None else limit
        with state.triage.timed("reducing"):
            is_reduced = case.confirmation.reduce(min(SLICE_SECONDS, limit - case.seconds, overtime))
            case.seconds += time.monotonic() - began
            case.slices += 1
            if not is_reduced and case.seconds < limit and state.left() != 0:
                self._let_wait(case)
                return
            best = case.confirmation.finish()
        case.is_reduced = True
        if case.is_explained and self._is_explained(case, best):  # a shorter trace says more
            return
        if case.violation.oracle not in UNEXPLAINED:
            Sorter(state, self.worker).settle(case.name, best, min(limit, overtime), case.confirmation.history)
        self._let_grade(case)

    def _let_grade(self, case: Case) -> None:
        self._state.triage.put(partial(WorkerLoop.grade, name=case.name), FINDING, NEW, 0, case.index)

    def grade(self, name: str) -> None:
        """Find out how much a reduced finding matters."""
        state, left = self._state, self._state.left()
        finding = state.store.findings.get(name)
        if finding is None:  # it was merged into another one meanwhile
            return
        self.busy = True
        self._announce(f"finding out how much {name} matters")
        seconds = SEVERITY_SECONDS if left is None else min(SEVERITY_SECONDS, max(left, OVERTIME_SECONDS))
        patience = self.worker.trace_seconds
        try:
            self.worker.trace_seconds = min(patience, seconds)  # a change may make it hang
            with state.triage.timed("severity"):
                severity = self._severity(finding, seconds)
            with state.lock:
                if severity and name in state.store.findings:
                    state.emit(Graded(state.store.grade(name, severity)))
                    state.save_locked()
        except FaultyEnvironment as error:
            state.emit(Notice(f"how much {name} matters was not found out: {error}"))
        finally:
            self.worker.trace_seconds = patience
        self.busy = False
        self._announce("fuzzing")

    def _severity(self, finding: Finding, seconds: float) -> Severity | None:
        """Return how much a finding matters, None if its trace does not fail again."""
        state = self._state
        trace, violation = self._still_fails(finding)
        if not (trace and violation and violation.signature == finding.signature):
            return None
        target, version = state.settings.target, state.settings.launch.version
        return severity_on(target, version, trace, violation, self.worker, state.capabilities, seconds)

    def _is_explained(self, case: Case, trace: Trace) -> bool:
        """Return True if known bugs explain a finding; it then waits until it is settled which one."""
        state = self._state
        explained = self._explained(trace, case.violation)
        if explained is None:
            return False
        case.is_explained = explained.is_finding = True
        if not case.is_reduced:
            case.confirmation.finish(reduced=False)
        with state.lock:
            state.store.recognize(case.name, Cause(""), case.violation)
        self._let_settle_case(case, explained)
        return True

    def _let_settle_case(self, case: Case, explained: Explained) -> None:
        settle = partial(WorkerLoop._settle_case, case=case, explained=explained)
        self._state.let_settle(explained, settle)
        self._let_prove()

    def _settle_case(self, cause: Cause | None, case: Case, explained: Explained) -> None:
        """Take it that a bug explains a finding. Without its name, or an answer, the finding is reduced, and compared
        once more; a reduced one waits for the tests with few patches."""
        if case.name not in self._state.store.findings:
            return
        if cause and cause.name:
            self._state.explained(cause.name, case.trace, case.violation)
        elif cause and explained.tries_few:  # it counts as one without a name already
            return
        if cause and (cause.name or case.is_reduced):
            Sorter(self._state, self.worker).recognized(case.name, cause, case.violation)
            if case.is_reduced and not cause.severity:
                self._let_grade(case)
            if not cause.name:
                explained.tries_few = True
                self._let_settle_case(case, explained)
        else:
            self._let_wait(case)

    def _explained(self, trace: Trace, violation: Violation) -> Explained | None:
        """Return a failure that known bugs explain, None for another one."""
        state, recognizer = self._state, self._state.recognizer
        if recognizer is None or violation.oracle in UNEXPLAINED:
            return None
        self._announce(f"comparing {violation.signature} with known bugs")
        try:
            with state.triage.timed("identity"), state.triage.comparing():
                explained = recognizer.explains(trace, violation)
        except TargetError as error:
            self._recognize_no_more(error)
            return None
        state.compared(trace, violation, is_known=explained is not None)
        return explained

    def _let_prove(self) -> None:
        """Let a test wait if there are enough failures for it: a finding, or some further ones."""
        state, recognizer = self._state, self._state.recognizer
        waiting = state.unsettled()
        if recognizer is None or not recognizer.can_prove(waiting):
            return
        has_finding = any(failure.is_finding for failure in waiting)
        rank = FINDING if has_finding else FURTHER
        if (has_finding or len(waiting) >= PROOF_MIN) and state.let_prove(rank):
            order = (TEST, 2 * recognizer.tests) if has_finding else (0,)
            state.triage.put(partial(WorkerLoop.prove, rank=rank), rank, *order)

    def prove(self, rank: int) -> None:
        """Find out which known bugs the failures are that wait for it: run one test on all of them."""
        state, recognizer = self._state, self._state.recognizer
        failures = state.prove(rank)
        if not failures:
            return
        self.busy = True
        self._announce("testing which known bug explains a failure")
        settled: Sequence[tuple[Explained, Cause | None]] = [(failure, None) for failure in failures]
        try:
            if recognizer:
                with state.triage.timed("identity"):
                    settled = recognizer.prove(failures, begun=self._let_prove)
        except TargetError as error:
            self._recognize_no_more(error)
        for failure, cause in settled:
            if then := state.settle(failure):
                then(self, cause)
        self._let_prove()
        self.busy = False
        self._announce("fuzzing")

    def _recognize_no_more(self, error: TargetError) -> None:
        self._state.emit(Notice(f"failures are not compared with known bugs any more: {error}"))
        recognizer, self._state.recognizer = self._state.recognizer, None
        if recognizer:
            recognizer.give_up()

    def _announce(self, words: str) -> None:
        self._doing = words
        self._state.emit(WorkerState(self.number, words, self.worker.node))


def _only(batch: Fuzz, index: int) -> Fuzz:
    """Return a batch of one of its traces."""
    traces = batch.traces and [batch.traces[batch.indexes.index(index)]]
    return structs.replace(batch, first=index, count=1, traces=traces)
