"""Kernel calls of one forward, read from the access log of the symbolic step.

Nothing is recomputed from the scheduler's plan. Blocks that a symbolic kernel treated as null are None here, which is
page 0 for the kernels on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...base.observe import Access, SlotRead, SlotWrite, StateRead, StateWrite
from ..worker.input_batch import StateIndices
from ..worker.tag_kernels import RowInput

Layer = tuple[int, int]
"""(group, layer of the group)."""


class StateCall(NamedTuple):
    """One row through one recurrent layer.

    temporal, conv             blocks of the initial state, None for none
    table_row, column, offset  position of the initial state in the metadata: row and column of the block table,
                               accepted drafts
    states                     (tokens, block): recurrent states to store after so many tokens
    windows                    the same for convolution windows; a speculative row has one, for all of its tokens
    """

    inputs: RowInput
    temporal: int | None
    conv: int | None
    table_row: int
    column: int
    offset: int
    states: Sequence[tuple[int, int]]
    windows: Sequence[tuple[int, int]]


class WriteCall(NamedTuple):
    """KV of one row written by one attention layer: slot `slots[i]` of block `blocks[i]`, None for null."""

    inputs: RowInput
    blocks: Sequence[int | None]
    slots: Sequence[int]


class ReadCall(NamedTuple):
    """Attention of one row over `blocks`, which start at column `first_column`, up to `length` positions."""

    inputs: RowInput
    blocks: Sequence[int | None]
    first_column: int
    length: int


class KernelCalls:
    """All kernel calls of one forward, by layer.

    A drafter writes KV after a forward or without one: see `take_lone_writes`.
    """

    def __init__(self) -> None:
        self.states: dict[Layer, list[StateCall]] = {}
        self.writes: dict[Layer, list[WriteCall]] = {}
        self.reads: dict[Layer, list[ReadCall]] = {}

    def add_state(
        self, layer: Layer, inputs: RowInput, at: StateIndices, log: Sequence[Access], is_null: Callable[[int], bool]
    ) -> None:
        """Add one call of a symbolic state kernel, from its log."""
        temporal = conv = None
        states, windows = [], []
        for access in log:
            if isinstance(access, StateRead):
                block = None if is_null(access.block) else access.block
                temporal = temporal if access.temporal is None else block
                conv = conv if access.window is None else block
            elif isinstance(access, StateWrite):
                stop = access.depth - inputs.position, access.block
                if access.temporal is not None:
                    states.append(stop)
                if access.window is not None:
                    windows.append(stop)
        call = StateCall(inputs, temporal, conv, at.table_row, at.conv_column, at.offset, states, windows)
        self.states.setdefault(layer, []).append(call)

    def add_slots(
        self, layer: Layer, inputs: RowInput, size: int, log: Sequence[Access], is_null: Callable[[int], bool]
    ) -> None:
        """Add one call of a symbolic attention kernel with blocks of `size` tokens, from its log."""
        for access in log:
            if isinstance(access, SlotWrite | SlotRead):
                blocks = [None if is_null(block) else block for block in access.blocks]
                if isinstance(access, SlotWrite):
                    self.writes.setdefault(layer, []).append(WriteCall(inputs, blocks, access.slots))
                else:
                    first = access.first_column
                    call = ReadCall(inputs, blocks, first, first * size + len(access.tags))
                    self.reads.setdefault(layer, []).append(call)

    def take_lone_writes(self, batch: Sequence[RowInput]) -> dict[Layer, list[WriteCall]]:
        """Remove and return the writes of rows outside `batch`, which no row of this forward reads."""
        lone = {layer: [call for call in calls if call.inputs not in batch] for layer, calls in self.writes.items()}
        self.writes = {
            layer: kept
            for layer, calls in self.writes.items()
            if (kept := [one for one in calls if one.inputs in batch])
        }
        return {layer: calls for layer, calls in lone.items() if calls}
