"""A real model's log-probabilities against those of the same tokens alone: which differences count.

A batch computes the sums of a request alone in another order, so log-probabilities differ by rounding. Nearly always by
little; but there are rows in which any rounding grows, with random weights at least: a norm of numbers that almost
cancel each other out divides by almost nothing. One tolerance for all rows would be too large for most of them. A
difference beyond the tolerance therefore counts only if it is also far beyond what rounding does to that very row,
which is measured on the request alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ...base.trace import Config
from ..models import STATE_KIND, dtype, mixer
from .beside import ALONE, Beside
from .plans import Floats

TOLERANCES = {
    ("gdn", "float32"): 0.15,
    ("mamba2", "float32"): 0.6,
    ("gdn", "bfloat16"): 1.0,
    ("mamba2", "bfloat16"): 2.0,
    ("mamba1", "bfloat16"): 2.0,
    ("short_conv", "bfloat16"): 1.0,
}
"""Largest difference of a log-probability from the same tokens alone that counts as rounding: four to seven times the
largest that was measured on a tree with the known causes fixed (benchmarks/gpu_engines.md). Most of it is TF32,
Triton's default for products of float32."""
EXACT_PRODUCTS = 0.001
"""The same in float32 where products of float32 are not rounded to TF32: on an interpreter, and where
`TRITON_F32_DEFAULT` is tf32x3 (`stand_ins.variables`) or ieee. Most models stay below a tenth of it, single rows
came up to 0.00083; the smallest difference that a known defect makes is 900 times this."""
ROUNDINGS = 8.0
"""A larger difference counts only if it is more than this many times `Reference.rounding` of its row. Ratios were up
to 2.2, measured with one pattern of signs; one row had 11 with that pattern and 0.7 with others
(benchmarks/gpu_engines.md)."""


def tolerance(config: Config, device: str) -> float:
    """The tolerance for a trace."""
    exact = device == "interpreter" or os.environ.get("TRITON_F32_DEFAULT") in ("tf32x3", "ieee")
    if exact and dtype(config) == "float32":
        return EXACT_PRODUCTS
    name = mixer(config)
    kind = STATE_KIND.get(name, name)
    return TOLERANCES.get((kind, dtype(config)), TOLERANCES["mamba2", "float32"])


class Reference(Protocol):
    """The same tokens alone (`same_tokens`), with what they are computed with in the batch."""

    def expected(self, tokens: Sequence[int], beside: Beside = ALONE) -> Floats:
        """[tokens, vocabulary] log-probabilities."""

    def is_sound(self, tokens: Sequence[int], beside: Beside = ALONE) -> bool:
        """Return True if they do not depend on unused memory."""

    def rounding(self, tokens: Sequence[int], beside: Beside = ALONE) -> Floats:
        """[tokens]: how far they move if each weight changes in its last bits."""


class Comparison:
    """One trace's rows against the reference, and counts of them."""

    def __init__(self, reference: Reference, tolerance: float) -> None:
        self.tolerance = tolerance
        self._reference = reference
        self.rows = 0
        self.largest = 0.0
        """Of the differences that were compared."""
        self.ill_conditioned = 0
        """Rows beyond the tolerance, but within `ROUNDINGS` times what rounding does to them: not compared."""

    def expected(self, tokens: Sequence[int], position: int, found: Floats, beside: Beside = ALONE) -> Floats | None:
        """The log-probabilities [vocabulary] that the oracle compares with those found after a token.

        None where a difference beyond the tolerance shows nothing: the reference depends on what unused memory holds,
        or it is within `ROUNDINGS` times what rounding does to this row.
        """
        expected: Floats = self._reference.expected(tokens, beside)[position]
        distance = float(np.abs(found - expected).max())
        if distance > self.tolerance:
            if not self._reference.is_sound(tokens, beside):
                return None
            if distance <= ROUNDINGS * self._reference.rounding(tokens, beside)[position]:
                self.ill_conditioned += 1
                return None
        self.rows += 1
        self.largest = max(self.largest, distance)
        return expected
