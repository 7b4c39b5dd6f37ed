"""What one worker's thread does: first the chores, then new traces until there are none, and whatever they find.

Chores are what an earlier process could not finish reducing, and the corpus of the folder: queued before new traces,
so that rare states and known trouble come first.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from ...targets.base.protocol import TargetError
from ...targets.base.trace import Trace, TraceError
from ..events import Finding, Found, Notice, TraceDone, WorkerLost, WorkerState
from ..findings.store import OutputError
from ..traces.files import load_trace
from ..traces.violation import Violation
from ..workers.client import InternalError, Ran, Stopped, Worker
from .confirm import Case
from .state import Claim, Desk

if TYPE_CHECKING:
    from collections.abc import Callable

    Chore = Callable[["Shift"], None]

OVERTIME_SECONDS = 5.0
"""What a reduction may take at least, even if the campaign's time is over by then."""
CORPUS_INDEX = -1
"""Number of a trace that was not drawn."""


def plan_chores(desk: Desk) -> SimpleQueue[Chore]:
    """What comes before new traces."""
    chores: SimpleQueue[Chore] = SimpleQueue()
    for finding in desk.store.findings.values():
        if finding.reproduced and not finding.reduced:
            chores.put(partial(Shift.reduce_again, finding=finding))
    for path in desk.keepsakes.files():
        chores.put(partial(Shift.run_again, path=path))
    return chores


class Shift:
    """One worker and its thread. `busy` while it looks into a finding: a limit lets it end that."""

    def __init__(self, number: int, desk: Desk, worker: Worker, chores: SimpleQueue[Chore]) -> None:
        self.number = number
        self.worker = worker
        self.busy = False
        self._desk = desk
        self._chores = chores

    def work(self) -> None:
        """Body of the thread. Errors become records."""
        desk = self._desk
        try:
            with self.worker:
                self._state("starting")
                desk.ready(self.worker.start())
                self._state("fuzzing")
                for chore in self._all_chores():
                    chore(self)
                while batch := desk.next_batch():
                    for ran in self.worker.fuzz(batch):
                        self._take(ran)
                        if desk.stopping.is_set():
                            break
        except Stopped:
            pass
        except (OutputError, TargetError, TraceError, InternalError) as error:
            desk.records.put(error)
        except Exception as error:
            desk.records.put(InternalError(f"{type(error).__name__}: {error}", traceback.format_exc()))
        self._state("ended")

    def _all_chores(self) -> Iterator[Chore]:
        while not self._desk.stopping.is_set():
            try:
                yield self._chores.get_nowait()
            except Empty:
                return

    def reduce_again(self, finding: Finding) -> None:
        """A finding whose reduction was cut off."""
        try:
            trace = load_trace(finding.trace)
        except TraceError as error:
            self._desk.say(Notice(str(error)))
            return
        violation = self.worker.run(trace, twice=finding.oracle == "DETERMINISM").violation
        if violation and violation.signature == finding.signature:
            self._investigate(Claim(finding, None), violation, trace)

    def run_again(self, path: Path) -> None:
        """A trace of the folder's corpus. It is not counted, but what it finds is a finding."""
        desk = self._desk
        trace = desk.keepsakes.load(path)
        if isinstance(trace, str):
            desk.say(Notice(trace))
            return
        try:
            outcome = self.worker.run(trace)
        except TraceError as error:  # the target has changed since then
            desk.say(Notice(f"{path}: {error}"))
            return
        if outcome.violation is None:
            desk.keep(trace, outcome.reached, path)
        elif claim := desk.claim(outcome.violation, trace, CORPUS_INDEX):
            desk.say(Found(claim.finding))
            self._investigate(claim, outcome.violation, trace)

    def _take(self, ran: Ran) -> None:
        """Count a trace, and look into its violation if it is the first of its signature."""
        desk, violation = self._desk, ran.outcome.violation
        self.busy = violation is not None
        claim = desk.take(ran)
        desk.say(TraceDone(self.number, ran.index, ran.outcome.steps, violation.signature if violation else ""))
        if ran.lost:
            desk.say(WorkerLost(self.number, ran.index, ran.lost))
        if claim and violation and ran.trace:
            desk.say(Found(claim.finding))
            self._investigate(claim, violation, ran.trace)
        self.busy = False

    def _investigate(self, claim: Claim, violation: Violation, trace: Trace) -> None:
        desk = self._desk
        self.busy = True
        self._state(f"reducing {violation.signature}")
        left, seconds = desk.left(), desk.settings.reduce_seconds
        if left is not None:
            seconds = min(seconds, max(left, OVERTIME_SECONDS))
        case = Case(desk.store, desk.lock, self.worker, desk.say, seconds)
        case.investigate(violation, trace, earlier=claim.shorter)
        self.busy = False
        self._state("fuzzing")

    def _state(self, words: str) -> None:
        self._desk.say(WorkerState(self.number, words))
