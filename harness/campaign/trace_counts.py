"""Counts the traces of a campaign: each exactly once, also after a kill.

Traces end out of order, since every worker has a few of its own. The state on disk therefore lists which numbers are
counted: all below `done`, and those in `beyond`. After a kill the counts of the last state stand, and exactly the
numbers that they do not cover run again.
"""

from __future__ import annotations

from collections import Counter

from ..events import Summary
from ..workers.losses import Ran


class Progress:
    """Allots trace numbers and adds up results. The campaign's lock guards it."""

    def __init__(self, earlier: Summary | None = None) -> None:
        self.traces = self.steps = self.lost = self.done = 0
        self.seconds = 0.0
        """Seconds spent before this process started."""
        self.exercised: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()
        self.beyond: set[int] = set()
        if earlier:
            self.traces, self.steps, self.lost = earlier.traces, earlier.steps, earlier.lost_workers
            self.done, self.beyond, self.seconds = earlier.done, set(earlier.beyond), earlier.seconds
            self.exercised.update(earlier.exercised)
            self.reached.update(earlier.reached)
        self._next = max(self.beyond, default=self.done - 1) + 1
        self._gaps = [index for index in range(self._next - 1, self.done - 1, -1) if index not in self.beyond]
        """Numbers that were allotted before a kill and never counted; the lowest is last."""

    def allot(self, most: int, end: int | None) -> range:
        """Return the next numbers, at most `most` and all below `end`; empty if there are none."""
        if self._gaps:
            first = self._gaps.pop()
            return range(first, first + 1)
        first = self._next
        self._next = max(first, min(first + most, first + most if end is None else end))
        return range(first, self._next)

    def count(self, ran: Ran) -> None:
        """Add a result."""
        self.traces += 1
        self.steps += ran.outcome.steps
        self.lost += bool(ran.lost)
        self.exercised.update(ran.outcome.exercised)
        self.reached.update(ran.outcome.reached)
        self.beyond.add(ran.index)
        while self.done in self.beyond:
            self.beyond.discard(self.done)
            self.done += 1
