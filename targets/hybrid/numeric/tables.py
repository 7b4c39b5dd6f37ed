"""The worker's block tables as the device has them: flat, with a fixed row stride, in pages, for each fill.

A kernel is told how many columns the layout needs, which is not how wide the worker made the rows: where a worker's
table is too narrow, a column behind its end is the next row's first, as in the symbolic run and on real devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ....reference.layout import Layout, required_columns
from ..layout import NULL_BLOCK
from ..worker.drafter import Drafter
from ..worker.input_batch import InputBatch
from .pool import FILLS, NO_PAGE, BytePool

Ints = NDArray[np.int32]
NO_ROW = -1
COLUMN_UNIT = 16
"""Attention's tables are this many columns wide, or twice as many, ...: kernels are compiled once for all."""


class Tables:
    """All groups' tables of one owner of rows.

    source   flat block ids of a group, `height` rows of `strides[group]` columns
    is_null  which block ids kernels take for placeholders
    """

    def __init__(
        self,
        layout: Layout,
        span: int,
        height: int,
        strides: Sequence[int],
        source: Callable[[int], Sequence[int]],
        is_null: Callable[[int], bool],
    ) -> None:
        self.layout = layout
        self.columns = columns_of(layout, span)
        self.strides = strides
        self.rows = len(FILLS) * height
        self._height = height
        self._source = source
        self._is_null = is_null
        self._page_of: Ints | None = None
        """[fills, blocks]: a pool that was given back comes again with the same pages."""

    @classmethod
    def of_batch(cls, layout: Layout, batch: InputBatch, span: int, is_null: Callable[[int], bool]) -> Tables:
        """The worker's, by row of the persistent batch; one more row is behind them."""
        return cls(layout, span, batch.max_rows + 1, batch.widths, lambda group: batch.tables[group], is_null)

    @classmethod
    def of_drafter(cls, layout: Layout, drafter: Drafter, span: int, is_null: Callable[[int], bool]) -> Tables:
        """The drafter's, by request slot."""
        columns = columns_of(layout, span)

        def source(group: int) -> list[int]:
            rows = [tables[group][: columns[group]] for tables in drafter.tables]
            return [block for row in rows for block in (*row, *[NULL_BLOCK] * (columns[group] - len(row)))]

        return cls(layout, span, len(drafter.tables), columns, source, is_null)

    def row(self, fill: int, row: int) -> int:
        """Row of the device's table for one of the owner's."""
        return row if row < 0 else fill * self._height + row

    def flat(self, group: int, pool: BytePool) -> Ints:
        """The table of one group now; behind it, room for the columns of the last row."""
        if self._page_of is None:
            blocks = range(self.layout.num_blocks)
            null = np.array([self._is_null(block) for block in blocks])
            pages = [[pool.page(fill, block) for block in blocks] for fill in range(len(FILLS))]
            self._page_of = np.where(null, NO_PAGE, pages)
        flat = np.zeros(self.rows * self.strides[group] + self.columns[group], np.int32)
        flat[: self.rows * self.strides[group]] = self._page_of[:, self._source(group)].reshape(-1)
        return flat

    def view(self, group: int, flat: Ints) -> Ints:
        """[rows, columns] of a flat table; rows may overlap."""
        shape, stride = (self.rows, self.columns[group]), flat.strides[0]
        return np.lib.stride_tricks.as_strided(flat, shape, (self.strides[group] * stride, stride), writeable=False)


def columns_of(layout: Layout, span: int) -> list[int]:
    """Columns by group for requests of `span` tokens."""
    return [required_columns(group, layout.mode, span, layout.num_speculative_tokens) for group in layout.groups]


def look_up(table: Ints, rows: Ints, columns: Ints) -> Ints:
    """table[rows, columns], elementwise; null where there is no such row or column."""
    inside = (rows >= 0) & (rows < table.shape[0]) & (columns >= 0) & (columns < table.shape[1])
    return np.where(inside, table[np.where(inside, rows, 0), np.where(inside, columns, 0)], NO_PAGE)
