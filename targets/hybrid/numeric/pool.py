"""One physical pool of bytes, shared by attention and state layers, as real engines lay it out.

Every block has one page per layer slot; layer i of every group uses the same page, see `paging`. Unused memory is
filled three ways and results must not change: the pool holds the same blocks three times, once for each fill, and one
launch works on all three.

    page 0                  null block of the kernels: a guard, never written
    1 + f * (blocks + 1)    block 0 of fill f; its null block is a guard, too
    ... + blocks            a guard page after each fill

Poison identifies the dead block: id and generation, one bit in the sign of each odd byte. All bytes are 0x7f or 0xff,
so it is NaN in fp32, bf16, fp16 and fp8 e4m3 alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from ....reference.layout import Group, Layout
from ....reference.numeric import tiny_model
from ....reference.numeric.tiny_model import TinyModel
from .paging import PageLayout

FILLS = ("NaN poison", "large finite", "zero")
LARGE_FINITE = 0x7B
"""A byte that, repeated, is a large finite number in each of the four data types."""
FILL_BYTES = (0xFF, LARGE_FINITE, 0)
"""Bytes of dead memory, by fill, where the dead block need not be identified."""
GUARD = 0x5A
NO_PAGE = 0
"""The null block of the kernels."""
PAGE_UNIT = 16
"""The number of pages is a multiple of this: Triton compiles another kernel for other numbers."""
PAYLOAD_BYTES = 64
"""The payload repeats after this many bytes: 32 bits, one in every second byte."""
BLOCK_BITS = 12


def poison_page(block: int, generation: int, size: int) -> NDArray[np.uint8]:
    """Return the NaN page of a dead block."""
    payload = block | generation << BLOCK_BITS
    odd = [0xFF if payload >> bit & 1 else 0x7F for bit in range(PAYLOAD_BYTES // 2)]
    unit = np.full(PAYLOAD_BYTES, 0xFF, np.uint8)
    unit[1::2] = odd
    return np.resize(unit, size)


def pack_dead_blocks(dead: Mapping[int, int]) -> NDArray[np.uint8]:
    """Return the upload for dead blocks (block -> generation): ids (int64), then the poison of each."""
    poison = [poison_page(block, generation, PAYLOAD_BYTES) for block, generation in dead.items()]
    return np.concatenate([np.array(list(dead), np.int64).view(np.uint8), *poison])


def parts_of(
    page: torch.Tensor, group: Group, pages: PageLayout, model: TinyModel
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return typed views of the bytes of pages, uint8 [..., page size].

    Recurrent state and window, or keys and values by kernel block [..., split, tokens, KV_HEADS, ATTENTION_DIM].
    """

    def typed(dtype: str, start: int, *shape: int) -> torch.Tensor:
        kind = getattr(torch, dtype)
        numbers = page[..., start : start + prod(shape) * kind.itemsize].view(kind)
        return numbers.view(*page.shape[:-1], *shape)

    if group.kind == "mamba":
        state = tiny_model.state_shape(model.mixer)
        window = (model.conv_width - 1, tiny_model.CONV_CHANNELS)
        return typed(model.state_dtype, 0, *state), typed("bfloat16", pages.conv, *window)
    split = pages.split(group.block_size)
    page = page.view(*page.shape[:-1], split, page.shape[-1] // split)
    shape = (group.block_size // split, tiny_model.KV_HEADS, tiny_model.ATTENTION_DIM)
    keys = typed(model.kv_dtype, 0, *shape)
    return keys, typed(model.kv_dtype, prod(shape) * keys.element_size(), *shape)


class BytePool:
    """`layers` regions of pages in one tensor of bytes. Methods take block ids and treat the three fills alike."""

    def __init__(self, layout: Layout, model: TinyModel, pages: PageLayout, device: torch.device) -> None:
        self.layout = layout
        self.model = model
        self.pages = pages
        self.layers = max(group.layers for group in layout.groups)
        self.num_blocks = layout.num_blocks
        self.stride = layout.num_blocks + 1
        self.num_pages = -(-(1 + len(FILLS) * self.stride) // PAGE_UNIT) * PAGE_UNIT
        self.bytes = torch.empty(self.layers * self.num_pages * self.pages.size, dtype=torch.uint8, device=device)
        self.by_page = self.bytes.view(self.layers, self.num_pages, self.pages.size)
        null = [] if layout.null_block is None else [self.page(fill, layout.null_block) for fill in range(len(FILLS))]
        guards = [0, *null, *(fill * self.stride for fill in range(1, len(FILLS) + 1))]
        self.guard_pages = torch.tensor(guards, dtype=torch.int64, device=device)
        self.guard_names = ["page 0", *["the null block"] * len(null), *(f"the guard after {name}" for name in FILLS)]

    def page(self, fill: int, block: int) -> int:
        """Return the page of a block in one fill."""
        return 1 + fill * self.stride + block

    def page_or_null(self, fill: int, block: int | None) -> int:
        """Return the page of a block for a kernel, NO_PAGE for None. A row beyond its table may name any id."""
        return NO_PAGE if block is None else self.page(fill, block)

    def pages_or_null(self, fill: int, blocks: Sequence[int | None]) -> list[int]:
        """Return the pages of several blocks for a kernel."""
        return [self.page_or_null(fill, block) for block in blocks]

    def fill_all(self, generations: Sequence[int]) -> None:
        """Lose all content: every block is dead, every guard is intact."""
        dead = pack_dead_blocks({block: generations[block] for block in range(self.num_blocks)})
        self.fill_dead(torch.from_numpy(dead).to(self.bytes.device))
        self.by_page[:, self.guard_pages] = GUARD

    def fill_dead(self, dead: torch.Tensor) -> None:
        """Overwrite dead blocks, in each fill with its bytes; `dead` comes from `pack_dead_blocks`."""
        count = len(dead) // (8 + PAYLOAD_BYTES)
        blocks, poison = dead[: 8 * count].view(torch.int64), dead[8 * count :].view(count, PAYLOAD_BYTES)
        repeats = -(-self.pages.size // PAYLOAD_BYTES)
        self.by_page[:, blocks + self.page(0, 0)] = poison.repeat(1, repeats)[:, : self.pages.size]
        self.by_page[:, blocks + self.page(1, 0)] = LARGE_FINITE
        self.by_page[:, blocks + self.page(2, 0)] = 0

    def fills(self, layer: int, block: int) -> torch.Tensor:
        """Return a block's page in every fill, uint8 [fills, page size]; a view of the pool's bytes."""
        first = self.page(0, block)
        return self.by_page[layer, first : first + len(FILLS) * self.stride : self.stride]

    def pages_of(self, blocks: Iterable[int]) -> list[int]:
        """Return the pages of `blocks` in all fills: those of the first fill, then of the next."""
        blocks = list(blocks)
        return [self.page(fill, block) for fill in range(len(FILLS)) for block in blocks]

    def broken_guards(self) -> torch.Tensor:
        """Return bool [guards] on the device: True for guards whose bytes were changed."""
        return (self.by_page[:, self.guard_pages] != GUARD).any(dim=-1).any(dim=0)

    def view(self, layer: int, dtype: str, offset: int, shape: Sequence[int], split: int = 1) -> torch.Tensor:
        """Return a view [num_pages * split, *shape] of `dtype`.

        It starts `offset` bytes into every page of one layer, or into each of the `split` parts of a page.
        """
        kind = getattr(torch, dtype)
        start, page = layer * self.num_pages * self.pages.size + offset, self.pages.size // split
        assert not (start % kind.itemsize or page % kind.itemsize)
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        return torch.as_strided(
            self.bytes.view(kind),
            (self.num_pages * split, *shape),
            (page // kind.itemsize, *strides),
            start // kind.itemsize,
        )

    def temporal(self, layer: int) -> torch.Tensor:
        """Return the recurrent states [num_pages, HEADS, ...] in the shape of the mixer."""
        shape = tiny_model.state_shape(self.model.mixer)
        return self.view(layer, self.model.state_dtype, 0, shape)

    def conv(self, layer: int) -> torch.Tensor:
        """Return the convolution buffers, bf16 [num_pages, conv_slots, CONV_CHANNELS], oldest input first."""
        return self.view(layer, "bfloat16", self.pages.conv, (self.pages.conv_slots, tiny_model.CONV_CHANNELS))

    def keys_and_values(self, layer: int, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return keys and values, each [kernel blocks, tokens, KV_HEADS, ATTENTION_DIM]; keys first."""
        split = self.pages.split(block_size)
        shape = (block_size // split, tiny_model.KV_HEADS, tiny_model.ATTENTION_DIM)
        offsets = self.pages.slot(block_size, 0)
        keys, values = (self.view(layer, self.model.kv_dtype, offset, shape, split) for offset in offsets)
        return keys, values
