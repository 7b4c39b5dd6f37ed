"""Number formats and the elementary error terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
U = 2.0**-24
UNDERFLOW = 2.0**-120
"""A bound for the error of a few float32 intermediates that are flushed to zero (2**-126 each)."""


class Bounded(NamedTuple):
    """Exact values, and the most by which a correct result may differ from them."""

    value: Array
    bound: Array


@dataclass(frozen=True, slots=True)
class Format:
    """A floating point format, rounded to nearest.

    unit     unit roundoff (half the distance from 1 to the next number)
    step     half of the smallest subnormal
    largest  where it saturates
    """

    unit: float
    step: float
    largest: float = float("inf")

    def error(self, magnitude: Array, scale: float = 1.0) -> Array:
        """Return the largest error of values up to `magnitude` that are divided by `scale`, stored, and multiplied
        again."""
        relative = (1 + self.unit) * (1 + gamma(3)) - 1
        lost: Array = np.maximum(magnitude - self.largest * scale, 0.0)
        return lost + relative * magnitude + 2 * self.step * scale


FLOAT32 = Format(U, 2.0**-150)
FLOAT16 = Format(2.0**-11, 2.0**-25)
BFLOAT16 = Format(2.0**-8, 2.0**-134)
FP8_E4M3 = Format(2.0**-4, 2.0**-10, 448.0)


def gamma(count: float) -> float:
    """Return the relative error of `count` successive roundings."""
    return count * U / (1 - count * U)


def exp_error(argument: Array) -> Array:
    """Return the relative error of exp."""
    return U * (4 * np.abs(argument) + 8)


def rounded(value: Array, bound: Array, output: Format) -> Bounded:
    """Return a result and its bound after a conversion to another format."""
    return Bounded(value, bound + output.error(np.abs(value) + bound) + UNDERFLOW)
