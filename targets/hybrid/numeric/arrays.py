"""From calls to index arrays: one flat batch for all rows, layers and fills of dead memory.

Order of tokens: first the rows of the update kernels (decodes, drafts included), then those of the prefill kernels;
within each part the rows of the first fill, then of the next. So one launch serves all fills, and no kernel
knows that they exist. `shape` is all that a launch depends on apart from the arrays: two steps of equal shape may
share a captured graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ....reference.tiny_model import embedding_row
from ..kernels import RowInput
from .calls import Calls, Layer, ReadCall, StateCall, WriteCall
from .pool import FILLS, BytePool

Ints = NDArray[np.int32]
NO_PAGE = 0
"""What kernels take for the null block."""
NO_SLOT = -1


class Shape(NamedTuple):
    """What a launch sequence depends on; sizes include all fills.

    updates, prefills              rows of each part
    update_tokens, prefill_tokens  tokens of each part
    longest_update, longest_prefill, longest_row  most tokens of a row
    columns                        block table width by attention layer
    compared                       tokens of live rows, in one fill
    """

    updates: int
    prefills: int
    update_tokens: int
    prefill_tokens: int
    longest_update: int
    longest_prefill: int
    columns: tuple[int, ...]
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

    def __init__(self, pool: BytePool, calls: Calls, inputs: Sequence[RowInput]) -> None:
        self.pool = pool
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

    def build(self) -> Shape:
        """All arrays; returns the shape."""
        flat, fills = self.flat, len(FILLS)
        rows = list(flat.expanded())
        lengths = [len(one.tokens) for _, one in rows]
        embeddings = [
            embedding_row(token, one.position + index) for _, one in rows for index, token in enumerate(one.tokens)
        ]
        cut = fills * len(flat.updates)
        self.arrays["embeddings"] = np.array(embeddings, np.int32)
        self.arrays["update starts"] = starts_of(lengths[:cut])
        self.arrays["prefill starts"] = starts_of(lengths[cut:])
        self.arrays["starts"] = starts_of(lengths)
        compared = self._compared(rows)
        for layer, state_calls in self.calls.states.items():
            self._state_layer(layer, {call.inputs.row: call for call in state_calls})
        columns = []
        for layer, write_calls in self.calls.writes.items():
            reads = {call.inputs.row: call for call in self.calls.reads.get(layer, [])}
            columns.append(self._attention_layer(layer, rows, {call.inputs.row: call for call in write_calls}, reads))
        return Shape(
            cut,
            len(rows) - cut,
            sum(lengths[:cut]),
            sum(lengths[cut:]),
            max(lengths[:cut], default=0),
            max(lengths[cut:], default=0),
            tuple(columns),
            compared,
        )

    def _compared(self, rows: Sequence[tuple[int, RowInput]]) -> int:
        """Where the tokens of live rows lie in each fill, rows in the order of the batch."""
        starts = self.arrays["starts"]
        at = {(fill, one.row): int(starts[index]) for index, (fill, one) in enumerate(rows)}
        live = sorted((one for fill, one in rows if fill == 0 and one.row in self.live), key=lambda one: one.row)
        self.arrays["compared"] = np.array(
            [
                [at[fill, one.row] + index for one in live for index in range(len(one.tokens))]
                for fill in range(len(FILLS))
            ],
            np.int32,
        ).reshape(-1)
        return sum(len(one.tokens) for one in live)

    def page(self, fill: int, block: int | None) -> int:
        """Page that a kernel is told; a row beyond its table may name any id."""
        return NO_PAGE if block is None else self.pool.page(fill, block)

    def _state_layer(self, layer: Layer, by_row: dict[int, StateCall]) -> None:
        name, flat, arrays = f"{layer} ", self.flat, self.arrays
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

    def _attention_layer(
        self,
        layer: Layer,
        rows: Sequence[tuple[int, RowInput]],
        writes: dict[int, WriteCall],
        reads: dict[int, ReadCall],
    ) -> int:
        size = self.pool.layout.groups[layer[0]].block_size
        width = max((call.first_column + len(call.blocks) for call in reads.values()), default=1)
        slots: list[int] = []
        table = np.full((len(rows), width), NO_PAGE, np.int32)
        lengths = np.zeros(len(rows), np.int32)
        for index, (fill, one) in enumerate(rows):
            write, read = writes.get(one.row), reads.get(one.row)
            slots += self.slots(fill, write, size) if write else [NO_SLOT] * len(one.tokens)
            if read is not None:
                columns = slice(read.first_column, read.first_column + len(read.blocks))
                table[index, columns] = [self.page(fill, block) for block in read.blocks]
                lengths[index] = read.length
        self.arrays[f"{layer} slots"] = np.array(slots, np.int32)
        self.arrays[f"{layer} table"] = table.reshape(-1)
        self.arrays[f"{layer} lengths"] = lengths
        return width
