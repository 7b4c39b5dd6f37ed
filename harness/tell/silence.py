"""What the silence of a campaign is worth, in a few lines."""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, log10

from ..campaign_summary import Seen
from ..risk.binomial import upper_bound
from ..risk.estimates import Interval, Risk, estimate
from ..risk.species_counts import SPECIES_MAX
from ..units import plural


def percent(share: float) -> str:
    """Return a share with two digits: 12 %, 0.12 %, 0.0012 %."""
    if share <= 0:
        return "0 %"
    decimals = max(1 - floor(log10(100 * share)), 0)
    return f"{100 * share:.{decimals}f} %"


def between(chance: Interval) -> str:
    """Return an interval of shares in words."""
    return f"at most {percent(chance.high)}" if not chance.low else f"{percent(chance.low)} to {percent(chance.high)}"


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
    most = percent(upper_bound(failing, traces))
    return f"at most {most} of this generator's traces fail, at 95 % ({failing or 'none'} of {traces:,} did)"
