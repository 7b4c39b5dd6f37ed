"""The upper bound of Clopper and Pearson (1934) for a rate, without a statistics package."""

from __future__ import annotations

from math import exp, lgamma, log, log1p

NEGLIGIBLE = 1e-17
BISECTIONS = 100


def at_most(count: int, number: int, p: float) -> float:
    """Return the probability of at most `count` hits in `number` independent trials that hit with probability `p`.

    `count` must not be above the mean: then the terms fall from `count` downwards.
    """
    ways = lgamma(number + 1) - lgamma(count + 1) - lgamma(number - count + 1)
    term = total = exp(ways + count * log(p) + (number - count) * log1p(-p))
    for hits in range(count, 0, -1):
        term *= hits / (number - hits + 1) * (1 - p) / p
        total += term
        if term < total * NEGLIGIBLE:
            break
    return total


def upper_bound(count: int, number: int, level: float = 0.95) -> float:
    """Return the rate that is not exceeded with this confidence, one-sided, given `count` hits in `number` trials.

    Without a hit it is just below 3 / `number`.
    """
    if count >= number:
        return 1.0
    low, high = count / number, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if at_most(count, number, middle) > 1 - level:
            low = middle
        else:
            high = middle
    return high
