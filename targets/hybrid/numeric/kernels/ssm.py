"""Mamba 2: selective state update for (speculative) decodes, chunked scan for prefills.

Both carry the state in float32 and round it only where it is stored. The scan is the state-space dual form: within a
chunk a masked product of c and b, between chunks the recurrence. Its chunks end at every stop, whatever position the
row starts from: cutting from the row's start instead stores boundary states off the grid (vLLM PR #34798).
"""

import triton
import triton.language as tl
from torch import Tensor

from .language import column_block, exists, rounded
from .metadata import Rows, Stops, check_vectors

DIM_PIECE = 32


@triton.jit
def load_state(state, block, pool, head, dim, entry, state_block, state_head, state_dim, state_entry,
               DIM: tl.constexpr, ENTRIES: tl.constexpr):  # fmt: skip
    """Return the state [piece, ENTRIES_P2] of one head, zeros for the null block."""
    inside = (dim[:, None] < tl.where(exists(block, pool), DIM, 0)) & (entry[None, :] < ENTRIES)
    at = state + block.to(tl.int64) * state_block + head * state_head
    at += dim[:, None] * state_dim + entry[None, :] * state_entry
    return tl.load(at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def store_state(state, held, block, pool, head, dim, entry, state_block, state_head, state_dim, state_entry,
                DIM: tl.constexpr, ENTRIES: tl.constexpr):  # fmt: skip
    """Store the state of one head, rounded, unless the block is null."""
    if exists(block, pool):
        inside = (dim[:, None] < DIM) & (entry[None, :] < ENTRIES)
        at = state + block.to(tl.int64) * state_block + head * state_head
        at += dim[:, None] * state_dim + entry[None, :] * state_entry
        tl.store(at, rounded(held, state.dtype.element_ty), mask=inside)


@triton.jit
def advance(
    state, x, dt, a, b, c, d, starts, blocks, columns, write_blocks, output,
    pool, width, write_width, repeat,
    state_block, state_head, state_dim, state_entry, x_token, x_head, x_dim, dt_token, dt_head, a_head,
    b_token, b_group, b_entry, c_token, c_group, c_entry, d_head, block_row, block_column, write_row, write_column,
    output_token, output_head, output_dim,
    DIM: tl.constexpr, ENTRIES: tl.constexpr, PIECE: tl.constexpr, ENTRIES_P2: tl.constexpr,
):  # fmt: skip
    """Grid (rows, heads, pieces of head_dim); shapes as in Ops.state_update, strides in elements."""
    row, head = tl.program_id(0), tl.program_id(1)
    dim, entry = tl.program_id(2) * PIECE + tl.arange(0, PIECE), tl.arange(0, ENTRIES_P2)
    first, end = tl.load(starts + row), tl.load(starts + row + 1)
    block = column_block(blocks, row, tl.load(columns + row), width, block_row, block_column)
    held = load_state(state, block, pool, head, dim, entry, state_block, state_head, state_dim, state_entry,
                      DIM, ENTRIES)  # fmt: skip
    tl.debug_barrier()  # the same block may be written below
    rate, skip = tl.load(a + head * a_head).to(tl.float32), tl.load(d + head * d_head).to(tl.float32)
    for index in range(end - first):
        token = (first + index).to(tl.int64)
        time = tl.load(dt + token * dt_token + head * dt_head).to(tl.float32)
        at = x + token * x_token + head * x_head + dim * x_dim
        xs = tl.load(at, mask=dim < DIM, other=0.0).to(tl.float32)
        at = b + token * b_token + head // repeat * b_group + entry * b_entry
        bs = tl.load(at, mask=entry < ENTRIES, other=0.0).to(tl.float32)
        at = c + token * c_token + head // repeat * c_group + entry * c_entry
        cs = tl.load(at, mask=entry < ENTRIES, other=0.0).to(tl.float32)
        held = held * tl.exp(time * rate) + (time * xs)[:, None] * bs[None, :]
        y = tl.sum(held * cs[None, :], axis=1) + skip * xs
        at = output + token * output_token + head * output_head + dim * output_dim
        tl.store(at, rounded(y, output.dtype.element_ty), mask=dim < DIM)
        target = column_block(write_blocks, row, index, write_width, write_row, write_column)
        store_state(state, held, target, pool, head, dim, entry, state_block, state_head, state_dim, state_entry,
                    DIM, ENTRIES)  # fmt: skip


def at_least_one_column(table: Tensor) -> Tensor:
    """Return a table with at least one column, null if it was added."""
    return table if table.shape[1] else table.new_zeros(table.shape[0], 1)


def state_update(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    rows: Rows,
    blocks: Tensor,
    columns: Tensor,
    write_blocks: Tensor,
    output: Tensor,
) -> None:
    """See Ops."""
    check_vectors(rows.starts, columns)
    blocks, write_blocks = at_least_one_column(blocks), at_least_one_column(write_blocks)
    pool, heads, head_dim, entries = state.shape
    piece = min(DIM_PIECE, triton.next_power_of_2(head_dim))
    if rows.count:
        advance[(rows.count, heads, triton.cdiv(head_dim, piece))](
            state, x, dt, a, b, c, d, rows.starts, blocks, columns, write_blocks, output,
            pool, blocks.shape[1], write_blocks.shape[1], heads // b.shape[1],
            *state.stride(), *x.stride(), *dt.stride(), *a.stride(), *b.stride(), *c.stride(), *d.stride(),
            *blocks.stride(), *write_blocks.stride(), *output.stride(),
            head_dim, entries, piece, triton.next_power_of_2(entries),
        )  # fmt: skip


@triton.jit
def next_stop(stop_counts, first_stop, end_stop, done, tokens):
    """Return the smallest count above `done`, at most `tokens`."""
    found = tokens
    for stop in range(first_stop, end_stop):
        count = tl.load(stop_counts + stop)
        found = tl.where(count > done, tl.minimum(found, count), found)
    return found


@triton.jit
def store_stops(state, held, stop_counts, stop_blocks, first_stop, end_stop, done, pool, head, dim, entry,
                state_block, state_head, state_dim, state_entry, DIM: tl.constexpr, ENTRIES: tl.constexpr):  # fmt: skip
    """Store the state at every stop of count `done`."""
    for stop in range(first_stop, end_stop):
        if tl.load(stop_counts + stop) == done:
            store_state(state, held, tl.load(stop_blocks + stop), pool, head, dim, entry,
                        state_block, state_head, state_dim, state_entry, DIM, ENTRIES)  # fmt: skip


@triton.jit
def chunk_step(held, xs, time, bs, cs, rate, CHUNK: tl.constexpr):
    """Return outputs (without d * x) and the next state after one chunk; unused tokens have time 0."""
    span = tl.cumsum(time * rate, axis=0)
    order = tl.arange(0, CHUNK)
    between = tl.where(order[:, None] >= order[None, :], span[:, None] - span[None, :], float("-inf"))
    weights = tl.dot(cs, tl.trans(bs), input_precision="ieee") * tl.exp(between) * time[None, :]
    y = tl.dot(weights, xs, input_precision="ieee")
    y += tl.exp(span)[:, None] * tl.dot(cs, tl.trans(held), input_precision="ieee")
    whole = tl.sum(time * rate, axis=0)
    inflow = xs * (time * tl.exp(whole - span))[:, None]
    return y, tl.exp(whole) * held + tl.dot(tl.trans(inflow), bs, input_precision="ieee")


@triton.jit
def scan(
    state, x, dt, a, b, c, d, starts, blocks, stop_starts, stop_counts, stop_blocks, output, pool, repeat,
    state_block, state_head, state_dim, state_entry, x_token, x_head, x_dim, dt_token, dt_head, a_head,
    b_token, b_group, b_entry, c_token, c_group, c_entry, d_head, output_token, output_head, output_dim,
    DIM: tl.constexpr, ENTRIES: tl.constexpr, PIECE: tl.constexpr, ENTRIES_P2: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Grid (rows, heads, pieces of head_dim); shapes as in Ops.chunk_scan, strides in elements."""
    row, head = tl.program_id(0), tl.program_id(1)
    dim, entry = tl.program_id(2) * PIECE + tl.arange(0, PIECE), tl.arange(0, ENTRIES_P2)
    first, tokens = tl.load(starts + row), tl.load(starts + row + 1) - tl.load(starts + row)
    first_stop, end_stop = tl.load(stop_starts + row), tl.load(stop_starts + row + 1)
    held = load_state(state, tl.load(blocks + row), pool, head, dim, entry,
                      state_block, state_head, state_dim, state_entry, DIM, ENTRIES)  # fmt: skip
    tl.debug_barrier()  # the same block may be written below
    rate, skip = tl.load(a + head * a_head).to(tl.float32), tl.load(d + head * d_head).to(tl.float32)
    done = tokens - tokens
    store_stops(state, held, stop_counts, stop_blocks, first_stop, end_stop, done, pool, head, dim, entry,
                state_block, state_head, state_dim, state_entry, DIM, ENTRIES)  # fmt: skip
    while done < tokens:
        size = tl.minimum(next_stop(stop_counts, first_stop, end_stop, done, tokens) - done, CHUNK)
        order = tl.arange(0, CHUNK)
        token = (first + done + order).to(tl.int64)
        mask = (order < size)[:, None] & (dim < DIM)[None, :]
        inside = (order < size)[:, None] & (entry < ENTRIES)[None, :]
        time = tl.load(dt + token * dt_token + head * dt_head, mask=order < size, other=0.0).to(tl.float32)
        at = token[:, None] * x_token + head * x_head + dim[None, :] * x_dim
        xs = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
        at = token[:, None] * b_token + head // repeat * b_group + entry[None, :] * b_entry
        bs = tl.load(b + at, mask=inside, other=0.0).to(tl.float32)
        at = token[:, None] * c_token + head // repeat * c_group + entry[None, :] * c_entry
        cs = tl.load(c + at, mask=inside, other=0.0).to(tl.float32)
        y, held = chunk_step(held, xs, time, bs, cs, rate, CHUNK)
        at = output + token[:, None] * output_token + head * output_head + dim[None, :] * output_dim
        tl.store(at, rounded(y + skip * xs, output.dtype.element_ty), mask=mask)
        done += size
        store_stops(state, held, stop_counts, stop_blocks, first_stop, end_stop, done, pool, head, dim, entry,
                    state_block, state_head, state_dim, state_entry, DIM, ENTRIES)  # fmt: skip


def chunk_scan(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    rows: Rows,
    blocks: Tensor,
    stops: Stops,
    output: Tensor,
    *,
    chunk: int = 16,
) -> None:
    """See Ops. Matrix products need tiles of at least 16, so small dimensions are padded."""
    check_vectors(rows.starts, blocks, stops.starts, stops.counts, stops.blocks)
    pool, heads, head_dim, entries = state.shape
    piece = max(16, min(DIM_PIECE, triton.next_power_of_2(head_dim)))
    if rows.count:
        scan[(rows.count, heads, triton.cdiv(head_dim, piece))](
            state, x, dt, a, b, c, d, rows.starts, blocks, stops.starts, stops.counts, stops.blocks, output,
            pool, heads // b.shape[1], *state.stride(), *x.stride(), *dt.stride(), *a.stride(), *b.stride(),
            *c.stride(), *d.stride(), *output.stride(),
            head_dim, entries, piece, max(16, triton.next_power_of_2(entries)), chunk,
        )  # fmt: skip
