"""The ledger of blocks: the owner of each block, and the parts of it that were written since it was allocated.

The ledger follows device time. If step 5 reallocates a block, its facts of step 4 stay until the first device work of
step 5, because step 4 may still be in flight.

Oracles use it to check that no read depends on bytes that were not written since allocation. A zeroed page counts as
written, a copied page has the written parts of its source, and a page reached by a prefix hit keeps those of its
earlier owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple


class DeadRow(NamedTuple):
    """A row of the batch without a request: of a dummy run, or padding."""

    row: int
    dummy: bool


class BlockHistory(NamedTuple):
    """What happened last to a page: `by` wrote it in a step, or got the block in a step and has not written it since
    ("allocated"; "zeroed" if the page was zeroed meanwhile)."""

    what: Literal["never", "written", "allocated", "zeroed"]
    by: str | DeadRow | None = None
    step: int = -1


@dataclass(slots=True)
class Cell:
    """The parts of one layer's page that were written since the block was allocated."""

    zeroed: bool = False
    temporal: bool = False
    conv: bool = False
    slots: int = 0
    """Bit i: attention slot i was written."""
    writer: str | DeadRow = ""
    step: int = -1
    """Step of the last write, -1 before the first."""


@dataclass(slots=True)
class BlockFacts:
    """Ownership of one block; `generation` counts its allocations, `step` is that of the last one."""

    owner: str
    group: int
    generation: int
    step: int
    cells: list[Cell]
    previous_owner: str = ""
    previous_group: int = -1


class Ledger:
    """Facts of every block that was allocated at least once."""

    def __init__(self, layers_per_group: list[int]) -> None:
        self._layers = layers_per_group
        self.facts: dict[int, BlockFacts] = {}

    def hand_out(self, block: int, owner: str, group: int, step: int) -> None:
        """Give `block` to `owner`; its content no longer counts as written."""
        before = self.facts.get(block)
        self.facts[block] = BlockFacts(
            owner,
            group,
            before.generation + 1 if before else 1,
            step,
            [Cell() for _ in range(self._layers[group])],
            before.owner if before else "",
            before.group if before else -1,
        )

    def inherit(self, block: int, source: int | None) -> None:
        """Note that `block` is a copy of the whole page of `source`, or of a complete state (None)."""
        cells = self.facts[block].cells
        for layer in range(len(cells)):
            origin = Cell(temporal=True, conv=True) if source is None else self.cell(source, layer)
            cells[layer] = replace(origin) if origin else Cell()

    def adopt(self, blocks: Iterable[int], owner: str) -> None:
        """Make `owner` the owner of blocks that it holds alone and that no lookup reaches, so that it may write."""
        for block in blocks:
            if block in self.facts:
                self.facts[block].owner = owner

    def cell(self, block: int, layer: int) -> Cell | None:
        """Return the facts of one page, None for a block that was never allocated (or a layer that it lacks)."""
        facts = self.facts.get(block)
        return facts.cells[layer] if facts and layer < len(facts.cells) else None

    def zero(self, block: int) -> None:
        """Note that all pages of `block` were zeroed."""
        facts = self.facts.get(block)
        if facts:
            for cell in facts.cells:
                cell.zeroed = True

    def write_state(self, block: int, layer: int, writer: str | DeadRow, step: int, temporal: bool, conv: bool) -> None:
        """Note that one layer stored a recurrent state and/or a convolution window."""
        cell = self.cell(block, layer)
        if cell:
            cell.temporal |= temporal
            cell.conv |= conv
            cell.writer, cell.step = writer, step

    def write_slots(
        self, blocks: Sequence[int], slots: Sequence[int], layer: int, writer: str | DeadRow, step: int
    ) -> None:
        """Note that one layer stored attention slots: slot `slots[i]` of block `blocks[i]`."""
        written, cell = -1, None
        for block, slot in zip(blocks, slots, strict=True):
            if block != written:
                written, cell = block, self.cell(block, layer)
            if cell:
                cell.slots |= 1 << slot
                cell.writer, cell.step = writer, step

    def move(
        self,
        source: int | None,
        destination: int,
        layer: int,
        writer: str | DeadRow,
        step: int,
        temporal: bool,
        conv: bool,
    ) -> None:
        """Note a copy: what was written to the source counts as written to the destination.

        `source` is None for a copy out of a cache that owns its blocks: their content is checked by their keys (S1).
        """
        origin = Cell(temporal=True, conv=True) if source is None else self.cell(source, layer)
        if origin:
            self.write_state(destination, layer, writer, step, temporal and origin.temporal, conv and origin.conv)

    def history(self, block: int, layer: int = 0) -> BlockHistory:
        """Return what happened last to a page of a block."""
        facts = self.facts.get(block)
        if facts is None:
            return BlockHistory("never")
        cell = facts.cells[layer] if layer < len(facts.cells) else Cell()
        if cell.step >= 0:
            return BlockHistory("written", cell.writer, cell.step)
        return BlockHistory("zeroed" if cell.zeroed else "allocated", facts.owner, facts.step)
