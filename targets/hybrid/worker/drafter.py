"""The drafter's own attention group: it writes KV of the tokens that it proposes, before they are verified.

It runs after the forward, on its own block tables, indexed by *request slot*. A slot is assigned at admission and
released when the request leaves, but its table is not cleared. That is safe because slots are reached only through the
mapping of the running batch, and a dummy batch maps to no slot.

The event determines the proposals. Without a draft group this does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from mypy_extensions import mypyc_attr

from ....reference.layout import Layout
from .tag_kernels import RowInput, TagKernels

NO_SLOT = -1
_DUMMY_TOKEN = 1


@mypyc_attr(allow_interpreted_subclasses=True)
class Drafter:
    """Draft attention over persistent tables of at most `max_slots` requests."""

    def __init__(self, layout: Layout, kernels: TagKernels, max_slots: int) -> None:
        self.layout = layout
        self.kernels = kernels
        self.groups = [index for index, group in enumerate(layout.groups) if group.draft]
        self.slots: dict[str, int] = {}
        self.tables: list[list[list[int]]] = [[[] for _ in layout.groups] for _ in range(max_slots)]

    def add(self, name: str, table: Sequence[Sequence[int]]) -> None:
        """Assign the first free slot to a request."""
        slot = min(set(range(len(self.tables))).difference(self.slots.values()))
        self.slots[name] = slot
        self.tables[slot] = [list(columns) for columns in table]

    def append(self, name: str, columns: Sequence[Sequence[int]]) -> None:
        """Append new columns to a request's table, by group."""
        for group in self.groups:
            self.tables[self.slots[name]][group] += columns[group]

    def remove(self, name: str) -> None:
        """Release a request's slot; its table stays until the slot is assigned again."""
        self.slots.pop(name, None)

    def dummy_mapping(self, rows: int) -> list[int]:
        """Return the slots of a dummy batch: none for each row."""
        return [NO_SLOT] * rows

    def propose(self, row: int, name: str, position: int, tokens: tuple[int, ...]) -> None:
        """Store KV of the last sampled token, at `position`, and of the proposals fed back after it."""
        self._write(row, self.slots[name], position, tokens)

    def dummy_run(self, rows: int, steps: int) -> None:
        """Run the later draft steps of a dummy batch, each of which computes its slots from the tables again."""
        for row, slot in enumerate(self.dummy_mapping(rows)):
            if slot != NO_SLOT and steps > 0:
                self._write(row, slot, 0, (_DUMMY_TOKEN,) * steps)

    def _write(self, row: int, slot: int, position: int, tokens: tuple[int, ...]) -> None:
        inputs = RowInput(row, slot, position, tokens, 0)
        for index in self.groups:
            group, blocks = self.layout.groups[index], self.tables[slot][index]
            if position + len(tokens) <= len(blocks) * group.block_size:
                for layer in range(group.layers):
                    self.kernels.write_slots(index, layer, inputs, blocks, group.block_size)
