"""Indices of one forward, computed on the device by the kernels of `kernels/tables`; see `indices` for expected values.

The host reads no result before the step has ended, so a graph can capture the computation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ....reference.layout import Layout
from .indices import COMPUTED, NO_STOP
from .kernels.metadata import NULL_BLOCK, Rows, Stops
from .kernels.ops import Ops
from .tables import COLUMN_UNIT, Tables

Arrays = Mapping[str, Tensor]


class StatePages(NamedTuple):
    """Pages by row of one group: sources and windows [rows], outputs [rows, width]; all int32."""

    sources: Tensor
    windows: Tensor
    outputs: Tensor


class Metadata:
    """Computes the indices of one forward; `found` keeps the results by the names of `IndexArrays.expected`."""

    def __init__(self, layout: Layout, tables: Tables, ops: Ops, arrays: Arrays) -> None:
        self.layout = layout
        self.tables = tables
        self.ops = ops
        self.arrays = arrays
        self.found: dict[str, Tensor] = {}

    def all_found(self) -> Tensor:
        """Return all computed indices as one int32 vector, in the order of their names."""
        return torch.cat([self.found[name].reshape(-1).int() for name in sorted(self.found)])

    def pages(self, group: int) -> Tensor:
        """Return the block tables of a group, [rows, columns]."""
        flat, columns = self.arrays[f"{group} pages"], self.tables.columns[group]
        return torch.as_strided(flat, (self.tables.rows, columns), (self.tables.strides[group], 1))

    def states(self, group: int, part: str, width: int) -> StatePages:
        """Return the state pages of one part of the batch."""
        arrays, name = self.arrays, f"{group} {part}"
        rows = arrays[name + "rows"]
        sources, windows = torch.empty_like(rows), torch.empty_like(rows)
        outputs = torch.empty((len(rows), width), dtype=rows.dtype, device=rows.device)
        assert self.layout.mode != "slots"
        self.ops.state_indices(
            self.pages(group), rows, arrays[part + "positions"], arrays[part + "tokens"], arrays[name + "columns"],
            arrays[name + "offsets"], sources, windows, outputs,
            mode=self.layout.mode, block_size=self.layout.groups[group].block_size,
        )  # fmt: skip
        self.found |= {name + "sources": sources, name + "windows": windows, name + "outputs": outputs}
        return StatePages(sources, windows, outputs)

    def stops_with_overrides(self, name: str, computed: tuple[Tensor, Tensor]) -> Stops:
        """Return the stops of one layer's prefills; `name` is the prefix of its uploaded arrays."""
        counts, blocks = computed
        return stops_of(
            with_overrides(self.arrays[name + "counts"], counts), with_overrides(self.arrays[name + "blocks"], blocks)
        )

    def stops(self, group: int, part: str, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return (counts, pages) [rows, capacity] of prefills: the end and, in mode all, the boundaries before it.

        The uploaded arrays have the same capacity in every layer.
        """
        capacity = len(self.arrays[f"{group, 0} {part}states counts"]) // len(outputs)
        arrays, name = self.arrays, f"{group} {part}"
        rows = arrays[name + "rows"]
        counts = torch.full((len(rows), capacity), NO_STOP, dtype=rows.dtype, device=rows.device)
        blocks = torch.full_like(counts, NULL_BLOCK)
        if self.layout.mode == "all":
            self.ops.boundary_stops(
                self.pages(group), rows, arrays[part + "positions"], arrays[part + "tokens"], counts, blocks,
                block_size=self.layout.groups[group].block_size,
            )  # fmt: skip
            self.found |= {name + "counts": counts, name + "blocks": blocks}
        else:
            counts[:, -1], blocks[:, -1] = arrays[part + "tokens"], outputs[:, 0]
        return counts, blocks

    def slots(self, group: int, rows: Rows, tokens: int) -> Tensor:
        """Return the KV slot of each token, int64 [tokens]."""
        slots = torch.empty(tokens, dtype=torch.int64, device=rows.starts.device)
        row_map, size = self.arrays[f"{group} rows"], self.layout.groups[group].block_size
        self.ops.slot_mapping(self.pages(group), row_map, rows, self.arrays["positions"], slots, block_size=size)
        self.found[f"{group} slots"] = slots
        return slots

    def table(self, group: int, split: int) -> Tensor:
        """Return the kernel blocks that attention reads, int32 [rows, columns * split], from the first attended one."""
        row_map = self.arrays[f"{group} rows"]
        columns = -(-self.tables.columns[group] // COLUMN_UNIT) * COLUMN_UNIT
        table = torch.empty((len(row_map), columns * split), dtype=torch.int32, device=row_map.device)
        self.ops.gather_columns(self.pages(group), row_map, self.arrays[f"{group} first"], table, split=split)
        self.found[f"{group} table"] = table
        return table


def with_overrides(sent: Tensor, computed: Tensor) -> Tensor:
    """Return the computed entries, replaced where the host sent another, in the shape of `computed`."""
    sent = sent.view(computed.shape)
    return torch.where(sent == COMPUTED, computed, sent.to(computed.dtype))


def stops_of(counts: Tensor, blocks: Tensor) -> Stops:
    """Return stops from arrays [rows, capacity]."""
    rows, capacity = counts.shape
    starts = torch.arange(rows + 1, dtype=torch.int32, device=counts.device) * capacity
    return Stops(starts, counts.view(-1), blocks.view(-1))
