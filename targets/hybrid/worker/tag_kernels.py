"""Shadow kernels: the arithmetic of a hybrid model on tags.

They read and write exactly where the metadata points, whatever the scheduler intended. Reads of the null block return
zero, writes to it are dropped. Each kernel returns the tags that its layer computes for the tokens; if the caches of a
request are correct, all layers return the same tags.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from mypy_extensions import mypyc_attr

from ....reference.layout import cdiv
from ....reference.tokens import EMPTY, NO_INPUT
from ...base.observe import Access, SlotRead, SlotWrite, StateRead, StateWrite
from ...base.shadow import POISON, combine, run_chain
from ..layout import NULL_BLOCK
from ..tag_memory import TagMemory
from .input_batch import StateIndices


class RowInput(Struct, frozen=True, gc=False):
    """One row of a batch as the kernels see it: `row` of this forward, `table_row` of the persistent batch."""

    row: int
    table_row: int
    position: int
    tokens: tuple[int, ...]
    drafts: int


@mypyc_attr(allow_interpreted_subclasses=True)
class TagKernels:
    """State and attention layers over one memory; every access is appended to `log`."""

    def __init__(self, memory: TagMemory, conv_width: int) -> None:
        self.memory = memory
        self.window_length = conv_width - 1
        self.log: list[Access] = []

    def is_null(self, block: int) -> bool:
        """Return True if a block id is a placeholder."""
        return block == NULL_BLOCK

    def state_row(self, group: int, layer: int, inputs: RowInput, at: StateIndices) -> tuple[int, ...]:
        """Run convolution and recurrence of one row: read the initial state, write the states at its stops."""
        memory, row, length = self.memory, inputs.row, self.window_length
        start, window = EMPTY, (NO_INPUT,) * length
        if self.has_initial_state(inputs, layer):
            start = NO_INPUT if self.is_null(at.source) else memory.temporal(layer, at.source)
            if not self.is_null(at.conv):
                window = memory.conv(layer, at.conv)[at.offset : at.offset + length]
            if at.conv == at.source:
                self.log.append(StateRead(row, group, layer, at.source_column, at.source, start, window))
            else:
                self.log.append(StateRead(row, group, layer, at.source_column, at.source, start, None))
                self.log.append(StateRead(row, group, layer, at.conv_column, at.conv, None, window))
        tags = run_chain(start, inputs.tokens)
        history = window + tags
        for count, column, block in self.stops(inputs, at):
            if self.is_null(block):
                continue
            # A speculative row stores one temporal state per draft but one convolution buffer, in the running column.
            # The next step reads it at the offset of the accepted drafts.
            if inputs.drafts:
                stored = history[1:] if column == at.run_column else None
            else:
                stored = history[count : count + length]
            self.store(
                inputs,
                at,
                StateWrite(row, group, layer, column, block, inputs.position + count, tags[count - 1], stored),
            )
        if window and window[-1] != (NO_INPUT if start == EMPTY else start):
            return run_chain(combine(window[-1], start), inputs.tokens)
        return tags

    def store(self, inputs: RowInput, at: StateIndices, write: StateWrite) -> None:
        """Store one state at the block of `write` and log it."""
        if write.temporal is not None:
            self.memory.store_temporal(write.layer, write.block, write.temporal)
        if write.window is not None:
            self.memory.store_conv(write.layer, write.block, write.window)
        self.log.append(write)

    def has_initial_state(self, inputs: RowInput, layer: int) -> bool:
        """Return True if a row continues a state; the first token of a request has no initial state in any layer."""
        return inputs.position > 0

    def stops(self, inputs: RowInput, at: StateIndices) -> list[tuple[int, int, int]]:
        """Return (tokens, column, block) of each state to store after so many tokens of this row."""
        if inputs.drafts:
            return [(index + 1, at.run_column + index, block) for index, block in enumerate(at.outputs)]
        return [*at.boundaries, (len(inputs.tokens), at.run_column, at.outputs[0])]

    def write_slots(
        self, group: int, layer: int, inputs: RowInput, blocks: Sequence[int], size: int
    ) -> tuple[int, ...]:
        """Store KV of a row's tokens at the slots of its table."""
        memory, position = self.memory, inputs.position
        start = EMPTY
        if position:
            start = memory.slots(layer, blocks[(position - 1) // size], size)[(position - 1) % size]
        tags = run_chain(start, inputs.tokens)
        targets: list[int] = []
        slots: list[int] = []
        while len(targets) < len(tags):  # page by page
            column, first = divmod(position + len(targets), size)
            block, stored = blocks[column], tags[len(targets) : len(targets) + size - first]
            if not self.is_null(block):
                memory.store_slots(layer, block, size, first, stored)
            targets += [block] * len(stored)
            slots += range(first, first + len(stored))
        self.log.append(SlotWrite(inputs.row, group, layer, position, targets, slots, tags))
        return tags

    def read_slots(
        self,
        group: int,
        layer: int,
        inputs: RowInput,
        blocks: Sequence[int],
        size: int,
        own: tuple[int, ...],
        first: int = 0,
    ) -> tuple[int, ...]:
        """Attend from column `first` to the row's last position; pages are read whole, masked by multiplication."""
        context = inputs.position + len(inputs.tokens)
        read = blocks[first : cdiv(context, size)]
        pages: list[int] = []
        slots = self.memory.slots
        for block in read:
            pages += slots(layer, block, size)
        self.log.append(SlotRead(inputs.row, group, layer, read, pages[: context - first * size], first))
        # 0 * NaN = NaN: a poisoned slot beyond the context still reaches the output.
        return (POISON,) * len(own) if POISON in pages else own
