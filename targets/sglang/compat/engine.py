"""Assembles SGLang's own pools, allocator and tree cache for the configuration of one trace.

Sizes are those that the server computes (`_calculate_mamba_ratio`: state slots per running request), so that a pool
that runs dry is SGLang's fault and not the adapter's. The reference numbers state slots, checkpoints of states and KV
pages together, in this order; number 0 of each is reserved, and of slots and pages SGLang's padding sink.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....reference.layout import Group, Layout
from ..checkpoints import Checkpoints
from ..inputs import Inputs
from . import old_releases, parts
from .sizes import Sizes

STATES, ATTENTION, WINDOW = 0, 1, 2
"""The groups of a layout; the last one of models with sliding windows."""
STRATEGIES = ("no_buffer", "extra_buffer", "extra_buffer_lazy")


def layout_of(sizes: Sizes) -> Layout:
    """Return the layout of an engine in the reference's terms."""
    groups = [
        Group("mamba", sizes.chunk, sizes.state_layers, slots=sizes.request_slots),
        Group("attention", sizes.page, sizes.attention_layers),
    ]
    sinks = [0, sizes.first_page]
    reserved = [*range(1, sizes.reserved_slots), *range(sizes.first_page, sizes.first_page + sizes.reserved_pages)]
    reserved += [sizes.first_checkpoint] if sizes.checkpoints else []
    if sizes.sliding:
        # The window behind the last checkpoint is kept for the next hit, slots are given back in batches of pages, and
        # the window of the hit that a request began with stays locked until it ends.
        lag = 2 * sizes.sliding + 2 * sizes.track + sizes.eviction_interval + 2 * sizes.page
        groups.append(Group("attention", sizes.page, sizes.window_layers, window=sizes.sliding, lag=lag))
        sinks.append(sizes.first_window_page)
        reserved += range(sizes.first_window_page, sizes.first_window_page + sizes.reserved_window_pages)
    return Layout(
        groups=tuple(groups),
        num_blocks=sizes.num_blocks,
        conv_width=sizes.window + 1,
        mode="slots",
        prefix_caching=sizes.caching,
        num_speculative_tokens=max(sizes.drafts - 1, 0),
        null_block=0,
        reserved=frozenset(reserved),
        zeroing=False,
        hit_unit=sizes.page,
        cache_owns=True,
        keeps_ended=sizes.unified == "no",
        sinks=frozenset(sinks),
        state_ids=sizes.first_page,
        window_ids=sizes.first_window_page if sizes.sliding else 0,
        zeroed_start=True,
        overallocation=2 * sizes.decode_tokens + sizes.page,
    )


def interleaved(sizes: Sizes) -> list[tuple[int, int]]:
    """Return the model's layers from bottom to top, each as (group, number among those of its kind): one of each kind
    in turn, as in real hybrid models."""
    counts = {STATES: sizes.state_layers, ATTENTION: sizes.attention_layers, WINDOW: sizes.window_layers}
    rounds = range(max(counts.values()))
    return [(group, number) for number in rounds for group, count in counts.items() if number < count]


class SglangEngine:
    """SGLang's parts for one trace.

    layers  as `interleaved`; an index here is the layer's id
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.arguments = parts.publish(sizes)
        self.layers = interleaved(sizes)
        kinds = [group for group, _ in self.layers]
        ids = [[number for number, kind in enumerate(kinds) if kind == group] for group in (STATES, ATTENTION, WINDOW)]
        self.memory = parts.make_memory(sizes, *ids)
        self.rows, self.kv, self.allocator = self.memory.pools
        self.cache = parts.make_cache(sizes, self.rows, self.allocator)
        self.states = Storage(self.rows, self.kv, sizes)
        self.checkpoints = Checkpoints(self.rows, sizes) if sizes.checkpoints else None
        self.inputs = Inputs()

    def cached_state(self, slot: int) -> int:
        """Return the block of a state that the tree has: its working slot, or with int8 its checkpoint."""
        return slot if self.checkpoints is None else self.checkpoints.block_of(slot)


class Storage:
    """Views of SGLang's tensors as arrays over the same memory.

    temporal  [layer, slot]                window  [layer, slot, tap]
    keys, values  per attention layer [token slot]; window_keys, window_values of layers with a sliding window
    scratch_temporal [layer, row, draft], scratch_window [layer, row, draft, tap]  with speculation
    ring      [layer, slot, entry] with ReplaySSM: what stands for the input that the kernel appends as (d, k, g)
    """

    def __init__(self, rows: Any, kv: Any, sizes: Sizes) -> None:
        state = rows.mamba_pool.mamba_cache
        self.temporal: Any = state.temporal.numpy()[..., 0, 0, 0]
        self.window: Any = old_releases.windows(state)
        self.scratch_temporal: Any = np.empty(0, np.int64)
        self.scratch_window: Any = np.empty(0, np.int64)
        if sizes.drafts:
            steps = sizes.state_layers, sizes.request_rows + 1, sizes.drafts
            self.scratch_temporal = state.intermediate_ssm.numpy().reshape(steps)
            self.scratch_window = state.intermediate_conv_window[0].numpy().reshape(*steps, sizes.window)
        self.ring: Any = state.replayssm_d.numpy()[:, :, 0, :, 0] if sizes.ring else np.empty(0, np.int64)
        pool = kv.full_kv_pool
        self.keys: Any = [buffer.numpy()[:, 0, 0] for buffer in pool.k_buffer]
        self.values: Any = [buffer.numpy()[:, 0, 0] for buffer in pool.v_buffer]
        pool = kv.swa_kv_pool if sizes.sliding else None
        self.window_keys: Any = [buffer.numpy()[:, 0, 0] for buffer in pool.k_buffer] if pool else []
        self.window_values: Any = [buffer.numpy()[:, 0, 0] for buffer in pool.v_buffer] if pool else []
        # Random contents: zeroed memory hides bugs.
        noise = np.random.default_rng(0)
        scratch = (self.scratch_temporal, self.scratch_window)
        slots = (*self.keys, *self.values, *self.window_keys, *self.window_values)
        for array in (self.temporal, self.window, self.ring, *scratch, *slots):
            array[...] = noise.integers(1, 1 << 62, array.shape)
        self.clears_what_is_freed = old_releases.clears_what_is_freed(rows)
        if self.clears_what_is_freed:
            self.temporal[...] = self.window[...] = 0
