"""Block tables on the device: gathered columns, slots of tokens, indices of states, boundary stops of mode all.

One program for each row. Rows and columns that do not exist read as the null block and are never dereferenced: a table
that is too narrow for its speculative columns (mutant all-spec-table-width) must be detected, not crash.
Source of the shapes: vLLM mamba_get_block_table_tensor and the index arrays of its Mamba metadata builder.
"""

import triton
import triton.language as tl
from torch import Tensor

from .metadata import NO_SLOT, Rows, check_vectors
from .ops import CacheMode


@triton.jit
def blocks_at(table, row, columns, table_rows, table_columns, row_stride, column_stride):
    """Return table[row, columns] for a block of columns, null outside."""
    limit = tl.where((row >= 0) & (row < table_rows), table_columns, 0)
    at = table + row.to(tl.int64) * row_stride + columns.to(tl.int64) * column_stride
    return tl.load(at, mask=(columns >= 0) & (columns < limit), other=0)


@triton.jit
def gather(
    table, row_map, first, output, table_rows, table_columns, width, row_stride, column_stride, output_row,
    output_column, SPLIT: tl.constexpr, WIDTH_P2: tl.constexpr,
):  # fmt: skip
    """Grid (rows,)."""
    row, j = tl.program_id(0), tl.arange(0, WIDTH_P2)
    columns = tl.load(first + row) + j // SPLIT
    found = blocks_at(table, tl.load(row_map + row), columns, table_rows, table_columns, row_stride, column_stride)
    found = tl.where(found == 0, 0, found * SPLIT + j % SPLIT)
    tl.store(output + row.to(tl.int64) * output_row + j * output_column, found, mask=j < width)


@triton.jit
def slots(
    table, row_map, starts, computed, output, table_rows, table_columns, row_stride, column_stride,
    SIZE: tl.constexpr, PIECE: tl.constexpr, MISSING: tl.constexpr,
):  # fmt: skip
    """Grid (rows, pieces of the longest row)."""
    row = tl.program_id(0)
    index = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    first, end = tl.load(starts + row), tl.load(starts + row + 1)
    position = tl.load(computed + row) + index
    found = blocks_at(table, tl.load(row_map + row), position // SIZE, table_rows, table_columns,
                      row_stride, column_stride).to(tl.int64)  # fmt: skip
    slot = tl.where(found > 0, found * SIZE + position % SIZE, MISSING)
    tl.store(output + first + index, slot, mask=index < end - first)


@triton.jit
def indices(
    table, row_map, computed, scheduled, state_columns, offsets, sources, windows, outputs,
    table_rows, table_columns, width, row_stride, column_stride, output_row, output_column,
    NONE: tl.constexpr, SIZE: tl.constexpr, WIDTH_P2: tl.constexpr,
):  # fmt: skip
    """Grid (rows,)."""
    row = tl.program_id(0)
    mapped, position, count = tl.load(row_map + row), tl.load(computed + row), tl.load(scheduled + row)
    state, offset = tl.load(state_columns + row), tl.load(offsets + row)
    # Padding rows, and rows without an initial state, are rows outside the table.
    live = tl.where(count > 0, mapped, -1)
    origin = tl.where((position > 0) & (state >= 0), live, -1)
    one = tl.arange(0, 1)
    source = blocks_at(table, origin, state + offset + one, table_rows, table_columns, row_stride, column_stride)
    window = blocks_at(table, origin, state + one, table_rows, table_columns, row_stride, column_stride)
    tl.store(sources + row + one, source)
    tl.store(windows + row + one, window)
    j = tl.arange(0, WIDTH_P2)
    run = tl.where(count > 0, 0 if NONE else (position + count - 1) // SIZE, 0)
    found = blocks_at(table, live, run + j, table_rows, table_columns, row_stride, column_stride)
    tl.store(outputs + row.to(tl.int64) * output_row + j * output_column, found, mask=j < width)


@triton.jit
def boundaries(
    table, row_map, computed, scheduled, counts, blocks, table_rows, table_columns, capacity, row_stride,
    column_stride, SIZE: tl.constexpr, CAPACITY_P2: tl.constexpr,
):  # fmt: skip
    """Grid (rows,)."""
    row, j = tl.program_id(0), tl.arange(0, CAPACITY_P2)
    mapped, position, count = tl.load(row_map + row), tl.load(computed + row), tl.load(scheduled + row)
    end = position + tl.maximum(count, 0)
    depth = (position // SIZE + 1 + j) * SIZE
    last = j == capacity - 1
    used = (last | (depth < end)) & (j < tl.where(count > 0, capacity, 0))
    column = tl.where(last, (end - 1) // SIZE, depth // SIZE - 1)
    found = blocks_at(table, mapped, tl.where(used, column, -1), table_rows, table_columns, row_stride, column_stride)
    after = tl.where(used, tl.where(last, count, depth - position), -1)
    tl.store(counts + row * capacity + j, after, mask=j < capacity)
    tl.store(blocks + row * capacity + j, found, mask=j < capacity)


def gather_columns(table: Tensor, row_map: Tensor, first: Tensor, output: Tensor, *, split: int = 1) -> None:
    """See Ops."""
    check_vectors(row_map, first)
    rows, width = output.shape
    if rows and width:
        gather[(rows,)](
            table, row_map, first, output, *table.shape, width, *table.stride(), *output.stride(),
            split, triton.next_power_of_2(width),
        )  # fmt: skip


def slot_mapping(
    table: Tensor, row_map: Tensor, rows: Rows, computed: Tensor, output: Tensor, *, block_size: int
) -> None:
    """See Ops."""
    check_vectors(row_map, rows.starts, computed, output)
    output.fill_(NO_SLOT)
    piece = min(64, triton.next_power_of_2(rows.longest))
    if rows.count:
        slots[(rows.count, triton.cdiv(rows.longest, piece))](
            table, row_map, rows.starts, computed, output, *table.shape, *table.stride(), block_size, piece, NO_SLOT
        )  # fmt: skip


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
    check_vectors(row_map, computed, scheduled, state_columns, offsets, sources, windows)
    rows, width = outputs.shape
    if rows:
        indices[(rows,)](
            table, row_map, computed, scheduled, state_columns, offsets, sources, windows, outputs,
            *table.shape, width, *table.stride(), *outputs.stride(),
            mode == "none", block_size, triton.next_power_of_2(max(width, 1)),
        )  # fmt: skip


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
    check_vectors(row_map, computed, scheduled, counts, blocks)
    rows, capacity = counts.shape
    if rows and capacity:
        boundaries[(rows,)](
            table, row_map, computed, scheduled, counts, blocks, *table.shape, capacity, *table.stride(),
            block_size, triton.next_power_of_2(capacity),
        )  # fmt: skip
