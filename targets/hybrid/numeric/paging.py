"""Page size and byte offsets: one page size for all groups.

Groups overlay each other in one tensor, so all pages have the same size. Engines do it in two ways:

    padded  the size of the largest group, rounded up; smaller groups leave the rest of their pages unused
    scaled  attention blocks are long enough to hold a state: a page is exactly one attention block, states are padded

A kernel may need smaller blocks than the manager allocates. A manager block is then several consecutive kernel blocks,
each with its keys, then its values; kernel block j of page p has the id p * split + j.

Source: vLLM `Platform._align_hybrid_block_size`, `prepare_kernel_block_sizes` (0.33.0). It needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm, prod

from ....reference.layout import Group, Layout
from ....reference.numeric.tiny_model import ATTENTION_DIM, CONV_CHANNELS, ITEM_BYTES, KV_HEADS, TinyModel, state_shape

ALIGNMENT = 64
CONV_DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True)
class Paging:
    """Page layout options of a trace; `kernel_block` in tokens, 0 for the manager's block size."""

    scaled: bool = False
    kernel_block: int = 0

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Paging:
        """Read the options `page_layout` and `kernel_block`."""
        return cls(options.get("page_layout") == "scaled", int(options.get("kernel_block", "0")))

    def unsupported(self, layout: Layout, model: TinyModel) -> str:
        """Return why these groups cannot be laid out so, "" if they can."""
        attention = [group for group in layout.groups if group.kind == "attention"]
        if self.kernel_block and not attention:
            return "kernel_block is for attention groups, and there is none"
        for group in attention:
            if self.kernel_block and group.block_size % self.kernel_block:
                return f"kernel_block={self.kernel_block} does not divide the block size {group.block_size}"
        if self.scaled:
            if len({group.block_size for group in attention}) != 1:
                return "page_layout=scaled needs one block size for all attention groups"
            largest = max(group_bytes(group, layout, model) for group in layout.groups)
            if group_bytes(attention[0], layout, model) < largest:
                return f"page_layout=scaled: a block of attention is smaller than a state of {largest} bytes"
        return ""


def slot_bytes(model: TinyModel) -> int:
    """Return the bytes of the key, or the value, of one token."""
    return KV_HEADS * ATTENTION_DIM * ITEM_BYTES[model.kv_dtype]


def temporal_bytes(model: TinyModel) -> int:
    """Return the bytes of a recurrent state."""
    return prod(state_shape(model.mixer)) * ITEM_BYTES[model.state_dtype]


def conv_slots(layout: Layout) -> int:
    """Return the inputs that a convolution buffer holds: a window, and one more for each draft."""
    return layout.conv_width - 1 + layout.num_speculative_tokens


def group_bytes(group: Group, layout: Layout, model: TinyModel) -> int:
    """Return the bytes of a page that one layer of a group needs."""
    if group.kind == "attention":
        return group.block_size * 2 * slot_bytes(model)
    return temporal_bytes(model) + conv_slots(layout) * CONV_CHANNELS * ITEM_BYTES[CONV_DTYPE]


@dataclass(frozen=True, slots=True)
class PageLayout:
    """Byte offsets within a page.

    conv_slots    inputs that a convolution buffer holds
    conv          offset of the convolution buffer, after the recurrent state
    entry         bytes of one token's key, or value
    size          bytes of every page
    kernel_block  tokens, 0 for the manager's block size
    """

    conv_slots: int
    conv: int
    entry: int
    size: int
    kernel_block: int

    @classmethod
    def of(cls, layout: Layout, model: TinyModel, paging: Paging = Paging()) -> PageLayout:
        """Return the layout for groups that `paging` supports."""
        attention = [group for group in layout.groups if group.kind == "attention"]
        if paging.scaled:
            size = group_bytes(attention[0], layout, model)
        else:
            unit = lcm(ALIGNMENT, *(_split(group.block_size, paging.kernel_block) for group in attention))
            size = -(-max(group_bytes(group, layout, model) for group in layout.groups) // unit) * unit
        return cls(conv_slots(layout), temporal_bytes(model), slot_bytes(model), size, paging.kernel_block)

    def split(self, block_size: int) -> int:
        """Return the kernel blocks in one manager block of attention."""
        return _split(block_size, self.kernel_block)

    def slot(self, block_size: int, slot: int) -> tuple[int, int]:
        """Return the offsets of a token's key and value in the page of a block of `block_size` tokens."""
        kernel, split = block_size // self.split(block_size), self.split(block_size)
        block, place = divmod(slot, kernel)
        key = block * (self.size // split) + place * self.entry
        return key, key + kernel * self.entry


def _split(block_size: int, kernel_block: int) -> int:
    return block_size // (kernel_block or block_size)
