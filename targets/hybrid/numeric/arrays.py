"""From calls to index arrays: one flat batch for all rows, layers and fills of dead memory.

Order of tokens: first the rows of the update kernels (decodes, drafts included), then those of the prefill kernels;
within each part the rows of the first fill, then of the next. So one launch serves all fills, and no kernel
knows that they exist. `shape` is all that a launch depends on apart from the arrays: two steps of equal shape may
share a captured graph.

For a graph (`fixed`) everything has the size of its largest use. Rows that are shorter and tokens that nobody compares
leave the rest of the arrays at what names nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....reference.layout import Layout, required_columns
from ....reference.tiny_model import embedding_row
from ..kernels import RowInput
from .calls import Calls, Layer, StateCall, WriteCall
from .pool import FILLS, BytePool

Ints = NDArray[np.int32]
NO_PAGE = 0
"""What kernels take for the null block."""
NO_SLOT = -1
COLUMN_UNIT = 16
"""Tables are this many columns wide, or twice as many, ...: kernels are compiled once for all."""


class Shape(NamedTuple):
    """What a launch sequence depends on; sizes include all fills.

    updates, prefills              rows of each part
    update_tokens, prefill_tokens  tokens of each part
    longest_update, longest_prefill, longest_row  most tokens of a row
    compared                       tokens in one fill whose outputs are wanted
    """

    updates: int
    prefills: int
    update_tokens: int
    prefill_tokens: int
    longest_update: int
    longest_prefill: int
    compared: int


@dataclass(slots=True)
class Flat:
    """Rows of one forward, by part."""

    updates: list[RowInput]
    prefills: list[RowInput]

    def expanded(self) -> Iterator[tuple[int, RowInput]]:
        """(fill, row) in flat order."""
        for part in (self.updates, self.prefills):
            for fill in range(len(FILLS)):
                for row in part:
                    yield fill, row


def starts_of(lengths: Sequence[int]) -> Ints:
    """Prefix sums, from 0."""
    return np.array([0, *accumulate(lengths)], np.int32)


class Builder:
    """Fills the arrays of one forward."""

    def __init__(self, pool: BytePool, calls: Calls, inputs: Sequence[RowInput], columns: Sequence[int] = ()) -> None:
        self.pool = pool
        self.columns = columns
        self.calls = calls
        self.live = {one.row for one in inputs}
        dead = {
            call.inputs.row: call.inputs
            for state_calls in calls.states.values()
            for call in state_calls
            if call.inputs.row not in self.live
        }
        every = [*inputs, *dead.values()]
        self.flat = Flat(
            [one for one in every if len(one.tokens) == one.drafts + 1],
            [one for one in every if len(one.tokens) != one.drafts + 1],
        )
        self.arrays: dict[str, Ints] = {}

    def build(self, fixed: bool) -> Shape:
        """All arrays; returns the shape, which is `fixed` for all batches of as many rows of the same length."""
        flat, fills = self.flat, len(FILLS)
        rows = list(flat.expanded())
        lengths = [len(one.tokens) for _, one in rows]
        cut = fills * len(flat.updates)
        longest_update, longest_prefill = max(lengths[:cut], default=0), max(lengths[cut:], default=0)
        tokens = len(rows) * longest_update if fixed else sum(lengths)
        self.arrays["embeddings"] = np.zeros(tokens, np.int32)
        self.arrays["embeddings"][: sum(lengths)] = [
            embedding_row(token, one.position + index) for _, one in rows for index, token in enumerate(one.tokens)
        ]
        self.arrays["update starts"] = starts_of(lengths[:cut])
        self.arrays["prefill starts"] = starts_of(lengths[cut:])
        self.arrays["starts"] = starts_of(lengths)
        compared = self._compared(rows, tokens // fills if fixed else 0)
        for index, group in enumerate(self.pool.layout.groups):
            for layer in range(group.layers):
                if group.kind == "mamba":
                    self._state_layer((index, layer))
                else:
                    self._attention_layer((index, layer), rows, tokens)
        update_tokens = tokens if fixed else sum(lengths[:cut])
        return Shape(
            cut, len(rows) - cut, update_tokens, tokens - update_tokens, longest_update, longest_prefill, compared
        )

    def _compared(self, rows: Sequence[tuple[int, RowInput]], least: int) -> int:
        """Where the tokens of live rows lie in each fill, rows in the order of the batch; `least` so many entries."""
        starts = self.arrays["starts"]
        at = {(fill, one.row): int(starts[index]) for index, (fill, one) in enumerate(rows)}
        live = sorted((one for fill, one in rows if fill == 0 and one.row in self.live), key=lambda one: one.row)
        count = max(sum(len(one.tokens) for one in live), least)
        compared = np.zeros((len(FILLS), count), np.int32)
        for fill in range(len(FILLS)):
            places = [at[fill, one.row] + index for one in live for index in range(len(one.tokens))]
            compared[fill, : len(places)] = places
        self.arrays["compared"] = compared.reshape(-1)
        return count

    def page(self, fill: int, block: int | None) -> int:
        """Page that a kernel is told; a row beyond its table may name any id."""
        return NO_PAGE if block is None else self.pool.page(fill, block)

    def _state_layer(self, layer: Layer) -> None:
        name, flat, arrays = f"{layer} ", self.flat, self.arrays
        by_row = {call.inputs.row: call for call in self.calls.states.get(layer, [])}
        updates = [(fill, by_row[one.row]) for fill in range(len(FILLS)) for one in flat.updates]
        if updates:
            width = max(len(one.tokens) for one in flat.updates)
            outputs = np.full((len(updates), width), NO_PAGE, np.int32)
            windows = np.full(len(updates), NO_PAGE, np.int32)
            for index, (fill, call) in enumerate(updates):
                for count, block in call.states:
                    outputs[index, count - 1] = self.page(fill, block)
                for _, block in call.windows:
                    windows[index] = self.page(fill, block)
            self._sources(name + "update ", updates)
            arrays[name + "update outputs"] = outputs.reshape(-1)
            arrays[name + "update windows"] = windows
        prefills = [(fill, by_row[one.row]) for fill in range(len(FILLS)) for one in flat.prefills]
        if prefills:
            self._sources(name + "prefill ", prefills)
            self._stops(name + "prefill states ", [(fill, call.states) for fill, call in prefills])
            self._stops(name + "prefill windows ", [(fill, call.windows) for fill, call in prefills])

    def _sources(self, name: str, calls: Sequence[tuple[int, StateCall]]) -> None:
        self.arrays[name + "temporal"] = np.array([self.page(fill, call.temporal) for fill, call in calls], np.int32)
        self.arrays[name + "conv"] = np.array([self.page(fill, call.conv) for fill, call in calls], np.int32)
        self.arrays[name + "offsets"] = np.array([call.offset for _, call in calls], np.int32)

    def _stops(self, name: str, rows: Sequence[tuple[int, Sequence[tuple[int, int]]]]) -> None:
        ordered = [(fill, sorted(stops)) for fill, stops in rows]
        self.arrays[name + "starts"] = starts_of([len(stops) for _, stops in ordered])
        self.arrays[name + "counts"] = np.array([count for _, stops in ordered for count, _ in stops], np.int32)
        self.arrays[name + "blocks"] = np.array(
            [self.page(fill, block) for fill, stops in ordered for _, block in stops], np.int32
        )

    def slots(self, fill: int, write: WriteCall, size: int) -> list[int]:
        """Slot of every token in one fill."""
        return [
            NO_SLOT if block is None else self.pool.page(fill, block) * size + slot
            for block, slot in zip(write.blocks, write.slots, strict=True)
        ]

    def lone_writes(self, layer: Layer, writes: Sequence[WriteCall]) -> tuple[Ints, Ints]:
        """(embedding rows, slots) of keys and values that are stored outside of a forward."""
        size = self.pool.layout.groups[layer[0]].block_size
        expanded = [(fill, write) for fill in range(len(FILLS)) for write in writes]
        slots = [slot for fill, write in expanded for slot in self.slots(fill, write, size)]
        rows = [
            embedding_row(token, write.inputs.position + index)
            for _, write in expanded
            for index, token in enumerate(write.inputs.tokens)
        ]
        return np.array(rows, np.int32), np.array(slots, np.int32)

    def _attention_layer(self, layer: Layer, rows: Sequence[tuple[int, RowInput]], tokens: int) -> None:
        writes = {call.inputs.row: call for call in self.calls.writes.get(layer, [])}
        reads = {call.inputs.row: call for call in self.calls.reads.get(layer, [])}
        size, columns = self.pool.layout.groups[layer[0]].block_size, self.columns[layer[0]]
        slots: list[int] = []
        table = np.full((len(rows), columns), NO_PAGE, np.int32)
        lengths = np.zeros(len(rows), np.int32)
        for index, (fill, one) in enumerate(rows):
            write, read = writes.get(one.row), reads.get(one.row)
            slots += self.slots(fill, write, size) if write else [NO_SLOT] * len(one.tokens)
            if read is not None:
                pages = [self.page(fill, block) for block in read.blocks][: columns - read.first_column]
                table[index, read.first_column : read.first_column + len(pages)] = pages
                lengths[index] = read.length
        self.arrays[f"{layer} slots"] = np.full(tokens, NO_SLOT, np.int32)
        self.arrays[f"{layer} slots"][: len(slots)] = slots
        self.arrays[f"{layer} table"] = table.reshape(-1)
        self.arrays[f"{layer} lengths"] = lengths


def table_columns(layout: Layout, tokens: int) -> list[int]:
    """Width of the device's block table by group, for requests of up to `tokens` tokens."""
    k = layout.num_speculative_tokens
    return [-(-required_columns(group, layout.mode, tokens, k) // COLUMN_UNIT) * COLUMN_UNIT for group in layout.groups]


def that_touch_nothing(arrays: Mapping[str, Ints]) -> dict[str, Ints]:
    """The same shape, but every page is null and no token is stored: what a graph is captured with."""
    named = ("temporal", "conv", "outputs", "windows", "blocks", "table", "lengths")
    return {
        name: np.full_like(array, NO_SLOT) if name.endswith("slots")
        else np.zeros_like(array) if name.rpartition(" ")[2] in named
        else array
        for name, array in arrays.items()
    }  # fmt: skip
