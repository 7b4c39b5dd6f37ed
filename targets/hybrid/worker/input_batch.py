"""The worker's persistent batch: rows, a mirror of the block tables, and the buffers that captured graphs read.

Block tables are flat arrays with a fixed row stride, as on a device: a column beyond the width is the next row's
first one. When a request leaves, the last row moves to its place and the vacated row is cleared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct
from mypy_extensions import mypyc_attr

from ....reference.layout import Layout, required_columns
from ..layout import NULL_BLOCK
from .accepted_counts import AcceptedCounts


class StateIndices(Struct, frozen=True, gc=False):
    """Blocks, with their columns, that the state kernels of one row read and write.

    source      block of the initial temporal state
    conv        block of the convolution buffer, read at token offset `offset`
    outputs     running block, then one scratch block per draft
    boundaries  (tokens of this row, column, block): states stored after so many tokens (mode all)
    """

    source_column: int
    source: int
    conv_column: int
    conv: int
    offset: int
    run_column: int
    outputs: tuple[int, ...]
    boundaries: tuple[tuple[int, int, int], ...] = ()
    table_row: int = -1


NULL_INDICES = StateIndices(0, NULL_BLOCK, 0, NULL_BLOCK, 0, 0, (NULL_BLOCK,))


@mypyc_attr(allow_interpreted_subclasses=True)
class InputBatch:
    """A persistent batch of up to `max_rows` rows."""

    accepted_class: ClassVar[type[AcceptedCounts]] = AcceptedCounts

    def __init__(self, layout: Layout, max_rows: int, max_tokens: int) -> None:
        self.layout = layout
        self.max_rows = max_rows
        self.names: list[str] = []
        self.widths = [self.table_width(index, max_tokens) for index in range(len(layout.groups))]
        self.tables = [[NULL_BLOCK] * (width * (max_rows + 1)) for width in self.widths]
        self.lengths: list[list[int]] = [[0] * max_rows for _ in layout.groups]
        self.computed, self.prompts = [0] * max_rows, [0] * max_rows
        """Computed tokens and prompt length by row, for the metadata builders; a vacated row keeps its last values."""
        self.accepted = self.accepted_class(len(layout.groups), max_rows, layout.num_speculative_tokens)
        self.captured: list[list[StateIndices]] = [[NULL_INDICES] * max_rows for _ in layout.groups]

    def table_width(self, group: int, max_tokens: int) -> int:
        """Return the columns of one row: enough for the longest request, scratch columns included."""
        layout = self.layout
        return required_columns(layout.groups[group], layout.mode, max_tokens, layout.num_speculative_tokens)

    def add(self, name: str, table: Sequence[Sequence[int]], prompt_length: int) -> None:
        """Add a request in the next free row."""
        assert len(self.names) < self.max_rows
        self.prompts[len(self.names)] = prompt_length
        for lengths in self.lengths:
            lengths[len(self.names)] = 0
        self.names.append(name)
        self.append(name, table)

    def append(self, name: str, columns: Sequence[Sequence[int]]) -> None:
        """Append new columns to a request's row, by group."""
        row = self.names.index(name)
        for group, blocks in enumerate(columns):
            if blocks:
                start = row * self.widths[group] + self.lengths[group][row]
                self.tables[group][start : start + len(blocks)] = blocks
                self.lengths[group][row] += len(blocks)

    def remove(self, name: str) -> None:
        """Remove a request; the last row moves to its place."""
        if name not in self.names:
            return
        row, last = self.names.index(name), len(self.names) - 1
        if row != last:
            self.move_row(last, row)
        self.names.pop()
        self.accepted.forget(name)
        self.clear_row(last)

    def move_row(self, source: int, destination: int) -> None:
        """Move row `source` to row `destination`."""
        self.names[destination] = self.names[source]
        self.computed[destination], self.prompts[destination] = self.computed[source], self.prompts[source]
        for group, width in enumerate(self.widths):
            table = self.tables[group]
            table[destination * width : (destination + 1) * width] = table[source * width : (source + 1) * width]
            self.lengths[group][destination] = self.lengths[group][source]

    def clear_row(self, row: int) -> None:
        """Fill a vacated row with the null block, so that padding and dummy rows write nothing."""
        for group, width in enumerate(self.widths):
            self.tables[group][row * width : (row + 1) * width] = [NULL_BLOCK] * width
            self.lengths[group][row] = 0

    def block(self, group: int, row: int, column: int) -> int:
        """Return the block at a column of a row, as the device reads it."""
        return self.tables[group][row * self.widths[group] + column]

    def row_blocks(self, group: int, row: int, columns: int) -> list[int]:
        """Return the first `columns` blocks of a row."""
        start = row * self.widths[group]
        return self.tables[group][start : start + columns]

    def look_up(
        self,
        group: int,
        row: int,
        columns: tuple[int, int, int],
        offset: int,
        drafts: int,
        boundaries: tuple[tuple[int, int, int], ...] = (),
    ) -> StateIndices:
        """Return the indices of a row from its columns (source, convolution, running)."""
        source, conv, run = columns
        table, start = self.tables[group], row * self.widths[group]
        outputs = tuple(table[start + run : start + run + drafts + 1])
        return StateIndices(
            source, table[start + source], conv, table[start + conv], offset, run, outputs, boundaries, row
        )

    def is_prefill(self, row: int) -> bool:
        """Return True if a row is still computing its prompt."""
        return self.computed[row] < self.prompts[row]

    def capture(
        self, group: int, indices: Sequence[StateIndices], prefilling: Sequence[bool]
    ) -> Sequence[StateIndices]:
        """Refresh the persistent buffer that a captured graph reads and return the graph's view of it.

        A batch with prefills replays no graph, so nothing is copied for it.
        """
        if not any(prefilling):
            self.captured[group][: len(indices)] = indices
        return self.captured[group][: len(indices)]
