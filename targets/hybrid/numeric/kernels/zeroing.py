"""Zeroing of newly allocated blocks: one launch for all blocks and layers (the design of vLLM PR #35219).

A block that held states before must not show them to attention: pages are read whole. The addresses of the segments
are precomputed (metadata.ZeroPlan) and ids come through pinned memory (staging.Staging), so that a step adds one small
copy and one launch. Each program clears one piece of one segment of one block.
"""

import triton
import triton.language as tl
from torch import Tensor

from .language import INTEGERS, exists
from .metadata import ZeroPlan, check_vectors

PIECE = 1024


@triton.jit
def zero_pieces(addresses, strides, lengths, ids, blocks, pieces,
                KIND: tl.constexpr, UNIT: tl.constexpr, PIECE: tl.constexpr):  # fmt: skip
    """Grid (ids * pieces, segments); UNIT divides every address, stride and length, in bytes.

    addresses, strides, lengths  int64 [segments];  ids  int32 or int64 [ids], contiguous
    """
    index, piece, segment = tl.program_id(0) // pieces, tl.program_id(0) % pieces, tl.program_id(1)
    ELEMENT: tl.constexpr = UNIT if UNIT < 8 else 8
    block = tl.load(ids + index).to(tl.int64)
    if exists(block, blocks):
        length = tl.multiple_of(tl.load(lengths + segment) // ELEMENT, UNIT // ELEMENT)
        address = tl.load(addresses + segment) + block * tl.load(strides + segment)
        base = tl.multiple_of(address, UNIT).to(tl.pointer_type(KIND))
        offsets = piece.to(tl.int64) * PIECE + tl.arange(0, PIECE)
        tl.store(tl.multiple_of(base, UNIT) + offsets, tl.zeros([PIECE], KIND), mask=offsets < length)


def zero_blocks(plan: ZeroPlan, ids: Tensor) -> None:
    """See Ops."""
    check_vectors(ids)
    if not len(ids) or not plan.longest:
        return
    elements = triton.cdiv(plan.longest, min(plan.unit, 8))
    piece = min(PIECE, triton.next_power_of_2(elements))
    pieces = triton.cdiv(elements, piece)
    zero_pieces[(len(ids) * pieces, len(plan.views))](
        plan.addresses, plan.strides, plan.lengths, ids, plan.blocks, pieces, INTEGERS[min(plan.unit, 8)],
        plan.unit, piece,
    )  # fmt: skip
