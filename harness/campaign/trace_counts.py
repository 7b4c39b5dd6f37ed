"""Counts the traces of a campaign: each exactly once, also after a kill.

A trace counts if it was opened. One that the target refused, or for which there was no memory, has its number taken, so
that it does not run again, but is none of the traces; the campaign counts it apart.

Traces end out of order, since every worker has a few of its own. The state on disk therefore lists which numbers are
taken: all below `done`, and ranges above it. After a kill the counts of the last state stand, and exactly the
numbers that they do not cover run again.

A campaign that runs a share of its seed's traces (`Shard`) counts positions in that share; for a whole campaign they
are the trace numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from ..campaign_summary import Summary
from ..draw.near_stock import as_reached
from ..units import WHOLE, Shard, add_seconds
from ..workers.results import Counts, Ran


class Ranges:
    """A set of numbers as ranges [first, end) that do not touch."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._end = dict(ranges)
        """End by first number."""
        self._first = {end: first for first, end in self._end.items()}

    def add(self, number: int) -> None:
        """Add a number that is not in the set: it lengthens the ranges that it touches."""
        first = self._first.pop(number, number)
        end = self._end.pop(number + 1, number + 1)
        self._end[first], self._first[end] = end, first

    def pop_from(self, first: int) -> int:
        """Remove the range that begins with a number; return its end, or the number if there is none."""
        end = self._end.pop(first, first)
        self._first.pop(end, None)
        return end

    def gaps_from(self, first: int) -> list[range]:
        """Return the numbers from `first` on that are missing below the highest one, in order."""
        missing = []
        for start, end in self.ranges():
            missing.append(range(first, start))
            first = end
        return [gap for gap in missing if gap]

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges, in order."""
        return sorted(self._end.items())


class Progress:
    """Allots positions and adds up results. The campaign's lock guards it."""

    def __init__(self, earlier: Summary | None = None, shard: Shard = WHOLE) -> None:
        self.shard = shard
        self.traces = self.steps = self.lost = self.done = 0
        self.seconds = 0.0
        """Seconds spent before this process started."""
        self.exercised: Counter[str] = Counter()
        self.reached: Counter[str] = Counter()
        self.took: dict[str, float] = {}
        """Seconds of workers that ran traces, by what they went into."""
        self.beyond = Ranges(earlier.beyond if earlier else ())
        if earlier:
            self.traces, self.steps, self.lost = earlier.traces, earlier.steps, earlier.lost_workers
            self.done, self.seconds = earlier.done, earlier.seconds
            self.exercised.update(earlier.exercised)
            self.reached.update(earlier.reached)
            self.reached.update(as_reached(earlier.defaults))
            add_seconds(self.took, earlier.took)
        self._next = max((end for _, end in self.beyond.ranges()), default=self.done)
        self._gaps = self.beyond.gaps_from(self.done)[::-1]
        """Positions that were allotted and never counted, before a kill or by a worker that was lost; the lowest are
        last. They stay ranges: a state file can make one as long as it likes.
        """

    def allot(self, most: int, traces: int | None) -> range:
        """Return the next positions, at most `most`, with trace numbers below `traces`; empty if there are none."""
        end = None if traces is None else self.shard.size(traces)
        if self._gaps:
            if (gap := self._allot_gap(most)) and (end is None or gap.start < end):
                return range(gap.start, gap.stop if end is None else min(gap.stop, end))
            self._gaps.clear()  # the lowest come first: all others are behind the limit, too
        first = self._next
        self._next = max(first, min(first + most, first + most if end is None else end))
        return range(first, self._next)

    def has_more(self, traces: int | None) -> bool:
        """Return True if `allot` would return any."""
        if traces is None:
            return True
        lowest = self._gaps[-1].start if self._gaps else self._next
        return lowest < self.shard.size(traces)

    def _allot_gap(self, most: int) -> range:
        """Return consecutive positions from the end of the gaps, where the lowest are last."""
        allotted = self._gaps.pop()
        while self._gaps and self._gaps[-1].start == allotted.stop and len(allotted) < most:
            allotted = range(allotted.start, self._gaps.pop().stop)
        if rest := allotted[most:]:
            self._gaps.append(rest)
        return allotted[:most]

    def give_back(self, indexes: Iterable[int]) -> None:
        """Take back trace numbers that were allotted and will not be counted by the worker that had them."""
        positions = [self.shard.position(index) for index in indexes]
        self._gaps += [range(position, position + 1) for position in positions]
        self._gaps.sort(key=lambda gap: gap.start, reverse=True)

    def count(self, ran: Ran) -> None:
        """Add a result."""
        add_seconds(self.took, ran.took)
        if not ran.outcome.opened:
            self._take([ran.index])
            return
        self.steps += ran.outcome.steps
        self.lost += bool(ran.lost)
        self._add(ran.outcome.exercised, ran.outcome.reached, [ran.index])

    def count_many(self, counts: Counts) -> None:
        """Add the results of many traces."""
        self.steps += counts.steps
        self.lost += counts.lost
        add_seconds(self.took, counts.took)
        self._add(counts.exercised, counts.reached, counts.indexes)

    def _add(self, exercised: Mapping[str, int], reached: Mapping[str, int], indexes: Collection[int]) -> None:
        self.traces += len(indexes)
        self.exercised.update(exercised)
        self.reached.update(reached)
        self._take(indexes)

    def _take(self, indexes: Collection[int]) -> None:
        for index in indexes:
            self.beyond.add(self.shard.position(index))
        self.done = self.beyond.pop_from(self.done)
