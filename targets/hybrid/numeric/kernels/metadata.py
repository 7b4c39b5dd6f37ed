"""Index tensors: the rows, blocks and regions that an operation reads and writes.

They are on the operation's device and keep their shape between replays of a captured graph. Values that a launch grid
depends on (`longest`, `unit`) are plain ints on the host.

Block 0 is the null block. An id that is null, negative or beyond the pool names no block: reads of it return zeros,
writes to it are dropped, and no address is computed from it. Two rows of one launch must not write the same block, and
none may write a block that another row reads: the order of rows is undefined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd

import torch
from torch import Tensor

NULL_BLOCK = 0
NO_SLOT = -1


def check_vectors(*vectors: Tensor) -> None:
    """Raise ValueError for an index vector that is not contiguous: kernels would read other elements."""
    if not all(vector.is_contiguous() for vector in vectors):
        raise ValueError("vectors of indices must be contiguous")


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Tokens of each row in the flattened batch.

    starts   int32 [rows + 1]; row r has tokens starts[r] .. starts[r + 1] - 1, none if the two are equal (padding)
    longest  most tokens that any row has, or more
    """

    starts: Tensor
    longest: int

    @property
    def count(self) -> int:
        """Number of rows, padding included."""
        return self.starts.shape[0] - 1

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device | str = "cpu") -> Rows:
        """Return rows with these numbers of tokens."""
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        return Rows(torch.tensor(starts, dtype=torch.int32, device=device), max([1, *lengths]))


@dataclass(frozen=True, slots=True, eq=False)
class Stops:
    """Stops of each row: numbers of tokens after which it stores its state, with the blocks to store it in.

    starts  int32 [rows + 1]; row r has stops starts[r] .. starts[r + 1] - 1
    counts  int32 [stops]; tokens of the row before the stop, in any order; 0 for the initial state.
            A count outside 0 .. tokens of the row stores no state
    blocks  int32 [stops]
    """

    starts: Tensor
    counts: Tensor
    blocks: Tensor

    @staticmethod
    def of(stops: Sequence[Sequence[tuple[int, int]]], device: torch.device | str = "cpu") -> Stops:
        """Return stops with these (count, block) pairs by row."""
        flat = [stop for row in stops for stop in row]
        counts, blocks = [count for count, _ in flat], [block for _, block in flat]
        return Stops(
            Rows.of([len(row) for row in stops], device).starts,
            torch.tensor(counts, dtype=torch.int32, device=device),
            torch.tensor(blocks, dtype=torch.int32, device=device),
        )

    @staticmethod
    def after_each_token(blocks: Tensor) -> Stops:
        """Return stops that store the state after token j of row r in blocks[r, j]; `blocks` is int32 [rows, width]."""
        rows, width = blocks.shape
        starts = torch.arange(rows + 1, dtype=torch.int32, device=blocks.device) * width
        counts = torch.arange(1, width + 1, dtype=torch.int32, device=blocks.device).repeat(rows)
        return Stops(starts, counts, blocks.reshape(-1))


@dataclass(frozen=True, slots=True, eq=False)
class Regions:
    """Byte ranges to copy within one pool.

    sources, destinations, lengths  int64 [regions], bytes from the start of the pool
    unit     largest power of two up to 8 that divides them all
    longest  bytes of the longest region, or more
    """

    sources: Tensor
    destinations: Tensor
    lengths: Tensor
    unit: int
    longest: int

    @staticmethod
    def of(regions: Sequence[tuple[int, int, int]], device: torch.device | str = "cpu") -> Regions:
        """Return regions with these (source, destination, length)."""
        columns = [torch.tensor([region[i] for region in regions], dtype=torch.int64, device=device) for i in range(3)]
        unit = gcd(8, *(number for region in regions for number in region))
        return Regions(columns[0], columns[1], columns[2], unit, max([0, *(length for _, _, length in regions)]))


@dataclass(frozen=True, slots=True, eq=False)
class ZeroPlan:
    """Bytes of a block to zero: one segment for each layer.

    views      uint8 [blocks, bytes] of each segment, the last dimension contiguous; they keep the pool alive
    addresses  int64 [segments] on the pool's device: address of block 0
    strides    int64 [segments]: bytes from block to block
    lengths    int64 [segments]: bytes to zero in each block
    unit       largest power of two up to 16 that divides all three
    longest    bytes of the longest segment
    blocks     blocks of the pool
    """

    views: tuple[Tensor, ...]
    addresses: Tensor
    strides: Tensor
    lengths: Tensor
    unit: int
    longest: int
    blocks: int

    @staticmethod
    def of(views: Sequence[Tensor]) -> ZeroPlan:
        """Precompute the addresses. Raises ValueError for views that are not byte segments of one pool."""
        if not views or any(view.dtype != torch.uint8 or view.dim() != 2 or view.stride(1) != 1 for view in views):
            raise ValueError("zeroing needs at least one uint8 view [blocks, bytes] with contiguous bytes")
        if any(view.shape[0] != other.shape[0] for view, other in pairwise(views)):
            raise ValueError("all segments need the same number of blocks")
        numbers = [(view.data_ptr(), view.stride(0), view.shape[1]) for view in views]
        columns = [torch.tensor([number[i] for number in numbers], device=views[0].device) for i in range(3)]
        unit = gcd(16, *(number for segment in numbers for number in segment))
        longest = max(length for _, _, length in numbers)
        return ZeroPlan(tuple(views), columns[0], columns[1], columns[2], unit, longest, views[0].shape[0])
