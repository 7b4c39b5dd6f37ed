"""Rows that start from states in a poisoned pool and store new ones, for the tests of the mixers."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from device_support import FORMATS, Arena, assert_within, exact, normal, torch

from hybridfuzz.reference import numeric

STATE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Row(NamedTuple):
    """One row: block of the initial state, that state in float64, and the stops."""

    tokens: int
    block: int
    start: Any
    stops: list[tuple[int, int]]


class States:
    """A pool with one typed field, NaN except for initial states."""

    def __init__(self, rng: random.Random, seed: int, shape: Sequence[int], tokens: Sequence[int]) -> None:
        self.rng, self.shape = rng, tuple(shape)
        self.dtype = rng.choice(STATE_DTYPES)
        self.offset = rng.choice([0, 16, 32])
        self.order = rng.sample(range(len(shape)), len(shape))
        self.blocks = 3 + 12 * len(tokens)
        size = int(np.prod(self.shape)) * self.dtype.itemsize
        self.arena = Arena(self.blocks, -(-(self.offset + size) // 16) * 16)
        self.free = rng.sample(range(1, self.blocks), self.blocks - 1)
        self.starts = [self.start(seed + row) for row in range(len(tokens))]

    def field(self, arena: Arena) -> Any:
        return arena.field(self.offset, self.dtype, self.shape, self.order)

    def start(self, seed: int) -> tuple[int, Any]:
        """Draw a block for the initial state, and its content; sometimes an id that names no block."""
        if self.rng.random() < 0.3:
            return self.rng.choice([0, -1, self.blocks, self.blocks + 7]), np.zeros(self.shape)
        block = self.free.pop()
        content = normal(seed, *self.shape, dtype=self.dtype)
        self.field(self.arena)[block] = content
        return block, exact(content)

    def stops(self, tokens: int, own: int, most: int = 4) -> list[tuple[int, int]]:
        """Draw (count, block) in any order, with null blocks, counts out of range and the row's own block."""
        counts = self.rng.sample(range(tokens + 1), min(self.rng.randint(0, most), tokens + 1))
        stops = [(count, 0 if self.rng.random() < 0.2 else self.free.pop()) for count in counts]
        stops += [(-1, self.free.pop()), (tokens + 1, self.free.pop()), (tokens, -1), (tokens, self.blocks + 1)]
        if own > 0 and own < self.blocks and self.rng.random() < 0.6:
            stops.append((self.rng.randint(0, tokens), own))
        self.rng.shuffle(stops)
        return stops

    def is_real(self, block: int) -> bool:
        return 0 < block < self.blocks

    def check(self, actual: Arena, written: Mapping[int, "numeric.Bounded"]) -> None:
        """Check that written states are within their bounds and no other byte of the pool has changed."""
        before, after = self.arena.copy(), actual.copy()
        for block, expected in written.items():
            assert_within(self.field(after)[block], expected)
            self.field(before)[block] = 0
            self.field(after)[block] = 0
        assert torch.equal(after.bytes(), before.bytes())

    def stored(self, row: Row, states: "numeric.Bounded") -> dict[int, "numeric.Bounded"]:
        """Return the stored states of a row from its states after each token, rounded to the pool's format."""
        kept = FORMATS[self.dtype]
        return {
            block: numeric.Bounded(
                states.value[count],
                states.bound[count] + kept.error(np.abs(states.value[count]) + states.bound[count]),
            )
            for count, block in row.stops
            if 0 <= count <= row.tokens and self.is_real(block)
        }
