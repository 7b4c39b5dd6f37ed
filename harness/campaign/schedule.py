"""Hands out a campaign's work: chores first, then ranges of trace numbers.

Work that a lost worker leaves comes back, so a loop that finds none waits as long as another one has some.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from threading import Condition
from typing import Generic, TypeVar

from ..workers.messages import Fuzz
from .state import CampaignState

WAIT_SECONDS = 0.25
Chore = TypeVar("Chore")


class Schedule(Generic[Chore]):
    """The work that is left. Methods may be called from any thread."""

    def __init__(self, state: CampaignState, chores: Iterable[Chore]) -> None:
        self._state = state
        self._chores = deque(chores)
        self._changed = Condition()
        self._handed_out = 0

    def next(self, most: int) -> Chore | Fuzz | None:
        """Return a chore or at most `most` trace numbers; None once all work is done or the campaign is stopping.

        Call `finished` once for each piece of work, whatever became of it.
        """
        with self._changed:
            while not self._state.stopping.is_set():
                work = self._chores.popleft() if self._chores else self._state.next_batch(most)
                if work is not None:
                    self._handed_out += 1
                    return work
                if not self._handed_out:
                    return None
                self._changed.wait(WAIT_SECONDS)
        return None

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
                self._chores or self._handed_out or self._state.has_traces()
            )
