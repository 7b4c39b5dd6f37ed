"""What a numeric target tells beside its tags: plain tuples of numbers, judged by S6 and S7 as bits and as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class NumericRow(NamedTuple):
    """One live row of a numeric forward: `row` in the batch, and what the read-out chose after each of `tokens`."""

    request: str | None
    row: int
    position: int
    tokens: Sequence[int]
    choices: Sequence[int]


class LayerOutput(NamedTuple):
    """What one layer computed for one numeric row (index into `Numeric.rows`).

    values  float32 [tokens, OUTPUT_WIDTH] under NaN poison
    agree   the same bits under every fill of dead memory
    """

    row: int
    group: int
    layer: int
    values: Any
    agree: bool


class Bytes(NamedTuple):
    """What one page of a numeric target holds, as float32 arrays: recurrent state and window, or keys and values."""

    first: Any
    second: Any
