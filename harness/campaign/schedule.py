"""Hands out a campaign's work: chores first, then failures to look into as far as there is time for them
(`triage`), then ranges of trace numbers.

Work that a lost worker leaves comes back, so a loop that finds none waits as long as another one has some.

A worker may ask for its node for itself (`alone`). The other loops of that node then end their processes when they come
for more work, and wait.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Generic, TypeVar

from ..workers.messages import Fuzz
from .shared_state import CampaignState, Task

WAIT_SECONDS = 0.25
Chore = TypeVar("Chore")


class Schedule(Generic[Chore]):
    """The work that is left. Methods may be called from any thread. "" is the node of this machine."""

    def __init__(self, state: CampaignState, chores: Iterable[Chore]) -> None:
        self._state = state
        self._chores = deque(chores)
        self._changed = Condition()
        self._handed_out = 0
        self._at_work = Counter[str]()
        """Loops by node, without those that rest."""
        self._members = Counter[str]()
        """Loops by node, with those that rest."""
        self._wanted = Counter[str]()
        """Loops that want a node for themselves, or have it."""
        self._taken: set[str] = set()
        """Nodes that one loop has for itself."""

    def join(self, node: str) -> None:
        """Count a loop on a node: it has a process there, or starts one."""
        with self._changed:
            self._members[node] += 1
            self._at_work[node] += 1

    def leave(self, node: str, *, is_member: bool = True) -> None:
        """Count a loop no longer. `is_member` is False for one that has given up."""
        with self._changed:
            self._members[node] -= is_member
            self._at_work[node] -= 1
            self._changed.notify_all()

    def move(self, node: str, to: str) -> None:
        """Count a loop on another node."""
        with self._changed:
            for counts in (self._members, self._at_work):
                counts[node] -= 1
                counts[to] += 1
            self._changed.notify_all()

    def give_up(self, node: str) -> int:
        """Let a loop give up for want of memory. Return how many loops its node is left with; 0 if it must go on, as it
        is the only one."""
        with self._changed:
            left = self._members[node] - 1
            self._members[node] -= left > 0
            return left

    def next(self, most: int, node: str = "", rest: Callable[[], None] = lambda: None) -> Chore | Task | Fuzz | None:
        """Return a chore or at most `most` trace numbers; None once all work is done or the campaign is stopping.

        Call `finished` once for each piece of work, whatever became of it. `rest` has to end the loop's process: it is
        called before this one waits for another loop that wants the node for itself.
        """
        while not self._state.stopping.is_set():
            with self._changed:
                while not self._state.stopping.is_set() and not self._wanted[node]:
                    work = self._next(most)
                    if work is not None:
                        self._handed_out += 1
                        return work
                    if not self._handed_out:
                        return None
                    self._changed.wait(WAIT_SECONDS)
            if self._wanted[node]:
                rest()
                with self._changed, self._resting(node):
                    while self._wanted[node] and not self._state.stopping.is_set():
                        self._changed.wait(WAIT_SECONDS)
        return None

    def _next(self, most: int) -> Chore | Task | Fuzz | None:
        """Return a chore, what looks into a failure if there is time for it, or traces; without traces, what is left
        to look into."""
        state = self._state
        if self._chores:
            return self._chores.popleft()
        return state.triage.next() or state.next_batch(most) or state.triage.next(idle=True)

    @contextmanager
    def _resting(self, node: str) -> Iterator[None]:
        self._at_work[node] -= 1
        self._changed.notify_all()
        try:
            yield
        finally:
            self._at_work[node] += 1

    @contextmanager
    def alone(self, node: str) -> Iterator[bool]:
        """Have a node for one loop, whose process has ended. False if the campaign stops before all others rest."""
        with self._changed:
            self._wanted[node] += 1
            with self._resting(node):
                while (self._at_work[node] or node in self._taken) and not self._state.stopping.is_set():
                    self._changed.wait(WAIT_SECONDS)
                got = not self._state.stopping.is_set()
                if got:
                    self._taken.add(node)
        try:
            yield got
        finally:
            with self._changed:
                self._wanted[node] -= 1
                if got:
                    self._taken.discard(node)
                self._changed.notify_all()

    def finished(self) -> None:
        """Count a piece of work as done or given back."""
        with self._changed:
            self._handed_out -= 1
            self._changed.notify_all()

    def put(self, chore: Chore) -> None:
        """Add a chore."""
        with self._changed:
            self._chores.append(chore)
            self._changed.notify_all()

    def has_work(self) -> bool:
        """Return True if a worker that is not ready yet may still be needed."""
        with self._changed:
            return not self._state.stopping.is_set() and bool(
                self._chores or self._handed_out or self._state.has_traces() or self._state.triage.pending
            )
