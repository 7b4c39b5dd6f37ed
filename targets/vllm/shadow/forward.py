"""One forward of the model: what its layers read from vLLM's metadata, and what they access, in the layers' order.

`Recorder.begin_forward` makes one, each layer asks it for its rows and notes its accesses, and at the end of the step
`record` makes the record of it, since only then the sampled tokens are known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...base.observe import Access, Forward, ForwardRow
from ..rows.bounds import Bounds
from ..rows.kernel_reads import Batch, Columns, local_rows, slot_rows, writing_order
from ..rows.layer_rows import SlotRow, StateRow


@dataclasses.dataclass
class ModelForward:
    """A forward of the model, or of the drafter behind one of the model."""

    batch: Batch
    ids: Sequence[int]
    """The token ids of the model's forward."""
    contents: Sequence[int]
    """The contents of these tokens."""
    context: Any
    """vLLM's forward context, None once the forward is over."""
    tables: Callable[[int, Sequence[str | None]], Sequence[Sequence[int]]]
    """The block tables of a group, by row, as the forward reads them (`RunnerAdapter.table`)."""
    aligned_block_size: int | None
    """Tokens per mamba block in align mode, None in the other modes."""
    inputs: Any
    """What token ids stand for, None if for themselves."""
    accesses: list[Access] = dataclasses.field(default_factory=list)
    """What the layers accessed, the drafter's behind those of the model."""
    _states: dict[int, list[StateRow]] = dataclasses.field(default_factory=dict)
    _slots: dict[int, tuple[list[SlotRow], Sequence[int]]] = dataclasses.field(default_factory=dict)

    def draft(self, context: Any) -> ModelForward:
        """Return a forward of the drafter, whose rows are those of this one."""
        return ModelForward(
            self.batch, self.ids, self.contents, context, self.tables, self.aligned_block_size, self.inputs,
            self.accesses,
        )  # fmt: skip

    def end(self) -> None:
        """Drop the references to vLLM's metadata."""
        self.context = None

    def is_dead(self, row: int) -> bool:
        """Return True if a row belongs to no request."""
        return self.batch.names[row] is None

    def state_rows(self, layer: Any) -> list[StateRow]:
        """Return the rows of a state layer, read from the metadata once per group."""
        rows = self._states.get(layer.group)
        if rows is None:
            bounds, batch = self._bounds(layer, layer.num_blocks), self.batch
            columns = Columns(self.tables(layer.group, batch.names), batch.lengths, self.aligned_block_size, bounds)
            rows = self._states[layer.group] = layer.contract.rows(
                self.context.attn_metadata[layer.layer_name], columns
            )
            self.accesses += bounds.found
        return rows

    def slot_rows(self, layer: Any) -> tuple[list[SlotRow], Sequence[int]]:
        """Return the rows of an attention layer and the order in which they may store."""
        found = self._slots.get(layer.group)
        if found is None:
            metadata = self.context.attn_metadata[layer.layer_name]
            mapping = getattr(self.context, "slot_mapping", None)
            slots = mapping[layer.layer_name] if mapping else metadata.slot_mapping
            bounds = self._bounds(layer, len(layer.pages))
            if layer.form.chunk:
                rows = local_rows(metadata, slots, layer.block_size, bounds, self.batch)
            else:
                rows = slot_rows(metadata, slots, layer.block_size, bounds, layer.first)
            self.accesses += bounds.found
            found = self._slots[layer.group] = rows, writing_order(rows, layer.block_size)
        return found

    def _bounds(self, layer: Any, num_blocks: int) -> Bounds:
        return Bounds(layer.group, num_blocks, len(self.batch.lengths), len(self.ids))

    def next_contents(self, rows: Sequence[SlotRow], ids: Sequence[int]) -> Sequence[int]:
        """Return the content of a drafter's tokens, which follow those at the positions of its rows."""
        if not self.inputs:
            return ids
        found = list(ids)
        for row in rows:
            own = slice(row.tokens.start, row.tokens.stop)
            found[own] = self.inputs.drafted(self.batch.names[row.row], row.start + 1, ids[own])
        return found

    def record(
        self, step: int, drafts: Mapping[str, int], sampled: Mapping[str, Sequence[int]], *, graph: bool
    ) -> Forward:
        """Return the record, given the step's drafts and sampled tokens."""
        batch = self.batch
        rows = [
            ForwardRow(
                name,
                batch.position(row),
                self.ids[batch.starts[row] : batch.starts[row + 1]],
                drafts.get(name or "", 0),
                sampled.get(name or "", ()),
            )
            for row, name in enumerate(batch.names)
        ]
        return Forward(step, rows, self.accesses, graph=graph)
