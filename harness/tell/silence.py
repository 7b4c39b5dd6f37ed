"""What the silence of a campaign is worth, in a few lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil, floor, log10

from ..campaign_summary import Seen
from ..risk.binomial import upper_bound
from ..risk.estimates import Interval, Risk, estimate
from ..risk.species_counts import SPECIES_MAX
from ..units import plural

NOISE_DIGITS = 6
"""Decimals kept before a bound is rounded, so that the noise of floats does not push it up."""


def percent(share: float, rounding: Callable[[float], int] = round) -> str:
    """Return a share with two digits: 12 %, 0.12 %, 0.0012 %. `rounding`: to the nearest, `ceil` for an upper bound,
    `floor` for a lower one."""
    if share <= 0:
        return "0 %"
    decimals = max(1 - floor(log10(100 * share)), 0)
    digits = rounding(round(100 * share * 10**decimals, NOISE_DIGITS))
    if digits == 100 and decimals:  # 9.96 is 10, not 10.0
        digits, decimals = 10, decimals - 1
    return f"{digits / 10**decimals:.{decimals}f} %"


def between(chance: Interval) -> str:
    """Return an interval of shares in words."""
    high = percent(chance.high, ceil)
    return f"at most {high}" if not chance.low else f"{percent(chance.low, floor)} to {high}"


def silence_lines(seen: Seen | None) -> Iterator[str]:
    """Yield what is left to be seen, and how many traces fail at most; nothing where nothing can be estimated."""
    if seen is None or not seen.traces:
        return
    if risk := estimate(seen):
        yield left_line(seen, risk)
    else:
        yield f"what is left: not estimated, as there are more than {SPECIES_MAX:,} pairs of situations"
    yield failing_line(seen.failing, seen.traces)


def left_line(seen: Seen, risk: Risk) -> str:
    """Return the chance of something new, and what is left."""
    span = f" of {plural(seen.campaigns, 'campaign')}" if seen.campaigns > 1 else ""
    found = f"{plural(seen.species, 'pair')} of situations in {plural(seen.traces, 'trace')}{span}"
    halved = f"; to halve the chance takes {risk.halving:,} more traces at least" if risk.halving else ""
    return (
        f"what is left: the next trace shows something new with a chance of {percent(risk.new.value)} "
        f"({between(risk.new)}); {found}, at least {risk.unseen:,.0f} not seen{halved}"
    )


def failing_line(failing: int, traces: int) -> str:
    """Return how many traces fail at most."""
    most = percent(upper_bound(failing, traces), ceil)
    return f"at most {most} of this generator's traces fail, at 95 % ({failing or 'none'} of {traces:,} did)"
