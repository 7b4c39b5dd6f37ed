"""The place in the engine's code where a failing run and its nearest passing neighbours part.

There are two sources of evidence, paths and values, with half of the score each; if one names no function, the other
has all of it.

Paths: a function *decides* if both runs reach one of its lines (or its entry) and go on at different lines from there.
Code that only one of them reaches is a consequence of a decision before it. Returned values (None, False, True, zero,
another number) count only between runs that part nowhere else, since they travel through callers that decide nothing.

Each passing neighbour has one vote, shared by the functions in which it decides otherwise: a neighbour that differs in
two functions is stronger evidence than one that differs in sixty (nearest-neighbour queries, Renieris and Reiss 2003).
A function of many lines is more likely to hold a defect than an accessor, so shares grow with the number of pairs of
lines that the failing run executed in it. Its place is the line at which most votes fall, the earliest if there are
several.

Values: data may be wrong on a path that passing runs take, too. A function is suspicious if it holds values of a kind,
or two numbers in an order, that it holds in no passing neighbour (`record.executed`): predicates of statistical
debugging (Liblit et al. 2005) that are true in the failing run alone. These functions share one vote, also by their
size. A function that no neighbour calls is one of them. The place of a function without a decision is its first
executed line.

docs/explanation/decisions.md lists what was tried and rejected.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ...record.executed import RETURN, Executed
from .evidence import Place

PLACES = 10
"""Functions kept for each trace; a finding with several traces shows those that they agree on."""
SIZE = 0.75
"""A function's share of a vote grows with this power of its size; figures are in benchmarks/identity.md."""
VOTES = 80
"""Lines kept of each trace for comparisons; a neighbour that is far away may differ in hundreds."""
Arc = tuple[str, str, int, int]
"""File, function, line before, line."""
Function = tuple[str, str]
"""File, function."""


def arcs_of(run: Iterable[Executed]) -> dict[Arc, int]:
    """Return the arcs of a run, and the order of their first execution."""
    return {(each.file, each.function, before, line): order for each in run for before, line, order in each.arcs}


class Spectrum:
    """One failing run against its passing neighbours."""

    def __init__(self, failing: Sequence[Executed], passing: Sequence[Sequence[Executed]]) -> None:
        self._failing = arcs_of(failing)
        self._runs = [arcs_of(run) for run in passing if run]
        self._reached = {(*arc[:2], arc[3]): order for arc, order in sorted(self._failing.items(), key=_by_order)}
        """(file, function, line) -> an order in which the failing run reached it."""
        self._points = {_point(arc) for arc in self._failing}
        self._last = max(self._failing.values(), default=0) + 1
        self._sizes = Counter(arc[:2] for arc in self._failing)
        self._unseen = _unseen(failing, [run for run in passing if run])

    def places(self) -> tuple[Place, ...]:
        """Return the most suspicious functions; none without passing neighbours."""
        decided, best = self._decided()
        sources = [shares for shares in (decided, self._shares(self._unseen)) if shares]
        scores = Counter[Function]()
        for shares in sources:
            scores.update({function: share / len(sources) for function, share in shares.items()})
        at = self._entries() | best
        ranked = sorted(scores, key=lambda function: (-scores[function], at[function][1]))[:PLACES]
        return tuple(Place(*function, at[function][0], round(scores[function], 3)) for function in ranked)

    def _decided(self) -> tuple[dict[Function, float], dict[Function, tuple[int, int]]]:
        """Return the functions in which passing runs part from the failing one, with their shares of the votes; and the
        line of each at which most of these fall, with its order in the failing run."""
        votes, lines = defaultdict[Function, float](float), defaultdict[tuple[Function, int], float](float)
        first: dict[tuple[Function, int], int] = {}
        for run in self._runs:
            decisions = self._decisions(run)
            shares = self._shares({function for function, _ in decisions})
            for function, share in shares.items():
                votes[function] += share / len(self._runs)
            for place, order in decisions.items():
                lines[place] += shares[place[0]]
                first[place] = min(order, first.get(place, order))
        best: dict[Function, tuple[int, int]] = {}
        for function, line in sorted(lines, key=lambda place: (-lines[place], first[place])):
            best.setdefault(function, (line, first[function, line]))
        return votes, best

    def _entries(self) -> dict[Function, tuple[int, int]]:
        """Return the first line that the failing run executed in each function, and its order."""
        found: dict[Function, tuple[int, int]] = {}
        for (file, function, _, line), order in sorted(self._failing.items(), key=lambda arc: arc[1]):
            found.setdefault((file, function), (line, order))
        return found

    def _shares(self, functions: Iterable[Function]) -> dict[Function, float]:
        """Return the share of each function in one vote."""
        sizes = {function: max(self._sizes[function], 1) ** SIZE for function in functions}
        total = sum(sizes.values())
        return {function: size / total for function, size in sizes.items()}

    def votes(self) -> dict[str, float]:
        """Return the share of the votes of each line, as "file:function:line"; the sum is 1 unless lines are left out.

        Each neighbour's vote is shared evenly by the lines (not the functions) at which it decides otherwise.
        """
        votes = Counter[tuple[Function, int]]()
        for run in self._runs:
            decisions = self._decisions(run)
            votes.update(dict.fromkeys(decisions, 1 / max(len(decisions), 1) / len(self._runs)))
        kept = sorted(votes, key=lambda place: (-votes[place], place))[:VOTES]
        return {f"{file}:{function}:{line}": round(votes[(file, function), line], 4) for (file, function), line in kept}

    def _decisions(self, run: Mapping[Arc, int]) -> dict[tuple[Function, int], int]:
        """Return the lines at which a passing run parts from the failing one, and their order in the failing run; line
        0 stands for a returned value."""
        theirs = {_point(arc) for arc in run}
        parted = {arc: order for arc, order in self._failing.items() if arc not in run and _point(arc) in theirs}
        for arc in run:
            if arc not in self._failing and _point(arc) in self._points:
                parted[arc] = self._reached.get((*arc[:2], arc[2]), self._last)
        branches = {arc: order for arc, order in parted.items() if arc[2] != RETURN}
        decisions: dict[tuple[Function, int], int] = {}
        for (file, function, before, _), order in (branches or parted).items():
            place = (file, function), max(before, 0)
            decisions[place] = min(decisions.get(place, order), order)
        return decisions


def _unseen(failing: Iterable[Executed], passing: Sequence[Iterable[Executed]]) -> set[Function]:
    """Return the functions with a value in the failing run that they have in no passing one.

    None without passing runs.
    """
    seen = defaultdict[Function, set[str]](set)
    for run in passing:
        for each in run:
            seen[each.file, each.function].update(each.values)
    values = {(each.file, each.function): set(each.values) for each in failing} if passing else {}
    return {function for function, those in values.items() if those - seen[function]}


def _point(arc: Arc) -> tuple[str, str, int]:
    """Return the place from which an arc leads: a line, the entry of a function, or its return."""
    return arc[:3]


def _by_order(item: tuple[Arc, int]) -> int:
    return -item[1]
