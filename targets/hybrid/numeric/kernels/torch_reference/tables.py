"""Block tables: from rows and columns to block ids and slots."""

from __future__ import annotations

import torch
from torch import Tensor

from ..metadata import NO_SLOT, NULL_BLOCK, Rows
from ..ops import CacheMode


def block_at(table: list[list[int]], row: int, column: int) -> int:
    """Return table[row, column], null for a missing row or column."""
    if 0 <= row < len(table) and 0 <= column < len(table[row]):
        return table[row][column]
    return NULL_BLOCK


def gather_columns(table: Tensor, row_map: Tensor, first: Tensor, output: Tensor, *, split: int = 1) -> None:
    """See Ops."""
    host = table.tolist()
    for row, (source, column) in enumerate(zip(row_map.tolist(), first.tolist(), strict=True)):
        blocks = [block_at(host, source, column + j // split) for j in range(output.shape[1])]
        ids = [block * split + j % split if block != NULL_BLOCK else NULL_BLOCK for j, block in enumerate(blocks)]
        output[row] = torch.tensor(ids, dtype=output.dtype)


def slot_mapping(
    table: Tensor, row_map: Tensor, rows: Rows, computed: Tensor, output: Tensor, *, block_size: int
) -> None:
    """See Ops."""
    output.fill_(NO_SLOT)
    host, starts = table.tolist(), rows.starts.tolist()
    for row, (source, position) in enumerate(zip(row_map.tolist(), computed.tolist(), strict=True)):
        for token in range(starts[row], starts[row + 1]):
            column, offset = divmod(position + token - starts[row], block_size)
            block = block_at(host, source, column)
            if block > NULL_BLOCK:
                output[token] = block * block_size + offset


def run_column(computed: int, scheduled: int, mode: CacheMode, block_size: int) -> int:
    """Return the column of the state after all tokens of the step."""
    return 0 if mode == "none" else (computed + scheduled - 1) // block_size


def state_indices(
    table: Tensor,
    row_map: Tensor,
    computed: Tensor,
    scheduled: Tensor,
    state_columns: Tensor,
    offsets: Tensor,
    sources: Tensor,
    windows: Tensor,
    outputs: Tensor,
    *,
    mode: CacheMode,
    block_size: int,
) -> None:
    """See Ops."""
    host = table.tolist()
    inputs = (row_map, computed, scheduled, state_columns, offsets)
    for index, (row, position, count, state, offset) in enumerate(
        zip(*(tensor.tolist() for tensor in inputs), strict=True)
    ):
        continues = position > 0 and state >= 0 and count > 0
        sources[index] = block_at(host, row, state + offset) if continues else NULL_BLOCK
        windows[index] = block_at(host, row, state) if continues else NULL_BLOCK
        run = run_column(position, count, mode, block_size)
        for j in range(outputs.shape[1]):
            outputs[index, j] = block_at(host, row, run + j) if count > 0 else NULL_BLOCK


def boundary_stops(
    table: Tensor,
    row_map: Tensor,
    computed: Tensor,
    scheduled: Tensor,
    counts: Tensor,
    blocks: Tensor,
    *,
    block_size: int,
) -> None:
    """See Ops."""
    host, last = table.tolist(), counts.shape[1] - 1
    counts.fill_(-1)
    blocks.fill_(NULL_BLOCK)
    for index, (row, position, count) in enumerate(
        zip(*(tensor.tolist() for tensor in (row_map, computed, scheduled)), strict=True)
    ):
        if count <= 0:
            continue
        inside = range((position // block_size + 1) * block_size, position + count, block_size)
        for entry, depth in enumerate(inside[:last]):
            counts[index, entry] = depth - position
            blocks[index, entry] = block_at(host, row, depth // block_size - 1)
        counts[index, last] = count
        blocks[index, last] = block_at(host, row, (position + count - 1) // block_size)
