"""Snapshots beside the working state (strategies extra_buffer and extra_buffer_lazy).

A prefill's snapshots are planned by SGLang's own attention backend (`MambaAttnBackendBase._forward_metadata`) and its
recurrent states are stored by it (`_track_mamba_state_extend`), from per-chunk states that hold tags. Two lines that
are part of a forward with kernels in SGLang are reimplemented here: the gather of convolution windows
(`GDNAttnBackend.forward_extend`, `MambaMixer2.forward`) and the masked copy after a decode
(`track_mamba_states_if_needed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .batch_rows import Row
from .compat import parts, scheduler_api, tree_api
from .compat.engine import SglangEngine
from .mamba2 import Chain, Scan


class Plan(NamedTuple):
    """Rows that leave a snapshot: (row, slot, place of the slot, depth).

    `metadata` is SGLang's for a prefill, None for a decode, which copies from the places `working`.
    """

    rows: list[tuple[int, int, int, int]]
    working: list[int]
    metadata: Any
    batch: Any


class Tracker:
    """Plans and stores snapshots of one engine."""

    def __init__(self, engine: SglangEngine) -> None:
        self.states, self.memory = engine.states, engine.memory
        self.pool = engine.rows.mamba_pool
        self.chunk = engine.sizes.chunk
        self.tracks = engine.sizes.strategy != "no_buffer"
        self.scans = engine.sizes.mamba2
        is_needed = self.tracks or self.scans or engine.sizes.ring
        self.backend: Any = parts.make_backend(engine.rows, engine.sizes, self.scans) if is_needed else None

    def scan(self, batch: Any) -> Scan | None:
        """Return the scan of a prefill, at launch; None where state layers are not Mamba 2, or of another batch."""
        if not self.scans or not batch.forward_mode.is_extend() or batch.forward_mode.is_target_verify():
            return None
        seen = scheduler_api.backend_batch(batch)
        self.backend.init_forward_metadata(seen)
        return Scan(self.backend.forward_metadata, seen)

    def decode(self, batch: Any) -> Any:
        """Return the backend's metadata of a decode, for which it moves the cursors of rings on."""
        return self.backend._forward_metadata(scheduler_api.decode_batch(batch))

    def plan(self, batch: Any, rows: Sequence[Row], scan: Scan | None = None) -> Plan | None:
        """Return the rows that leave a snapshot and its slots, at launch. `scan`: of Mamba 2 layers."""
        if not self.tracks or batch.mamba_track_mask is None:
            return None
        mask, slots = batch.mamba_track_mask.tolist(), batch.mamba_track_indices.tolist()
        depths = [row.end for row in rows]
        metadata = seen = None
        if batch.forward_mode.is_extend():
            if scan is not None:
                metadata, seen = scan
            else:
                seen = scheduler_api.backend_batch(batch)
                metadata = self.backend._forward_metadata(seen)
            depths = [tree_api.states_of(request).mamba_last_track_seqlen for request in batch.reqs]
        marked = [index for index, is_marked in enumerate(mask) if is_marked]
        places = self.memory.places_of([slots[index] for index in marked])
        tracked = [(index, slots[index], place, depths[index]) for index, place in zip(marked, places, strict=True)]
        return Plan(tracked, [row.place for row in rows], metadata, seen) if tracked else None

    def replayed(self, snapshots: Sequence[tuple[int, int]], rows: Sequence[Row]) -> Plan | None:
        """Return the rows of a captured graph that leave a snapshot, from its buffers, whatever the batch does.

        `snapshots`: (row, place of the slot).
        """
        slots = self.memory.slots_at([place for _, place in snapshots])
        pairs = zip(snapshots, slots, strict=True)
        marked = [(index, slot, place, rows[index].end) for (index, place), slot in pairs]
        return Plan(marked, [row.place for row in rows], None, None) if marked else None

    def store(self, layer: int, plan: Plan | None, chains: Sequence[Chain], scan: Scan | None = None) -> None:
        """Store the snapshots of a layer whose working states were written."""
        if plan is None:
            return
        if plan.metadata is None:
            for index, _, place, _ in plan.rows:
                working = plan.working[index]
                self.states.temporal[layer, place] = self.states.temporal[layer, working]
                self.states.window[layer, place] = self.states.window[layer, working]
            return
        inputs = torch.tensor([tag for _, tags in chains for tag in tags], dtype=torch.int64)
        into = torch.tensor([place for _, _, place, _ in plan.rows])
        windows = inputs[plan.metadata.track_conv_indices.long()]
        if scan is not None:
            into = plan.metadata.conv_states_mask_indices
        self.pool.mamba_cache.conv[0][layer][into] = windows.unsqueeze(1)
        temporal = self.pool.mamba_cache.temporal[layer]
        if scan is not None:
            states, places = scan.chunks(chains), scan.places(chains)
            self.backend._track_mamba_state_extend(plan.batch, states, temporal, plan.metadata, track_states=places)
            return
        starts = [(start, *tags)[at] for start, tags in chains for at in range(0, len(tags), self.chunk)]
        chunks = torch.tensor(starts, dtype=torch.int64).reshape(1, -1, 1, 1, 1)
        self.backend._track_mamba_state_extend(plan.batch, chunks, temporal, plan.metadata)

    def stored(self, plan: Plan | None) -> list[tuple[int, int, int, int]]:
        """Return (row, slot, place, depth) of every snapshot."""
        return plan.rows if plan else []
