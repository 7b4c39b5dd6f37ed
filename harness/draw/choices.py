"""Sources of choices: the workload is one grammar, and a seeded PRNG or Hypothesis makes its choices."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

Option = TypeVar("Option")


class Choices(Protocol):
    """A source of choices. Small numbers and first options are the simple ones: Hypothesis shrinks towards them."""

    def integer(self, low: int, high: int) -> int:
        """Return a number in low..high, both included."""
        ...

    def pick(self, options: Sequence[Option]) -> Option:
        """Return one of the options."""
        ...

    def chance(self, percent: int) -> bool:
        """Return True in about `percent` of a hundred cases."""
        ...


class RandomChoices:
    """The seeded source: the same seed gives the same choices on every machine."""

    def __init__(self, seed: int, index: int | str = 0) -> None:
        self._random = random.Random(f"{seed}/{index}")
        self._float = self._random.random

    def integer(self, low: int, high: int) -> int:
        return low + int(self._float() * (high - low + 1))

    def pick(self, options: Sequence[Option]) -> Option:
        return options[int(self._float() * len(options))]

    def chance(self, percent: int) -> bool:
        return self._float() * 100 < percent
