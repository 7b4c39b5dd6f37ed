"""Which failure is looked into next, and how much of the workers' time that may take.

A failing trace is counted and saved at once; a new finding is also confirmed at once. All else is a task: reducing a
finding, slice by slice, finding out what its cause is and how much it matters; sorting a further trace of a
signature that was met before. Tasks together may take a share of the time of all workers (`--triage-share`). A task
that has begun ends, and what it took beyond the share is saved before the next one begins. When no trace is left to
run, findings are finished, and further traces sorted for `GRACE` seconds and the share.

How many tasks are reached depends on the clock, their order does not: findings that may be new, by how many slices they
have had; tests of which known bugs the others are, in turn with a look at the first further traces of each symptom;
findings that no single known bug explains, in turn with a look at some further traces that are not `familiar`; all
further traces, unfamiliar ones and those whose symptom was seen least first; what an earlier campaign left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from threading import Lock
from typing import Generic, Literal, TypeAlias, TypeVar, get_args

from ..units import to_milliseconds

Task = TypeVar("Task")
_Waiting: TypeAlias = tuple[tuple[int, ...], int, Task]
"""Order, tie-breaking number, task."""
Activity = Literal["confirming", "reducing", "identity", "severity"]
FUZZING = "fuzzing"
FINDING, FURTHER, LEFT_BEHIND = range(3)
"""Ranks of tasks: a finding, a further trace of a signature, what an earlier campaign left."""
NEW, TEST, EXPLAINED = range(3)
"""Ranks of tasks for findings: one that may be new, a test of which known bugs failures are, one that no single known
bug explains."""
GRACE = 30.0
"""Seconds in which further traces are sorted after the last trace of a campaign, so that a short one sorts some."""


class Triage(Generic[Task]):
    """The tasks that wait, and the time that tasks took. Methods may be called from any thread.

    `spent` returns the seconds of the campaign so far; `earlier` is the time by activity before a kill.
    """

    def __init__(self, share: float, jobs: int, spent: Callable[[], float], earlier: Mapping[str, float]) -> None:
        self.share = share
        self._jobs = jobs
        self._spent = spent
        self._before = sum(earlier.values()) - jobs * spent()
        self._took: dict[str, float] = {name: earlier.get(name, 0.0) for name in get_args(Activity)}
        self._running: dict[int, tuple[str, float]] = {}
        self._tasks: list[_Waiting[Task]] = []
        self._waiting_to_compare: list[_Waiting[Task]] = []
        self._numbers = count()
        self._comparisons = 0
        self._lock = Lock()

    def put(self, task: Task, kind: int, *order: int, compares: bool = False) -> None:
        """Let a task wait. `compares` if it begins by comparing a failure with known bugs."""
        with self._lock:
            heappush(self._waiting_to_compare if compares else self._tasks, ((kind, *order), next(self._numbers), task))

    def next(self, *, idle: bool = False) -> Task | None:
        """Return the next task, None if there is none or the share is spent. `idle` if there is no trace to run."""
        with self._lock:
            ready = [tasks for tasks in (self._tasks, [] if self._comparisons else self._waiting_to_compare) if tasks]
            tasks = min(ready, key=lambda each: each[0][:2], default=None)
            if tasks and (self._is_within(0.0) or (idle and self._may_end(tasks))):
                return heappop(tasks)[-1]
            return None

    def _is_within(self, grace: float) -> bool:
        took = sum(self._effort(name) for name in self._took)
        return self.share >= 1 or took < grace + self.share * self._all()

    def _may_end(self, tasks: list[_Waiting[Task]]) -> bool:
        return tasks[0][0][0] == FINDING or self._is_within(GRACE)

    @contextmanager
    def comparing(self) -> Iterator[None]:
        """Until the end of the block, give out no task that begins with a comparison: there is one engine with all
        patches, and a worker that would wait for it runs traces instead."""
        with self._lock:
            self._comparisons += 1
        try:
            yield
        finally:
            with self._lock:
                self._comparisons -= 1

    @property
    def pending(self) -> int:
        """Return the number of tasks that wait."""
        with self._lock:
            return len(self._tasks) + len(self._waiting_to_compare)

    @property
    def findings(self) -> int:
        """Return the number of tasks that wait for a finding."""
        with self._lock:
            return sum(order[0] == FINDING for order, _, _ in [*self._tasks, *self._waiting_to_compare])

    @contextmanager
    def timed(self, activity: Activity) -> Iterator[None]:
        """Count the time of what runs in here."""
        key = next(self._numbers)
        with self._lock:
            self._running[key] = activity, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                name, began = self._running.pop(key)
                self._took[name] += time.monotonic() - began

    def effort(self) -> dict[str, float]:
        """Return the seconds of all workers by what they did."""
        with self._lock:
            took = {name: self._effort(name) for name in self._took}
            return to_milliseconds({FUZZING: max(self._all() - sum(took.values()), 0.0), **took})

    def _effort(self, name: str) -> float:
        now = time.monotonic()
        return self._took[name] + sum(now - began for running, began in self._running.values() if running == name)

    def _all(self) -> float:
        return self._before + self._jobs * self._spent()
