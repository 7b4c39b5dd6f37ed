"""Checkpoints of states in int8 (`--enable-int8-mamba-checkpoint`): the radix tree keeps states in a pool of its own.

A state that is cached is quantized into a slot of that pool, at once, on the scheduler's stream; a hit dequantizes it
into the request's working slot, before the forward of its batch. The pool, its allocator, its tensors and both copies
are SGLang's; the arithmetic is ours: a tag cannot lose precision, so that its low byte is the quantized value and the
rest is the scale. The reference numbers checkpoints behind the working slots. The tree has checkpoints alone, requests
have working slots alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from .compat.sizes import Sizes

BITS = 8
"""Of a quantized value."""
LEAST = -(1 << (BITS - 1))
"""Quantized value of the byte 0."""


def quantize(state: Any) -> tuple[Any, Any]:
    """Return a state's low bytes, as int8, and the rest, in place of the scale."""
    return ((state & ((1 << BITS) - 1)) + LEAST).to(torch.int8), state >> BITS


def dequantize(values: Any, scale: Any, out_dtype: Any) -> Any:
    """Return the state that `quantize` split."""
    return ((scale << BITS) | (values.to(torch.int64) - LEAST)).to(out_dtype)


class Checkpoints:
    """The pool of checkpoints of one engine. Blocks of the reference begin with `first`."""

    def __init__(self, rows: Any, sizes: Sizes) -> None:
        self.pool, self.first = rows.mamba_ckpt_pool, sizes.first_checkpoint
        assert self.pool.num_slots == sizes.checkpoints
        self._ids, self._outside = range(sizes.num_checkpoints), sizes.num_blocks
        store = self.pool.temporal
        store.quantize, store.dequantize = quantize, dequantize
        # Random contents: zeroed memory hides bugs.
        noise = np.random.default_rng(1)
        for tensor, most in ((store.qdata, 127), (store.scale, 1 << 54), (self.pool.conv[0], 1 << 62)):
            tensor.copy_(torch.from_numpy(noise.integers(1, most, tuple(tensor.shape))))

    def free(self) -> list[int]:
        """Return the free checkpoints, as blocks."""
        return [self.block_of(slot) for slot in self.pool.allocator.free_slots.tolist()]

    def block_of(self, slot: int) -> int:
        """Return the block of a checkpoint. One that the pool does not have is no block: behind them is a page."""
        return (self.first if slot in self._ids else self._outside) + slot

    def read(self, layer: int, block: int) -> tuple[int, tuple[int, ...]]:
        """Return the recurrent state and the convolution window of a checkpoint."""
        store, slot = self.pool.temporal, block - self.first
        temporal = dequantize(store.qdata[layer, slot], store.scale[layer, slot], torch.int64)
        return int(temporal), tuple(self.pool.conv[0][layer, slot].reshape(-1).tolist())

    def watch(self, fence: Callable[[], None], note: Callable[[list[tuple[int, int]]], None]) -> None:
        """Let stores come behind what the scheduler's stream waits for (`fence`), and note each as (slot, block)."""
        store = self.pool.store_from_active

        def stored(states: Any, slots: Any, checkpoints: Any) -> None:
            fence()
            store(states, slots, checkpoints)
            note(list(zip(slots.tolist(), map(self.block_of, checkpoints.tolist()), strict=True)))

        self.pool.store_from_active = stored
