"""Aims drawn traces: of a few that are drawn, the one that is most like traces which did what is wanted.

Traces are alike in their features, which can be read without running them: values of switches, and traits (`avoid`). A
feature weighs the more, the more often traces have it that did what is wanted, and the less often all have it (naive
Bayes). Not all traces of a campaign are aimed: the others find what no feature tells.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...targets.base.trace import Trace
from .avoid import switch_values, traits_of

CANDIDATES = 20
"""Traces that are drawn for one that is aimed."""

Aim = Mapping[str, float]
"""Weights by feature; none: nothing is aimed at."""


def features_of(trace: Trace) -> frozenset[str]:
    """Return what can be read from a trace without running it."""
    return traits_of(trace) | {f"{name}={value}" for name, value in switch_values(trace.config).items()}


def likeness(trace: Trace, aim: Aim) -> float:
    """Return how much a trace is like those that are aimed at."""
    return sum(aim.get(feature, 0.0) for feature in features_of(trace))
