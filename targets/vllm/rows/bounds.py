"""Bounds checks for indices in vLLM's metadata. A row with one out of range is recorded as `OutOfRange` and skipped.

A kernel would access memory out of bounds; Python would raise for an index that is too large and count a negative one
from the end. Neither reports what the metadata contains.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...base.observe import OutOfRange
from .layer_rows import StateRow


class Bounds:
    """The sizes for one group in one forward: blocks in the pool, rows and tokens in the batch.

    `found` collects the indices that lie outside.
    """

    def __init__(self, group: int, num_blocks: int, num_rows: int, num_tokens: int) -> None:
        self.found: list[OutOfRange] = []
        self._group = group
        self._num_blocks = num_blocks
        self._num_rows = num_rows
        self._num_tokens = num_tokens

    def has(self, row: int, what: str, index: int, size: int) -> bool:
        """Return True if `index` is within `size` entries; otherwise record it."""
        if 0 <= index < size:
            return True
        self.found.append(OutOfRange(row, self._group, what, index, size))
        return False

    def blocks(self, row: int, blocks: Sequence[int]) -> bool:
        """Return True if the pool has all of these blocks."""
        if not blocks or (min(blocks) >= 0 and max(blocks) < self._num_blocks):
            return True
        return all(self.has(row, "block", block, self._num_blocks) for block in blocks)

    def span(self, row: int, tokens: Sequence[int], start: int, stop: int) -> Sequence[int]:
        """Return the part of `tokens` that belongs to a row; empty if the row's boundaries lie outside."""
        if start >= stop:
            return ()
        inside = 0 <= start < stop <= len(tokens)
        if not inside and self.has(row, "token", start, len(tokens)):
            self.has(row, "token", stop - 1, len(tokens))
        return tokens[start:stop] if inside else ()

    def state_row(self, row: StateRow) -> bool:
        """Return True if a row, its tokens and its blocks exist."""
        first, last = min(row.tokens), max(row.tokens)
        if not (0 <= row.row < self._num_rows and first >= 0 and last < self._num_tokens):
            return (
                self.has(row.row, "row", row.row, self._num_rows)
                and self.has(row.row, "token", first, self._num_tokens)
                and self.has(row.row, "token", last, self._num_tokens)
            )
        inner = [row.inner.block] if row.inner else ()
        return self.blocks(row.row, (row.conv, row.temporal, *row.outputs, *inner))
