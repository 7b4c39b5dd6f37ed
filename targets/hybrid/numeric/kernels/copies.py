"""Copies of byte ranges within the pool in one launch, as mode align needs for states before and after a forward.

A shifted convolution window may overlap its own source. One program moves such a region piece by piece, in the order in
which no piece overwrites one that is still to be read; all threads read a piece before any writes it. Other regions are
split over several programs. Source of the design: vLLM's batched copies of Mamba states (pre- and postprocess).
"""

from math import gcd

import triton
import triton.language as tl
from torch import Tensor

from .language import INTEGERS
from .metadata import Regions, check_vectors

PIECE, PROGRAMS = 1024, 32


@triton.jit
def move(pool, sources, destinations, lengths, size, KIND: tl.constexpr, UNIT: tl.constexpr, PIECE: tl.constexpr):
    """Grid (regions, programs). pool uint8; sources, destinations, lengths int64 [regions], multiples of UNIT bytes."""
    region, program, programs = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    source, destination = tl.load(sources + region), tl.load(destinations + region)
    length = tl.load(lengths + region)
    legal = (length > 0) & (tl.minimum(source, destination) >= 0) & (tl.maximum(source, destination) + length <= size)
    overlaps = tl.maximum(source, destination) - tl.minimum(source, destination) < length
    if legal & ((program == 0) | (overlaps == 0)):
        units = length // UNIT
        pieces = tl.cdiv(units, PIECE)
        read_at = (pool + source).to(tl.pointer_type(KIND), bitcast=True)
        write_at = (pool + destination).to(tl.pointer_type(KIND), bitcast=True)
        begin = tl.where(overlaps, 0, program)
        stride = tl.where(overlaps, 1, programs)
        for index in range(begin, pieces, stride):
            piece = tl.where(overlaps & (destination > source), pieces - 1 - index, index)
            offsets = piece.to(tl.int64) * PIECE + tl.arange(0, PIECE)
            held = tl.load(read_at + offsets, mask=offsets < units, other=0)
            tl.debug_barrier()
            tl.store(write_at + offsets, held, mask=offsets < units)


def copy_regions(pool: Tensor, regions: Regions) -> None:
    """See Ops."""
    check_vectors(pool, regions.sources, regions.destinations, regions.lengths)
    count = len(regions.sources)
    if not count or not regions.longest:
        return
    unit = gcd(regions.unit, pool.data_ptr())
    units = triton.cdiv(regions.longest, unit)
    piece = min(PIECE, triton.next_power_of_2(units))
    move[(count, min(PROGRAMS, triton.cdiv(units, piece)))](
        pool, regions.sources, regions.destinations, regions.lengths, pool.shape[0], INTEGERS[unit], unit, piece
    )  # fmt: skip
