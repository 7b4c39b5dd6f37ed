"""Numbers that a numeric target reports beside its tags: plain tuples, compared as bits and as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class NumericRow(NamedTuple):
    """One live row of a numeric forward: its index in the batch, and the token sampled after each of `tokens`."""

    request: str | None
    row: int
    position: int
    tokens: Sequence[int]
    choices: Sequence[int]


class LayerOutput(NamedTuple):
    """The output of one layer for one numeric row.

    row     index into `Numeric.rows`
    values  float32 [tokens, OUTPUT_WIDTH], with unused memory filled with NaN
    agree   True if every fill of unused memory gives the same bits
    """

    row: int
    group: int
    layer: int
    values: Any
    agree: bool


class Bytes(NamedTuple):
    """The content of one page as float32 arrays: recurrent state and window, or keys and values."""

    first: Any
    second: Any
