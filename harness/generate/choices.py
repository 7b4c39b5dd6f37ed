"""Sources of choices. The workload is one grammar; who decides at each fork is exchangeable."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

Option = TypeVar("Option")


class Choices(Protocol):
    """Decides; small numbers and first options are the simple ones, so that Hypothesis shrinks towards them."""

    def integer(self, low: int, high: int) -> int:
        """A number in low..high, both included."""
        ...

    def pick(self, options: Sequence[Option]) -> Option:
        """One of the options."""
        ...

    def chance(self, percent: int) -> bool:
        """True in about `percent` of a hundred cases."""
        ...


class RandomChoices:
    """The seeded source: equal seeds decide equally, on every machine."""

    def __init__(self, seed: int, index: int = 0) -> None:
        self._random = random.Random(f"{seed}/{index}")
        self._float = self._random.random

    def integer(self, low: int, high: int) -> int:
        return low + int(self._float() * (high - low + 1))

    def pick(self, options: Sequence[Option]) -> Option:
        return options[int(self._float() * len(options))]

    def chance(self, percent: int) -> bool:
        return self._float() * 100 < percent
