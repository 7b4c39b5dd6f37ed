"""Small line charts as SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor, log10

from ..harness.face.outputs.totals_over_time import Sample
from ..harness.markup import Markup, tag
from ..harness.tell.silence import percent
from ..harness.units import spell

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 360, 120, 8, 20, 10
Value = Callable[[Sample], float]


def rate_charts(samples: Sequence[Sample]) -> list[Markup]:
    """Return charts over time: traces and steps per second, states reached, findings; none for fewer than 3 samples."""
    if len(samples) < 3:
        return []
    return [
        _linear("traces a second", samples, _per_second(samples, lambda one: one.traces)),
        _linear("steps a second", samples, _per_second(samples, lambda one: one.steps)),
        _linear("states reached", samples, [float(one.states) for one in samples]),
        _linear("findings", samples, [float(one.findings) for one in samples]),
    ]


def silence_charts(samples: Sequence[Sample]) -> list[Markup]:
    """Return charts over time: pairs of situations seen, and the chance of something new, on a logarithmic scale; none
    for fewer than 3 samples of a campaign in which that is estimated."""
    shown = [one for one in samples if one.species]
    if len(shown) < 3:
        return []
    lowest = min((one.chance for one in shown if one.chance), default=1.0)
    decades = max(-floor(log10(lowest)), 1)
    heights = [1 + log10(one.chance) / decades if one.chance else 0.0 for one in shown]
    words = f"{percent(shown[-1].chance)} now; the axis is {percent(10.0**-decades)}, the top 100 %"
    return [
        _linear("pairs of situations seen", shown, [float(one.species) for one in shown]),
        _chart("chance that the next trace shows something new", shown, heights, words),
    ]


def _per_second(samples: Sequence[Sample], value: Value) -> list[float]:
    """Return the slope around each sample, averaged over about a twelfth of the time."""
    reach = max(len(samples) // 24, 1)
    slopes = []
    for index in range(len(samples)):
        first, last = samples[max(index - reach, 0)], samples[min(index + reach, len(samples) - 1)]
        slopes.append((value(last) - value(first)) / ((last.seconds - first.seconds) or 1.0))
    return slopes


def _linear(title: str, samples: Sequence[Sample], values: Sequence[float]) -> Markup:
    most = max(values)
    words = f"{values[-1]:,.0f} now, {most:,.0f} at most"
    return _chart(title, samples, [value / (most or 1.0) for value in values], words)


def _chart(title: str, samples: Sequence[Sample], heights: Sequence[float], words: str) -> Markup:
    """Return a curve of heights from 0 to 1 over time, and what it says in words."""
    end = samples[-1].seconds or 1.0
    points = [
        (LEFT + (WIDTH - 2 * LEFT) * one.seconds / end, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * height)
        for one, height in zip(samples, heights, strict=True)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    base = HEIGHT - BOTTOM
    area = f"{points[0][0]:.1f},{base} {line} {points[-1][0]:.1f},{base}"
    about = f"{title}: {words}"
    svg = tag(
        "svg",
        tag("title", about),
        tag("polygon", points=area, class_="area"),
        tag("polyline", points=line, class_="curve"),
        tag("line", x1=LEFT, x2=WIDTH - LEFT, y1=base, y2=base, class_="axis"),
        tag("text", "0", x=LEFT, y=HEIGHT - 5),
        tag("text", spell(end), x=WIDTH - LEFT, y=HEIGHT - 5, text_anchor="end"),
        viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="chart", role="img", aria_label=about,
    )  # fmt: skip
    return tag("figure", tag("figcaption", tag("b", title), f" {words}"), svg)
