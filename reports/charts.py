"""Small line charts as SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..harness.face.outputs.rates import Sample
from ..harness.markup import Markup, tag
from ..harness.units import spell

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 360, 120, 8, 20, 10
Value = Callable[[Sample], float]


def rate_charts(samples: Sequence[Sample]) -> list[Markup]:
    """Return charts over time: traces and steps per second, states reached, findings; none for fewer than 3 samples."""
    if len(samples) < 3:
        return []
    return [
        _chart("traces a second", samples, _per_second(samples, lambda one: one.traces)),
        _chart("steps a second", samples, _per_second(samples, lambda one: one.steps)),
        _chart("states reached", samples, [float(one.states) for one in samples]),
        _chart("findings", samples, [float(one.findings) for one in samples]),
    ]


def _per_second(samples: Sequence[Sample], value: Value) -> list[float]:
    """Return the slope around each sample, averaged over about a twelfth of the time."""
    reach = max(len(samples) // 24, 1)
    slopes = []
    for index in range(len(samples)):
        first, last = samples[max(index - reach, 0)], samples[min(index + reach, len(samples) - 1)]
        slopes.append((value(last) - value(first)) / ((last.seconds - first.seconds) or 1.0))
    return slopes


def _chart(title: str, samples: Sequence[Sample], values: Sequence[float]) -> Markup:
    end, most = samples[-1].seconds or 1.0, max(values) or 1.0
    points = [
        (LEFT + (WIDTH - 2 * LEFT) * one.seconds / end, HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / most)
        for one, value in zip(samples, values, strict=True)
    ]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    base = HEIGHT - BOTTOM
    area = f"{points[0][0]:.1f},{base} {line} {points[-1][0]:.1f},{base}"
    about = f"{title}: {values[-1]:,.0f} at the end, {max(values):,.0f} at most"
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
    words = tag("figcaption", tag("b", title), f" {values[-1]:,.0f} now, {max(values):,.0f} at most")
    return tag("figure", words, svg)
