"""Estimates of what the traces of one distribution have not shown, from what was seen once and twice.

The sampling unit is the trace: its species depend on each other, traces do not. So nothing here counts single species
as independent; sums of squares over traces (`Seen.once_squares`) take their place.

chance of something new    Good (1953): the share of traces that showed a species which no other trace did. It is what
                           leaving out one trace at a time gives, hence without bias for one trace less. Interval: a
                           score interval with the variance of Esty (1983)
species left               Chao2 (Chao 1987), a lower bound
traces to halve the chance, new species in the next traces
                           extrapolation with Chao2 (Colwell et al. 2012; Chao and Jost 2012), good up to about as many
                           traces as there were; the former is a lower bound, too

Why any of it applies to fuzzing, and when not: Böhme, STADS (2018); Böhme, Liyanage, Wüstholz (2021).
"""

from __future__ import annotations

from math import ceil, exp, log, log1p, sqrt

from msgspec import Struct

from ..campaign_summary import Seen

Z = 1.96
"""Normal quantile of the intervals: 95 %, two-sided."""


class Interval(Struct, frozen=True):
    """An estimate and its interval at 95 %."""

    value: float
    low: float
    high: float


class Risk(Struct, frozen=True):
    """Estimates for a campaign that goes on with the same distribution.

    new        chance that the next trace shows a species that none has shown
    unseen     species left, at least
    halving    traces until that chance is half of it, at least; None if too little was seen twice to say
    """

    new: Interval
    unseen: float
    halving: int | None


def estimate(seen: Seen | None) -> Risk | None:
    """Return the estimates, None if there are none: no independent traces, or more species than are counted."""
    if seen is None or not seen.traces or seen.is_full:
        return None
    return Risk(chance_of_new(seen), unseen(seen), halving(seen))


def chance_of_new(seen: Seen) -> Interval:
    """Return the chance that the next trace shows a species that no trace has shown."""
    spread = Z * sqrt(seen.alone + 2 * seen.paired + Z * Z / 4)
    middle = seen.alone + Z * Z / 2
    low, high = ((middle + sign * spread) / seen.traces for sign in (-1, 1))
    return Interval(min(seen.alone / seen.traces, 1.0), max(low, 0.0), min(high, 1.0))


def unseen(seen: Seen) -> float:
    """Return a lower bound of the number of species that exist and were not seen."""
    pairs = seen.once**2 / (2 * seen.twice) if seen.twice else seen.once * (seen.once - 1) / 2
    return pairs * (seen.traces - 1) / seen.traces


def halving(seen: Seen) -> int | None:
    """Return after how many more traces the chance of something new is half of it, at least."""
    if not seen.once or not seen.twice or seen.traces < 2:
        return None
    return ceil(log(2) / log1p(2 * seen.twice / ((seen.traces - 1) * seen.once)))


def new_species(seen: Seen, traces: int) -> Interval:
    """Return how many new species the next `traces` show, which should be no more than there were."""
    ratio, once, twice = traces / seen.traces, seen.once, seen.twice
    if twice and once:
        decay = exp(-2 * twice / once * ratio)
        value = once**2 / (2 * twice) * (1 - decay)
        by_once = once / twice * (1 - decay) - ratio * decay
        by_twice = once / twice * (ratio * decay - once / (2 * twice) * (1 - decay))
    else:  # the limit
        value, by_once, by_twice = once * ratio, ratio, -(ratio**2)
    together = seen.once_squares / once if once else 1.0  # species that come at once
    variance = by_once**2 * seen.once_squares + by_twice**2 * seen.twice_squares + value * together
    middle, half = value + together * Z * Z / 2, Z * sqrt(variance + (together * Z / 2) ** 2)
    return Interval(value, max(middle - half, 0.0), middle + half)
