"""The worker's block tables as the device has them: flat, with a fixed row stride, in pages, for each fill.

A kernel is told how many columns the layout needs, which is not how wide the worker made the rows: where a worker's
table is too narrow, a column behind its end is the next row's first, as in the symbolic run and on real devices.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ....reference.layout import Layout, required_columns
from ..batch import Batch
from .pool import FILLS, NO_PAGE, BytePool

Ints = NDArray[np.int32]
NO_ROW = -1
COLUMN_UNIT = 16
"""Attention's tables are this many columns wide, or twice as many, ...: kernels are compiled once for all."""


class Tables:
    """All groups' tables of one worker; `is_null` says which block ids its kernels take for placeholders."""

    def __init__(self, layout: Layout, batch: Batch, span: int, is_null: Callable[[int], bool]) -> None:
        self.layout = layout
        self.batch = batch
        self.columns = [
            required_columns(group, layout.mode, span, layout.num_speculative_tokens) for group in layout.groups
        ]
        self.strides = batch.widths
        self.rows = len(FILLS) * (batch.max_rows + 1)
        self._is_null = is_null

    def row(self, fill: int, row: int) -> int:
        """Row of the device's table for a row of the worker's."""
        return row if row < 0 else fill * (self.batch.max_rows + 1) + row

    def flat(self, group: int, pool: BytePool) -> Ints:
        """The table of one group now; behind it, room for the columns of the last row."""
        page_of = np.array([[pool.page(fill, block) for block in range(pool.num_blocks)] for fill in range(len(FILLS))])
        page_of[:, [block for block in range(pool.num_blocks) if self._is_null(block)]] = NO_PAGE
        flat = np.zeros(self.rows * self.strides[group] + self.columns[group], np.int32)
        flat[: self.rows * self.strides[group]] = page_of[:, self.batch.tables[group]].reshape(-1)
        return flat

    def view(self, group: int, flat: Ints) -> Ints:
        """[rows, columns] of a flat table; rows may overlap."""
        shape, stride = (self.rows, self.columns[group]), flat.strides[0]
        return np.lib.stride_tricks.as_strided(flat, shape, (self.strides[group] * stride, stride), writeable=False)


def look_up(table: Ints, rows: Ints, columns: Ints) -> Ints:
    """table[rows, columns], elementwise; null where there is no such row or column."""
    inside = (rows >= 0) & (rows < table.shape[0]) & (columns >= 0) & (columns < table.shape[1])
    return np.where(inside, table[np.where(inside, rows, 0), np.where(inside, columns, 0)], NO_PAGE)
