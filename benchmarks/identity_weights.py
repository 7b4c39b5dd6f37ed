"""Fits the weights of harness/group/causes/weights.py to evidence with known causes (needs numpy).

    python benchmarks/identity_weights.py out/vllm out/1 out/2 ...

Each folder is one of benchmarks/identity.py. Pairs of traces of one folder are a sample: same cause or not, all causes
of equal weight. The model is that of `same_cause.likeness`: a logistic regression on the kinds of evidence, in which
the overlaps of facts are weighted Jaccard indices with one weight for each fact. The logarithms of these weights are
penalized. Adam, 120 steps from the weights of an unweighted regression. Prints Python that can be pasted, rounded.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from identity import load_evidence, load_truth
from msgspec import Struct

from hybridfuzz.harness.group.causes.evidence import Evidence
from hybridfuzz.harness.group.causes.same_cause import (
    _cosine,
    _needs_what_is_absent,
    _needs_what_is_unneeded,
    _now,
    _overlap,
)

STEPS, RATE, PENALTY = 120, 0.03, 1e-3
START = {"votes": 5.2, "without": 1.2, "switches": 2.0, "symptom": 0.9, "absent": -1.5, "unneeded": -0.5}
OVERLAPS: dict[str, tuple[float, Callable[[Evidence], Collection[str]]]] = {
    "now": (4.3, _now),
    "origins": (2.9, lambda one: one.origins),
}
BIAS = -4.7
Array = Any


class Pair(Struct):
    """Two traces of one campaign; `weight` makes causes equal."""

    one: Evidence
    other: Evidence
    same: bool
    weight: float


def pairs(folder: Path) -> list[Pair]:
    """Return the pairs of traces with one known cause each."""
    causes = load_truth(folder)
    known = [
        (causes[trace][0], seen.evidence)
        for trace, seen in load_evidence(folder).items()
        if seen.evidence and len(causes.get(trace, ())) == 1
    ]
    count = Counter(cause for cause, _ in known)
    return [
        Pair(one, other, cause == its, 1 / (count[cause] * count[its]))
        for index, (cause, one) in enumerate(known)
        for its, other in known[:index]
    ]


def plain(pair: Pair) -> list[float]:
    """Return the kinds of evidence without weighted facts, in the order of START."""
    one, other = pair.one, pair.other
    voted = bool(one.votes and other.votes)
    return [
        _cosine(one.votes, other.votes) if voted else 0.0,
        float(not voted),
        _overlap(one.switches, other.switches),
        float((one.signature, one.relation) == (other.signature, other.relation)),
        float(_needs_what_is_absent(one, other) or _needs_what_is_absent(other, one)),
        float(_needs_what_is_unneeded(one, other) or _needs_what_is_unneeded(other, one)),
    ]


class Adam:
    """One parameter, a number or a vector."""

    def __init__(self, value: Array) -> None:
        self.value = np.asarray(value, float)
        self._mean = self._square = np.zeros_like(self.value)

    def step(self, gradient: Array) -> None:
        """Follow a gradient."""
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.99 * self._square + 0.01 * gradient**2
        self.value = self.value - RATE * self._mean / (np.sqrt(self._square) + 1e-6)


def fit(sample: Sequence[Pair]) -> None:
    """Fit and print the weights."""
    same = np.array([pair.same for pair in sample])
    weight = np.array([pair.weight for pair in sample])
    for kind in (same, ~same):
        weight[kind] *= 0.5 / weight[kind].sum()
    kinds = np.array([plain(pair) for pair in sample])
    factors, bias = Adam(list(START.values())), Adam(BIAS)
    logs, scales, both, union = {}, {}, {}, {}
    words: dict[str, list[str]] = {}
    for name, (start, facts) in OVERLAPS.items():
        words[name] = sorted({fact for pair in sample for fact in (*facts(pair.one), *facts(pair.other))})
        column = {fact: index for index, fact in enumerate(words[name])}
        matrix = np.zeros((2, len(sample), len(column)), bool)
        for row, pair in enumerate(sample):
            for side, one in enumerate((pair.one, pair.other)):
                matrix[side, row, [column[fact] for fact in facts(one)]] = True
        both[name], union[name] = (matrix[0] & matrix[1]).astype(np.float32), (matrix[0] | matrix[1]).astype(np.float32)
        logs[name], scales[name] = Adam(np.zeros(len(column))), Adam(start)
    for _ in range(STEPS):
        overlap, size = {}, {}
        for name in OVERLAPS:
            each = np.exp(logs[name].value)
            size[name] = np.maximum(union[name] @ each, 1e-9)
            overlap[name] = np.where(union[name].any(1), both[name] @ each / size[name], 0.5)
        z = bias.value + kinds @ factors.value + sum(scales[name].value * overlap[name] for name in OVERLAPS)
        error = weight * (1 / (1 + np.exp(-z)) - same)
        for name in OVERLAPS:
            pull = error * scales[name].value / size[name]
            gradient = (pull @ both[name] - (pull * overlap[name]) @ union[name]) * np.exp(logs[name].value)
            scales[name].step((error * overlap[name]).sum())
            logs[name].step(gradient + PENALTY * logs[name].value)
        factors.step(error @ kinds)
        bias.step(error.sum())
    print({name: round(float(value), 2) for name, value in zip(START, factors.value, strict=True)})
    print({name: round(float(scale.value), 2) for name, scale in scales.items()}, "bias", round(float(bias.value), 2))
    for name in OVERLAPS:
        each = np.exp(np.clip(logs[name].value, -np.log(5), np.log(5)))
        print(
            name,
            {words[name][at]: round(float(each[at]), 1) for at in np.argsort(-each) if abs(np.log(each[at])) > 0.25},
        )


if __name__ == "__main__":
    fit([pair for folder in sys.argv[1:] for pair in pairs(Path(folder))])
