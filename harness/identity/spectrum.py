"""The place in the engine's code where a failing run and its nearest passing neighbours part.

Each arc (a pair of lines executed one after the other, or a kind of returned value) that the failing run executes gets
the Ochiai coefficient of Abreu et al. (2007): with one failing run 1 / sqrt(1 + p), where p of the passing runs execute
it, too. An arc that the failing run lacks counts in the same way for the line from which the passing runs took it. A
function's score is that of its best arc; among equals the function comes first in which the runs part first, because
later differences are consequences.

Tried and rejected: lines instead of arcs (a condition on one line and the length of a loop do not show), and all
passing runs of a campaign instead of neighbours (every function of a rarely used feature is then suspicious).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import sqrt

from ..explain.executed import RETURN, Executed
from .evidence import Place

PLACES = 5
Arc = tuple[str, str, int, int]
"""File, function, line before, line."""


def arcs_of(run: Iterable[Executed]) -> dict[Arc, int]:
    """Return the arcs of a run, and the order of their first execution."""
    return {(each.file, each.function, before, line): order for each in run for before, line, order in each.arcs}


class Spectrum:
    """One failing run against its passing neighbours."""

    def __init__(self, failing: Sequence[Executed], passing: Sequence[Sequence[Executed]]) -> None:
        self._failing = arcs_of(failing)
        runs = [arcs_of(run) for run in passing if run]
        self._runs = sorted(runs, key=lambda run: len(run.keys() ^ self._failing.keys()))
        self._count = len(runs)
        self._executed = Counter(arc for run in runs for arc in run)
        self._reached = {(*arc[:2], arc[3]): order for arc, order in sorted(self._failing.items(), key=_by_order)}
        """(file, function, line) -> an order in which the failing run reached it."""

    def _scores(self) -> dict[tuple[Arc, bool], tuple[float, int]]:
        """Return score and order of each arc; the flag is False for arcs that the failing run lacks."""
        scores = {(arc, True): (_ochiai(self._executed[arc]), order) for arc, order in self._failing.items()}
        for arc, runs in self._executed.items():
            if arc not in self._failing:
                order = self._reached.get((*arc[:2], arc[2]), max(self._failing.values(), default=0) + 1)
                scores[arc, False] = (_ochiai(self._count - runs), order)
        return scores

    def places(self) -> tuple[Place, ...]:
        """Return the most suspicious functions; none without passing neighbours."""
        best: dict[tuple[str, str], tuple[float, int, int]] = {}
        for ((file, function, before, line), _), (score, order) in self._scores().items():
            rank = (-score, order, line if before != RETURN else 0)
            if (self._count and (file, function) not in best) or rank < best.get((file, function), rank):
                best[file, function] = rank
        ranked = sorted(best.items(), key=lambda each: each[1])[:PLACES]
        return tuple(Place(file, function, line, round(-score, 3)) for (file, function), (score, _, line) in ranked)

    def parting(self, nearest: int) -> tuple[str, ...]:
        """Return the arcs that tell the failing run from each of the `nearest` passing neighbours, in the order of
        execution: those of the failing run that no neighbour has, and those that it lacks and each neighbour has.

        The nearest neighbours are those that differ in the fewest arcs. With all of them the set is often empty, since
        a distant one may execute anything.
        """
        near = self._runs[:nearest]
        if not near:
            return ()
        anywhere = set().union(*near)
        everywhere = set(near[0]).intersection(*near[1:])
        last = max(self._failing.values(), default=0) + 1
        apart = [(order, True, arc) for arc, order in self._failing.items() if arc not in anywhere]
        apart += [
            (self._reached.get((*arc[:2], arc[2]), last), False, arc) for arc in everywhere if arc not in self._failing
        ]
        return tuple(
            f"{'+' if there else '-'}{file}:{function}:{before}>{line}"
            for _, there, (file, function, before, line) in sorted(apart)
        )


def _ochiai(passing: int) -> float:
    return 1 / sqrt(1 + passing)


def _by_order(item: tuple[Arc, int]) -> int:
    return -item[1]
