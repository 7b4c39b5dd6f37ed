"""Arrays of one forward: one flat batch for all rows, layers and fills of dead memory.

Order of tokens: first the rows of the update kernels (decodes, drafts included), then those of the prefill kernels;
within each part the rows of the first fill, then of the next. So one launch serves all fills and kernels do not
distinguish them. Besides the arrays, a launch depends only on their `Shape`: two steps of equal shape may share a
captured graph.

Indices are computed on the device (see `indices`); the calls give only the entries that the host overrides. For a graph
(`fixed`) every array has its largest size, and unused entries name no block, slot or token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from ....reference.numeric.tiny_model import embedding_row
from ..worker.tag_kernels import RowInput
from .indices import NO_SLOT, IndexArrays, slot_rule
from .kernel_calls import KernelCalls, Layer, WriteCall
from .pool import FILLS, NO_PAGE, BytePool
from .state_arrays import StateArrays
from .tables import COLUMN_UNIT, NO_ROW, Ints, Tables, look_up

PARTS = ("update ", "prefill ")


class Shape(NamedTuple):
    """Sizes that determine a launch sequence, over all fills.

    updates, prefills                rows of each part
    update_tokens, prefill_tokens    tokens of each part
    longest_update, longest_prefill  most tokens of a row of each part
    compared                         tokens of one fill whose outputs are compared
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
        """Yield (fill, row) in flat order."""
        for part in (self.updates, self.prefills):
            for fill in range(len(FILLS)):
                for row in part:
                    yield fill, row


def starts_of(lengths: Sequence[int]) -> Ints:
    """Return the prefix sums of lengths, from 0."""
    return np.array([0, *accumulate(lengths)], np.int32)


def embedding_rows(inputs: Iterable[RowInput]) -> list[int]:
    """Return the rows of the embedding tables for the concatenated tokens of `inputs`."""
    return [embedding_row(token, one.position + index) for one in inputs for index, token in enumerate(one.tokens)]


