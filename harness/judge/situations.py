"""Situations of the catalogue that come together in one event of a trace.

Most faults show when two conditions meet, few when it takes three (Kuhn, Wallace, Gallo 2004), so a *species* is a pair
of situations in one event; the kind of the event is one of them. What campaigns have and have not met is estimated from
them (`risk`). Pairs are few enough (some thousands) for a campaign to get to the end of them; of whole sets of
situations, nearly every trace shows a new one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import blake2b
from itertools import compress
from operator import ne

from ...targets.base.trace import KINDS, tag_of
from .state_catalogue import REQUIRES

OBSERVED = "observed: "
"""Prefix of the states that say what a target delivers: no situations."""
NAMES = (*(name for name in REQUIRES if not name.startswith(OBSERVED)), *(f"event: {tag_of(kind)}" for kind in KINDS))
BITS = [1 << number for number in range(len(NAMES))]
BIT_OF = dict(zip(NAMES, BITS, strict=True))
BIT_OF_KIND = {tag_of(kind): BIT_OF[f"event: {tag_of(kind)}"] for kind in KINDS}
REPORTS = 3
"""A process reports a species with the first so many traces that show it. Estimates ask for once and twice."""


class Situations:
    """Notes the situations of each event of one trace."""

    def __init__(self, counts: Counter[str]) -> None:
        """`counts` are those of the reached states, which only grow."""
        self._counts = counts
        self._before: list[int] = []
        self._bits: list[int] = []
        """The bit of each state, in the order of `counts`."""
        self._together: set[int] = set()

    def after_event(self, kind: str) -> None:
        """Note what has been counted since the last event."""
        now, situations = list(self._counts.values()), BIT_OF_KIND[kind]
        if now != self._before:
            for name in list(self._counts)[len(self._bits) :]:
                self._bits.append(0 if name.startswith(OBSERVED) else BIT_OF[name])
                self._before.append(0)
            situations += sum(compress(self._bits, map(ne, now, self._before)))
            self._before = now
        self._together.add(situations)

    def together(self) -> list[list[int]]:
        """Return the sets of situations that came in one event, each as numbers in `NAMES`, ascending."""
        return sorted(members(bits) for bits in self._together)


def members(bits: int) -> list[int]:
    """Return the numbers of the bits that are set, ascending."""
    found = []
    while bits:
        lowest = bits & -bits
        found.append(lowest.bit_length() - 1)
        bits ^= lowest
    return found


@cache
def digest(first: int, second: int) -> int:
    """Return a number below 2**63 for a pair of situations: of their names, so that a longer catalogue changes none."""
    pair = f"{NAMES[first]}\0{NAMES[second]}".encode()
    return int.from_bytes(blake2b(pair, digest_size=8).digest(), "big") >> 1


class SpeciesReporter:
    """The species that the traces of one process show, each with the first `REPORTS` traces that show it."""

    def __init__(self) -> None:
        self._often = [0] * len(NAMES)
        """For each situation, the later ones with which it was reported often enough."""
        self._reports: Counter[tuple[int, int]] = Counter()

    def report(self, together: Iterable[Sequence[int]]) -> list[int]:
        """Return the digests of the species to report for a trace, given `Situations.together`."""
        digests = []
        for first, (row, often) in enumerate(zip(pairs(together), self._often, strict=True)):
            for second in members(row & ~often):
                digests.append(digest(first, second))
                self._reports[first, second] += 1
                if self._reports[first, second] == REPORTS:
                    self._often[first] |= 1 << second
        return digests


def pairs(together: Iterable[Sequence[int]]) -> list[int]:
    """Return, for each situation, the bits of the later ones that came with it."""
    rows = [0] * len(NAMES)
    for numbers in together:
        bits = sum(map(BITS.__getitem__, numbers))
        for number in numbers:
            bits ^= BITS[number]
            rows[number] |= bits
    return rows
