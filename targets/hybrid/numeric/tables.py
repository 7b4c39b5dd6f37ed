"""The worker's block tables as the device has them: flat, with a fixed row stride, in pages, for each fill.

Kernels get the number of columns that the layout requires, not the width of the worker's rows. If a worker's table is
too narrow, a column beyond its end is the next row's first, as in the symbolic run and on real devices.
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
"""Attention tables have a multiple of this many columns, so that kernels are compiled for few widths."""


class Tables:
    """Tables of all groups, of the worker's batch or of the drafter.

    source   flat block ids of a group, `height` rows of `strides[group]` columns
    is_null  True for block ids that kernels treat as placeholders
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
        """Pages [fills, blocks]; they stay the same when the pool is allocated again."""

    @classmethod
    def of_batch(cls, layout: Layout, batch: InputBatch, span: int, is_null: Callable[[int], bool]) -> Tables:
        """Return the worker's tables, by row of the persistent batch, with one spare row."""
        return cls(layout, span, batch.max_rows + 1, batch.widths, lambda group: batch.tables[group], is_null)

    @classmethod
    def of_drafter(cls, layout: Layout, drafter: Drafter, span: int, is_null: Callable[[int], bool]) -> Tables:
        """Return the drafter's tables, by request slot."""
        columns = columns_of(layout, span)

        def source(group: int) -> list[int]:
            rows = [tables[group][: columns[group]] for tables in drafter.tables]
            return [block for row in rows for block in (*row, *[NULL_BLOCK] * (columns[group] - len(row)))]

        return cls(layout, span, len(drafter.tables), columns, source, is_null)

    def row(self, fill: int, row: int) -> int:
        """Return the row of the device's table for a row of one fill; negative rows stay as they are."""
        return row if row < 0 else fill * self._height + row

    def flat(self, group: int, pool: BytePool) -> Ints:
        """Return the present table of one group, with room for the columns of the last row."""
        if self._page_of is None:
            blocks = range(self.layout.num_blocks)
            null = np.array([self._is_null(block) for block in blocks])
            pages = [[pool.page(fill, block) for block in blocks] for fill in range(len(FILLS))]
            self._page_of = np.where(null, NO_PAGE, pages)
        flat = np.zeros(self.rows * self.strides[group] + self.columns[group], np.int32)
        flat[: self.rows * self.strides[group]] = self._page_of[:, self._source(group)].reshape(-1)
        return flat

    def view(self, group: int, flat: Ints) -> Ints:
        """Return a view [rows, columns] of a flat table; rows may overlap."""
        shape, stride = (self.rows, self.columns[group]), flat.strides[0]
        return np.lib.stride_tricks.as_strided(flat, shape, (self.strides[group] * stride, stride), writeable=False)


def columns_of(layout: Layout, span: int) -> list[int]:
    """Return the columns by group for requests of `span` tokens."""
    return [required_columns(group, layout.mode, span, layout.num_speculative_tokens) for group in layout.groups]


def look_up(table: Ints, rows: Ints, columns: Ints) -> Ints:
    """Return table[rows, columns] elementwise, null for a missing row or column."""
    inside = (rows >= 0) & (rows < table.shape[0]) & (columns >= 0) & (columns < table.shape[1])
    return np.where(inside, table[np.where(inside, rows, 0), np.where(inside, columns, 0)], NO_PAGE)
