"""The index tensors that tell an operation where to read and write.

They live on the operation's device and never change shape between two replays of a captured graph; everything that a
launch grid depends on (`longest`, `unit`) is a plain int of the host.

Block 0 is the null block. An id that is null, negative or beyond the pool names nothing: reads of it give zeros,
writes to it are dropped, and no address is formed from it. Two rows of one launch must not write the same block, and
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
    """Raise ValueError for an index vector that is not contiguous: kernels would read something else."""
    if not all(vector.is_contiguous() for vector in vectors):
        raise ValueError("vectors of indices must be contiguous")


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Which tokens of the flattened batch belong to which row.

    starts   int32 [rows + 1]; row r has tokens starts[r] .. starts[r + 1] - 1, none if the two are equal (padding)
    longest  most tokens that any row has, or more
    """

    starts: Tensor
    longest: int

    @property
    def count(self) -> int:
        """Rows, padding included."""
        return self.starts.shape[0] - 1

    @staticmethod
    def of(lengths: Sequence[int], device: torch.device | str = "cpu") -> Rows:
        """From the number of tokens of each row."""
        starts = [0]
        for length in lengths:
            starts.append(starts[-1] + length)
        return Rows(torch.tensor(starts, dtype=torch.int32, device=device), max([1, *lengths]))


@dataclass(frozen=True, slots=True, eq=False)
class Stops:
    """After how many of its tokens a row stores its state, and in which block.

    starts  int32 [rows + 1]; row r has stops starts[r] .. starts[r + 1] - 1
    counts  int32 [stops]; tokens of the row after which to store, in any order, 0 for the state that it started from.
            A count outside 0 .. tokens of the row stores nothing
    blocks  int32 [stops]
    """

    starts: Tensor
    counts: Tensor
    blocks: Tensor

    @staticmethod
    def of(stops: Sequence[Sequence[tuple[int, int]]], device: torch.device | str = "cpu") -> Stops:
        """From the (count, block) pairs of each row."""
        flat = [stop for row in stops for stop in row]
        counts, blocks = [count for count, _ in flat], [block for _, block in flat]
        return Stops(
            Rows.of([len(row) for row in stops], device).starts,
            torch.tensor(counts, dtype=torch.int32, device=device),
            torch.tensor(blocks, dtype=torch.int32, device=device),
        )

    @staticmethod
    def after_each_token(blocks: Tensor) -> Stops:
        """Speculative rows: the state after token j of row r goes to blocks[r, j]; `blocks` is int32 [rows, width]."""
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
        """From (source, destination, length) of each region."""
        columns = [torch.tensor([region[i] for region in regions], dtype=torch.int64, device=device) for i in range(3)]
        unit = gcd(8, *(number for region in regions for number in region))
        return Regions(columns[0], columns[1], columns[2], unit, max([0, *(length for _, _, length in regions)]))


def write_hazards(regions: Sequence[tuple[int, int, int]]) -> list[tuple[int, int]]:
    """Pairs (i, j), i != j, where region i writes what region j reads or writes: copies in one launch must have none.

    A region may overlap itself.
    """
    return [
        (i, j)
        for i, (_, destination, length) in enumerate(regions)
        for j, (source, other, size) in enumerate(regions)
        if i != j and any(max(destination, at) < min(destination + length, at + size) for at in (source, other))
    ]


@dataclass(frozen=True, slots=True, eq=False)
class ZeroPlan:
    """Which bytes of a block are zeroed: one segment for each layer that may find foreign bytes there.

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
        """Precompute the addresses; raises ValueError for views that are not byte segments of one pool."""
        if not views or any(view.dtype != torch.uint8 or view.dim() != 2 or view.stride(1) != 1 for view in views):
            raise ValueError("zeroing needs at least one uint8 view [blocks, bytes] with contiguous bytes")
        if any(view.shape[0] != other.shape[0] for view, other in pairwise(views)):
            raise ValueError("all segments need the same number of blocks")
        numbers = [(view.data_ptr(), view.stride(0), view.shape[1]) for view in views]
        columns = [torch.tensor([number[i] for number in numbers], device=views[0].device) for i in range(3)]
        unit = gcd(16, *(number for segment in numbers for number in segment))
        longest = max(length for _, _, length in numbers)
        return ZeroPlan(tuple(views), columns[0], columns[1], columns[2], unit, longest, views[0].shape[0])
