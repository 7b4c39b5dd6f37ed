"""Zeroing, copies and poison on the device, in the order in which the symbolic step did them; each checked bit for bit.

Work of one kind gathers until work of another kind, or a hazard, ends the launch. A move is right if its bytes say
so afterwards: the source is read before, the destination after, by plain indexing that shares nothing with the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..device.metadata import Regions, ZeroPlan
from ..device.ops import Ops
from .pool import FILLS, BytePool


class Move(NamedTuple):
    """Bytes of one layer's page that move from one block to another; offsets and length in bytes."""

    layer: int
    source: int
    source_offset: int
    destination: int
    destination_offset: int
    length: int
    part: str


class Moves:
    """Queued moves of one engine; `checks` are what was found of those launched."""

    def __init__(self, pool: BytePool, ops: Ops) -> None:
        self.pool = pool
        self.ops = ops
        self.plan = ZeroPlan.of([pool.by_page[layer] for layer in range(pool.layers)])
        self._zero: list[int] = []
        self._copies: list[Move] = []
        self.checks: list[tuple[str, Tensor]] = []
        """(what moved, bool scalar on the device: it arrived bit for bit)."""

    def zero(self, block: int) -> None:
        """Zero all pages of a block."""
        if self._copies:
            self.flush()
        self._zero.append(block)

    def copy(self, move: Move) -> None:
        """Copy once everything queued before has run."""
        if self._zero or any(self._conflict(earlier, move) for earlier in self._copies):
            self.flush()
        self._copies.append(move)

    @staticmethod
    def _conflict(earlier: Move, later: Move) -> bool:
        """Pages are coarse enough: nearly all copies of one step go between different blocks."""
        written = earlier.layer, earlier.destination, earlier.part
        read = earlier.layer, earlier.source, earlier.part
        return (later.layer, later.source, later.part) == written or (
            (later.layer, later.destination, later.part) in (written, read)
        )

    def flush(self) -> None:
        """Launch what is queued."""
        if self._zero:
            self._launch_zero()
        if self._copies:
            self._launch_copies()

    def _launch_zero(self) -> None:
        blocks, self._zero = self._zero, []
        ids = torch.tensor(self.pool.pages_of(blocks), dtype=torch.int64).to(self.pool.bytes.device)
        self.ops.zero_blocks(self.plan, ids)
        self.checks.append((f"zeroing blocks {blocks}", ~self.pool.by_page[:, ids].any()))

    def _launch_copies(self) -> None:
        moves, self._copies = self._copies, []
        device, size = self.pool.bytes.device, self.pool.pages.size
        regions: list[tuple[int, int, int]] = []
        for move in moves:
            for fill in range(len(FILLS)):
                source, destination = (
                    (move.layer * self.pool.num_pages + self.pool.page(fill, block)) * size
                    for block in (move.source, move.destination)
                )
                regions.append((source + move.source_offset, destination + move.destination_offset, move.length))
        before = [self.bytes_at(source, length).clone() for source, _, length in regions]
        self.ops.copy_regions(self.pool.bytes, Regions.of(regions, device))
        same = [
            (self.bytes_at(destination, length) == held).all()
            for (_, destination, length), held in zip(regions, before, strict=True)
        ]
        moved = torch.stack(same).view(len(moves), len(FILLS)).all(1)
        for move, arrived in zip(moves, moved, strict=True):
            what = f"copying the {move.part} of layer {move.layer} from block {move.source} to {move.destination}"
            self.checks.append((what, arrived))

    def bytes_at(self, start: int, length: int) -> Tensor:
        """A range of the pool."""
        return self.pool.bytes[start : start + length]

    def take_checks(self) -> Sequence[tuple[str, Tensor]]:
        """What was found since the last call."""
        checks, self.checks = self.checks, []
        return checks
