"""Indices that the kernels of one forward read and write: expected values, and the entries that the host overrides.

The device gets the inputs of a worker's metadata builder: block tables and, for each row, its row of the tables, its
position and tokens, and the column and offset of its state. From these, kernels compute slots, state pages, stops and
attention tables, which the layers use. This module computes the expected values on the host (plain numpy, no code
shared with the kernels or the torch reference). Results are compared with them entry by entry.

The symbolic step may have used another index: a broken part computes its own column, replays an old buffer or ignores a
flag. The host sends such an entry to override the computed one. All other entries are sent as COMPUTED, so the host's
value never reaches the device. The correct target overrides no entry (`IndexArrays.sent` is 0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .pool import NO_PAGE
from .tables import Ints, look_up

NO_SLOT = -1
NO_STOP = -1
COMPUTED = -2
"""In an uploaded array: use the entry that the device computes."""

Stop = tuple[int, int]
"""(tokens, page): store a state in the page after so many tokens."""


class IndexArrays:
    """Arrays of one forward: `arrays` to upload, `expected` results, and `sent`, the number of overridden entries."""

    def __init__(self) -> None:
        self.arrays: dict[str, Ints] = {}
        self.expected: dict[str, Ints] = {}
        self.sent = 0

    def add(self, name: str, rule: Ints, taken: Ints) -> None:
        """Add an upload that overrides the entries in which `taken` differs from `rule`."""
        different = taken != rule
        self.sent += int(np.count_nonzero(different))
        self.arrays[name] = np.where(different, taken, COMPUTED).astype(np.int32).reshape(-1)

    def add_stops(self, name: str, rule: tuple[Ints, Ints], taken: Sequence[Sequence[Stop]]) -> None:
        """Add uploads for stops [rows, capacity]; a row whose stops differ is overridden as a whole."""
        counts, blocks = (np.full_like(part, COMPUTED) for part in rule)
        for row, stops in enumerate(taken):
            ruled = [(count, page) for count, page in zip(rule[0][row], rule[1][row], strict=True) if page != NO_PAGE]
            if sorted(stops) != sorted(ruled):
                counts[row], blocks[row] = NO_STOP, NO_PAGE
                for index, (count, page) in enumerate(stops):
                    counts[row, index], blocks[row, index] = count, page
                self.sent += len(stops)
        self.arrays[name + "counts"], self.arrays[name + "blocks"] = counts.reshape(-1), blocks.reshape(-1)


class StateRule(NamedTuple):
    """Pages by row: sources of recurrent state and window [rows], outputs [rows, width]."""

    sources: Ints
    windows: Ints
    outputs: Ints


def state_rule(
    table: Ints, rows: Ints, positions: Ints, counts: Ints, columns: Ints, offsets: Ints, *, size: int, width: int
) -> StateRule:
    """Return the expected state pages. A row at position 0 reads none. If `size` is 0 the running column is 0."""
    live = np.where(counts > 0, rows, -1)
    continuing = np.where((positions > 0) & (columns >= 0), live, -1)
    running: Ints = (positions + counts - 1) // size if size else np.zeros_like(rows)
    drafts = np.arange(width, dtype=np.int32)
    outputs = look_up(table, np.repeat(live[:, None], width, 1), running[:, None] + drafts)
    return StateRule(look_up(table, continuing, columns + offsets), look_up(table, continuing, columns), outputs)


def stop_rule(table: Ints, rows: Ints, positions: Ints, counts: Ints, *, size: int, capacity: int) -> tuple[Ints, Ints]:
    """Return (counts, pages) [rows, capacity] of mode all: boundaries strictly inside in order, the end last."""
    after, pages = np.full((len(rows), capacity), NO_STOP), np.full((len(rows), capacity), NO_PAGE)
    for index, (row, position, count) in enumerate(zip(rows, positions, counts, strict=True)):
        inside = range((position // size + 1) * size, position + count, size)
        for place, depth in [*enumerate(inside), (capacity - 1, position + count)]:
            after[index, place] = depth - position
            pages[index, place] = look_up(table, row, np.asarray((depth - 1) // size))
    return after, pages


def slot_rule(table: Ints, rows: Ints, positions: Ints, counts: Ints, size: int, tokens: int) -> Ints:
    """Return the slot of each token [tokens]; NO_SLOT for missing blocks and for entries after the rows."""
    slots = np.full(tokens, NO_SLOT)
    own = np.repeat(np.arange(len(rows)), counts)
    position = positions[own] + np.arange(len(own)) - np.repeat(np.cumsum(counts) - counts, counts)
    pages = look_up(table, rows[own], position // size)
    slots[: len(own)] = np.where(pages > NO_PAGE, pages * size + position % size, NO_SLOT)
    return slots


def differing(expected: Mapping[str, Ints], found: Ints) -> list[str]:
    """Return a line for each array that differs from the expected one; `found` has all in the order of their names."""
    names, start = [], 0
    for name in sorted(expected):
        end = start + expected[name].size
        if not np.array_equal(found[start:end], expected[name].reshape(-1)):
            group, _, what = name.partition(" ")
            names.append(f"computing the {what} of group {group}")
        start = end
    return names
