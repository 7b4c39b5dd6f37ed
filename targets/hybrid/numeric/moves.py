"""Zeroing, copies, loads and saves on the device, in the order of the symbolic step.

Work of one kind is queued until work of another kind, or a hazard, ends the launch. Each move is checked bit for bit:
the source is read before, the destination after, by plain indexing that shares no code with the kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....reference.prefix_cache import Key
from .kernels.metadata import Regions, ZeroPlan
from .kernels.ops import Ops
from .kernels.staging import Lanes
from .kernels.streams import Fence
from .offloaded_pages import OffloadedPages
from .pool import FILLS, BytePool
from .prefetch import Prefetch


class Move(NamedTuple):
    """Copy of bytes of one layer's page from one block to another; offsets and length in bytes."""

    layer: int
    source: int
    source_offset: int
    destination: int
    destination_offset: int
    length: int
    part: str


class Arrival(NamedTuple):
    """Copy of bytes of an offloaded page into one layer's page of a block; offsets and length in bytes."""

    key: Key
    layer: int
    block: int
    source_offset: int
    destination_offset: int
    length: int
    part: str

    def goes_on_with(self, later: Arrival) -> bool:
        """Return True if `later` starts where this one ends, in both pages."""
        ends = self.source_offset + self.length, self.destination_offset + self.length
        after = self._replace(source_offset=ends[0], destination_offset=ends[1], length=later.length)
        return later == after


class Check(NamedTuple):
    """Check of one move: `there`, on the device, must be all true or have the bytes of `wanted`, on the host."""

    what: str
    there: Tensor
    wanted: Tensor | None = None

    def holds(self, seen: np.ndarray) -> bool:
        """Return True if `seen`, the content of `there`, is as expected."""
        return bool(seen.all() if self.wanted is None else np.array_equal(seen, self.wanted.numpy()))


class Moves:
    """Queued moves of one engine, and the checks of launched ones."""

    def __init__(self, pool: BytePool, offloaded: OffloadedPages, ops: Ops, lanes: Lanes) -> None:
        self.pool = pool
        self.offloaded = offloaded
        self.lanes = lanes
        self.prefetch = Prefetch()
        """Uploads for the running step."""
        self._leaving: list[Fence] = []
        self.ops = ops
        self.plan = ZeroPlan.of([pool.by_page[layer] for layer in range(pool.layers)])
        self._zero: list[int] = []
        self._copies: list[Move] = []
        self._arrivals: list[Arrival] = []
        self.checks: list[Check] = []

    def zero(self, block: int) -> None:
        """Zero all pages of a block."""
        if self._copies or self._arrivals:
            self.flush()
        self._zero.append(block)

    def copy(self, move: Move) -> None:
        """Copy once everything queued before has run."""
        if self._zero or self._arrivals or any(self._conflict(earlier, move) for earlier in self._copies):
            self.flush()
        self._copies.append(move)

    def load(self, arrival: Arrival) -> None:
        """Load bytes into the pool once everything queued before has run."""
        if self._zero or self._copies:
            self.flush()
        for at, earlier in enumerate(self._arrivals):
            if earlier.goes_on_with(arrival):
                self._arrivals[at] = earlier._replace(length=earlier.length + arrival.length)
                return
        self._arrivals.append(arrival)

    def save(self, key: Key, layer: int, block: int) -> None:
        """Start to save a page of the pool, in all fills, once everything queued before has run."""
        self.flush()
        page, there, side = (
            self.offloaded.new_page(key, layer),
            self.pool.fills(layer, block),
            self.lanes.downloads.side,
        )
        written = side.copy(lambda: page.copy_(there, non_blocking=True), side.mark())
        self.offloaded.written[key, layer] = written
        self._leaving.append(written)
        self.checks.append(Check(f"saving layer {layer} of block {block} outside the pool", there.clone(), page))

    def wait_for_saves(self) -> None:
        """Make later kernels, which may write the pool, wait for saves in flight."""
        leaving, self._leaving = self._leaving, []
        for fence in leaving:
            fence.hold_kernels()

    @staticmethod
    def _conflict(earlier: Move, later: Move) -> bool:
        """Return True if two copies must not share a launch. Compares pages: few copies of a step share one."""
        written = earlier.layer, earlier.destination, earlier.part
        read = earlier.layer, earlier.source, earlier.part
        return (later.layer, later.source, later.part) == written or (
            (later.layer, later.destination, later.part) in (written, read)
        )

    def flush(self) -> None:
        """Launch what is queued."""
        self.wait_for_saves()
        if self._zero:
            self._launch_zero()
        if self._copies:
            self._launch_copies()
        if self._arrivals:
            self._launch_loads()

    def _launch_zero(self) -> None:
        blocks, self._zero = self._zero, []
        prefetched = self.prefetch.zero if self.prefetch.zero and self.prefetch.zero[0] == blocks else None
        slot = prefetched[1] if prefetched else self.lanes.staging.put(np.array(self.pool.pages_of(blocks), np.int64))
        ids = slot.take()
        self.ops.zero_blocks(self.plan, ids)
        self.checks.append(Check(f"zeroing blocks {blocks}", ~self.pool.by_page[:, ids].any()))
        if not prefetched:
            slot.release()

    def _launch_copies(self) -> None:
        moves, self._copies = self._copies, []
        size = self.pool.pages.size
        regions: list[tuple[int, int, int]] = []
        for move in moves:
            for fill in range(len(FILLS)):
                source, destination = (
                    (move.layer * self.pool.num_pages + self.pool.page(fill, block)) * size
                    for block in (move.source, move.destination)
                )
                regions.append((source + move.source_offset, destination + move.destination_offset, move.length))
        before = [self.bytes_at(source, length).clone() for source, _, length in regions]
        slot = self.lanes.staging.put(np.array(regions, np.int64).T)
        sources, destinations, lengths = slot.take().view(3, -1)
        uploaded = replace(Regions.of(regions), sources=sources, destinations=destinations, lengths=lengths)
        self.ops.copy_regions(self.pool.bytes, uploaded)
        slot.release()
        same = [
            (self.bytes_at(destination, length) == held).all()
            for (_, destination, length), held in zip(regions, before, strict=True)
        ]
        moved = torch.stack(same).view(len(moves), len(FILLS)).all(1)
        for move, arrived in zip(moves, moved, strict=True):
            what = f"copying the {move.part} of layer {move.layer} from block {move.source} to {move.destination}"
            self.checks.append(Check(what, arrived))

    def _launch_loads(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        for key, layer, block, source, destination, length, part in arrivals:
            page, prefetched = self.offloaded.pages[key][layer], self.prefetch.pages.get((key, layer))
            slot = prefetched or self.offloaded.send(key, layer, self.lanes.staging)
            there = self.pool.fills(layer, block)[:, destination : destination + length]
            there.copy_(slot.take().view(page.shape)[:, source : source + length])
            if not prefetched:
                slot.release()
            what, wanted = f"loading the {part} of layer {layer} into block {block}", page[:, source : source + length]
            self.checks.append(Check(what, there.clone(), wanted))

    def bytes_at(self, start: int, length: int) -> Tensor:
        """Return a range of the pool's bytes."""
        return self.pool.bytes[start : start + length]

    def take_checks(self) -> Sequence[Check]:
        """Return the checks since the last call."""
        checks, self.checks = self.checks, []
        return checks
