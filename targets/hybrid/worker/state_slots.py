"""Columns of the states of each request on the device, and the copies between them.

Between steps the running state of a request is, for each mamba group, at column `state_column + offset` (temporal) and
at `state_column` with token offset `offset` (convolution); `offset` is the number of drafts that the last step
accepted. If the running column advances (mode align), the state is copied there before the forward. If accepted drafts
cross a boundary, the boundary's state is copied to its own column after the forward. That column may be left of the
running one.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from mypy_extensions import mypyc_attr

from ....reference.layout import Layout, cdiv
from ...base.observe import Copied, Record
from ..plan import PageCopy, Plan
from ..tag_memory import TagMemory
from .input_batch import InputBatch, StateIndices
from .tag_kernels import RowInput


class DeviceRequest(Struct, gc=False):
    """A request as the worker knows it."""

    tokens: list[int]
    tag: int
    """Tag of all `tokens`, from which the drafter proposes: it depends on the tokens, not on the caches."""
    computed: int
    prompt_length: int
    drafts: list[int] = []


@mypyc_attr(allow_interpreted_subclasses=True)
class StateSlots:
    """Indexes and moves the states of all mamba groups; `groups` are the indices of these groups."""

    def __init__(self, layout: Layout, batch: InputBatch, memory: TagMemory) -> None:
        self.layout = layout
        self.batch = batch
        self.memory = memory
        self.window_length = layout.conv_width - 1
        self.columns: dict[str, list[int]] = {}
        """Column of the state by request and group, -1 for none."""
        self.groups = [index for index, group in enumerate(layout.groups) if group.kind == "mamba"]

    def admit(self, name: str, computed: int) -> None:
        """Set the columns of an admitted request, unless they were kept."""
        if name not in self.columns:
            self.columns[name] = [self.seed_column(group, computed) for group in range(len(self.layout.groups))]

    def forget(self, plan: Plan) -> None:
        """Drop the columns of requests that ended, were preempted, rolled back or admitted anew."""
        resumed = [row.name for row in plan.rows.values() if row.anew]
        for name in (*plan.finished, *plan.preempted, *plan.rolled_back, *resumed):
            self.columns.pop(name, None)
            self.batch.accepted.kept.pop(name, None)

    def seed_column(self, group: int, computed: int) -> int:
        """Return the column of the state that an admitted request starts from, -1 for none."""
        if self.layout.mode == "none":
            return 0
        return (computed - 1) // self.layout.groups[group].block_size if computed else -1

    def prepare(
        self,
        step: int,
        group: int,
        names: Sequence[str],
        inputs: Sequence[RowInput],
        records: list[Record],
    ) -> list[StateIndices]:
        """Return the indices of every row for one group; in mode align, first copy states to their running columns."""
        indices = []
        for name, one in zip(names, inputs, strict=True):
            run = self.run_column(group, one)
            state, offset = self.columns[name][group], self.batch.accepted.host[group][one.table_row]
            if self.layout.mode == "align" and state >= 0 and state != run:
                self.copy_state(step, group, name, state, offset, run, records)
                state, offset = run, 0
            source = state if state >= 0 else run
            indices.append(self.state_indices(group, one, source, offset, run))
            self.columns[name][group] = run
        return indices

    def run_column(self, group: int, inputs: RowInput) -> int:
        """Return the running column: the one that holds the state after all tokens of this step."""
        if self.layout.mode == "none":
            return 0
        return cdiv(inputs.position + len(inputs.tokens), self.layout.groups[group].block_size) - 1

    def state_indices(self, group: int, inputs: RowInput, source: int, offset: int, run: int) -> StateIndices:
        """Look up the blocks of one row in the worker's table."""
        columns = (source + offset, source, run)
        boundaries = self.boundary_stops(group, inputs)
        return self.batch.look_up(group, inputs.table_row, columns, offset, inputs.drafts, boundaries)

    def boundary_stops(self, group: int, inputs: RowInput) -> tuple[tuple[int, int, int], ...]:
        """Return (tokens, column, block) of each boundary inside a prefill, whose state is stored too (mode all)."""
        if self.layout.mode != "all" or inputs.drafts:
            return ()
        size, end = self.layout.groups[group].block_size, inputs.position + len(inputs.tokens)
        return tuple(
            (
                depth - inputs.position,
                depth // size - 1,
                self.batch.block(group, inputs.table_row, depth // size - 1),
            )
            for depth in range((inputs.position // size + 1) * size, end, size)
        )

    def copy_state(
        self,
        step: int,
        group: int,
        name: str,
        state: int,
        offset: int,
        to: int,
        records: list[Record],
    ) -> None:
        """Copy the temporal state of column `state + offset` and the window at `offset` of column `state` to `to`."""
        row = self.batch.names.index(name)
        source, conv = (
            self.batch.block(group, row, state + offset),
            self.batch.block(group, row, state),
        )
        destination = self.batch.block(group, row, to)
        for layer in range(self.layout.groups[group].layers):
            self.move_temporal(layer, source, destination)
            self.move_conv(layer, conv, destination, offset)
            records += (
                Copied(step, name, group, state + offset, source, to, destination, 0, True, False, layer),
                Copied(step, name, group, state, conv, to, destination, offset, False, True, layer),
            )

    def move_temporal(self, layer: int, source: int, destination: int) -> None:
        """Copy a recurrent state."""
        self.memory.store_temporal(layer, destination, self.memory.temporal(layer, source))

    def move_conv(self, layer: int, source: int, destination: int, offset: int) -> None:
        """Copy the convolution window that starts at token `offset` of the source's buffer."""
        window = self.memory.conv(layer, source)[offset : offset + self.window_length]
        self.memory.store_conv(layer, destination, window)

    def copy_page(self, step: int, name: str, copy: PageCopy, records: list[Record]) -> None:
        """Copy a whole page of every layer between a block of the cache and a block of a request."""
        group, memory = self.layout.groups[copy.group], self.memory
        place = (copy.from_column, copy.source, copy.to_column, copy.destination, 0)
        for layer in range(group.layers):
            if group.kind == "mamba":
                self.move_temporal(layer, copy.source, copy.destination)
                self.move_conv(layer, copy.source, copy.destination, 0)
                records.append(Copied(step, name, copy.group, *place, True, True, layer))
            else:
                tags = memory.slots(layer, copy.source, group.block_size)
                memory.store_slots(layer, copy.destination, group.block_size, 0, tags)
                records.append(Copied(step, name, copy.group, *place, False, False, layer, group.block_size))

    def settle(
        self, step: int, name: str, request: DeviceRequest, inputs: RowInput, sampled: int, records: list[Record]
    ) -> None:
        """Advance past an executed row; copy states of boundaries that accepted drafts crossed to their columns."""
        certain = inputs.position + len(inputs.tokens) - inputs.drafts
        request.computed = certain + max(sampled - 1, 0)
        counts, row = self.batch.accepted, inputs.table_row
        for group in self.groups:
            counts.put(group, row, sampled)
            if self.layout.mode == "none" or not inputs.drafts:
                continue
            run, depth = self.columns[name][group], self.crossed_boundary(group, inputs, request.computed)
            if depth is not None:
                bias, own = depth - certain, depth // self.layout.groups[group].block_size - 1
                if own != run or bias:
                    self.copy_state(step, group, name, run, bias, own, records)
                if own == run:
                    counts.put(group, row, 1)

    def crossed_boundary(self, group: int, inputs: RowInput, computed: int) -> int | None:
        """Return the depth of the boundary that a verified row reached or crossed, None if there is none."""
        size, certain = self.layout.groups[group].block_size, inputs.position + len(inputs.tokens) - inputs.drafts
        boundary = computed // size * size
        return boundary if boundary >= certain else None