class ArrayBuilder:
    """Builds the arrays of one forward."""

    def __init__(self, pool: BytePool, tables: Tables, calls: KernelCalls, inputs: Sequence[RowInput]) -> None:
        self.pool = pool
        self.tables = tables
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
        self.index_arrays = IndexArrays()
        self.arrays = self.index_arrays.arrays

    def build(self, fixed: bool) -> Shape:
        """Build all arrays and return their shape; with `fixed` it depends only on the number and length of rows."""
        flat, fills = self.flat, len(FILLS)
        rows = list(flat.expanded())
        lengths = [len(one.tokens) for _, one in rows]
        cut = fills * len(flat.updates)
        longest_update, longest_prefill = max(lengths[:cut], default=0), max(lengths[cut:], default=0)
        tokens = len(rows) * longest_update if fixed else sum(lengths)
        self.arrays["embeddings"] = np.zeros(tokens, np.int32)
        self.arrays["embeddings"][: sum(lengths)] = embedding_rows(one for _, one in rows)
        self._rows_of("", rows)
        for part, ours in zip(PARTS, (rows[:cut], rows[cut:]), strict=True):
            self._rows_of(part, ours)
        compared = self._compared(rows, tokens // fills if fixed else 0)
        for index, group in enumerate(self.pool.layout.groups):
            self.arrays[f"{index} pages"] = self.tables.flat(index, self.pool)
            if group.kind == "mamba":
                for part, ours in zip(PARTS, (rows[:cut], rows[cut:]), strict=True):
                    if ours:
                        StateArrays(self.pool, self.tables, self.index_arrays, index, part).fill(ours, self.calls)
            else:
                self._attention_group(index, rows, tokens)
        update_tokens = tokens if fixed else sum(lengths[:cut])
        return Shape(
            cut, len(rows) - cut, update_tokens, tokens - update_tokens, longest_update, longest_prefill, compared
        )

    def _rows_of(self, part: str, rows: Sequence[tuple[int, RowInput]]) -> None:
        lengths = [len(one.tokens) for _, one in rows]
        self.arrays[part + "starts"] = starts_of(lengths)
        self.arrays[part + "tokens"] = np.array(lengths, np.int32)
        self.arrays[part + "positions"] = np.array([one.position for _, one in rows], np.int32)

    def _compared(self, rows: Sequence[tuple[int, RowInput]], least: int) -> int:
        """Set the positions of live rows' tokens in each fill, in the order of the batch; return entries per fill.

        There are at least `least` entries.
        """
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

    def _attention_group(self, group: int, rows: Sequence[tuple[int, RowInput]], tokens: int) -> None:
        arrays, size = self.arrays, self.pool.layout.groups[group].block_size
        reads = {call.inputs.row: call for call in self.calls.reads.get((group, 0), [])}
        live = [self.tables.row(fill, one.table_row) if one.row in reads else NO_ROW for fill, one in rows]
        arrays[f"{group} rows"] = np.array(live, np.int32)
        first = [reads[one.row].first_column if one.row in reads else 0 for _, one in rows]
        arrays[f"{group} first"] = np.array(first, np.int32)
        table = self.tables.view(group, arrays[f"{group} pages"])
        slots = slot_rule(table, arrays[f"{group} rows"], arrays["positions"], arrays["tokens"], size, tokens)
        columns = -(-table.shape[1] // COLUMN_UNIT) * COLUMN_UNIT
        ruled = look_up(
            table, np.repeat(arrays[f"{group} rows"][:, None], columns, 1),
            arrays[f"{group} first"][:, None] + np.arange(columns),
        )  # fmt: skip
        ruled = kernel_blocks(ruled, self.pool.pages.split(size))
        self.index_arrays.expected |= {f"{group} slots": slots, f"{group} table": ruled}
        for layer in range(self.pool.layout.groups[group].layers):
            self._attention_layer((group, layer), rows, slots, ruled)

    def _attention_layer(self, layer: Layer, rows: Sequence[tuple[int, RowInput]], slots: Ints, table: Ints) -> None:
        writes = {call.inputs.row: call for call in self.calls.writes.get(layer, [])}
        reads = {call.inputs.row: call for call in self.calls.reads.get(layer, [])}
        size, starts = self.pool.layout.groups[layer[0]].block_size, self.arrays["starts"]
        stored, read = np.full_like(slots, NO_SLOT), table.copy()
        lengths = np.zeros(len(rows), np.int32)
        for index, (fill, one) in enumerate(rows):
            if write := writes.get(one.row):
                stored[starts[index] : starts[index + 1]] = slots_of(self.pool, fill, write, size)
            if call := reads.get(one.row):
                pages = np.array(self.pool.pages_or_null(fill, call.blocks), np.int32)
                blocks = kernel_blocks(pages, self.pool.pages.split(size))[: table.shape[1]]
                read[index, : len(blocks)] = blocks
                lengths[index] = call.length - call.first_column * size
        self.index_arrays.add(f"{layer} slots", slots, stored)
        self.index_arrays.add(f"{layer} table", table, read)
        self.arrays[f"{layer} lengths"] = lengths


def kernel_blocks(pages: Ints, split: int) -> Ints:
    """Return the ids of the `split` kernel blocks of each page, along the last dimension; null stays null."""
    ids = pages[..., None] * split + np.arange(split, dtype=np.int32)
    return np.where(pages[..., None] == NO_PAGE, NO_PAGE, ids).reshape(*pages.shape[:-1], -1)


def slots_of(pool: BytePool, fill: int, write: WriteCall, size: int) -> list[int]:
    """Return the slot of every token in one fill."""
    pages = pool.pages_or_null(fill, write.blocks)
    return [page * size + slot if page != NO_PAGE else NO_SLOT for page, slot in zip(pages, write.slots, strict=True)]


def lone_writes(pool: BytePool, tables: Tables, layer: Layer, writes: Sequence[WriteCall]) -> IndexArrays:
    """Return the arrays for KV that a drafter writes outside a forward, through its tables."""
    index_arrays, group, size = IndexArrays(), layer[0], pool.layout.groups[layer[0]].block_size
    rows = [(fill, write) for fill in range(len(FILLS)) for write in writes]
    lengths = [len(write.inputs.tokens) for _, write in rows]
    index_arrays.arrays |= {
        f"{group} pages": tables.flat(group, pool),
        f"{group} rows": np.array([tables.row(fill, write.inputs.table_row) for fill, write in rows], np.int32),
        "positions": np.array([write.inputs.position for _, write in rows], np.int32),
        "starts": starts_of(lengths),
        "embeddings": np.array(embedding_rows(write.inputs for _, write in rows), np.int32),
    }
    where = index_arrays.arrays[f"{group} rows"], index_arrays.arrays["positions"], np.array(lengths, np.int32)
    rule = slot_rule(tables.view(group, index_arrays.arrays[f"{group} pages"]), *where, size, sum(lengths))
    index_arrays.expected[f"{group} slots"] = rule
    index_arrays.add(
        f"{layer} slots", rule, np.array([slot for fill, write in rows for slot in slots_of(pool, fill, write, size)])
    )
    return index_arrays


def null_arrays(arrays: Mapping[str, Ints]) -> dict[str, Ints]:
    """Return arrays of the same shape with null pages and no stored token, to capture a graph with."""
    named = ("pages", "temporal", "conv", "outputs", "windows", "blocks", "table", "lengths")
    return {
        name: np.full_like(array, NO_SLOT) if name.endswith("slots")
        else np.zeros_like(array) if name.rpartition(" ")[2] in named
        else array
        for name, array in arrays.items()
    }  # fmt: skip
