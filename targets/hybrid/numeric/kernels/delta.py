"""Gated delta net: a recurrence whose state is corrected towards each new value; one program for each row and head.

Token after token, so that a state can be stored anywhere: prefills, decodes and drafts are the same launch.
"""

import triton
import triton.language as tl
from torch import Tensor

from .language import column_block, rounded
from .metadata import Rows, Stops, check_vectors
from .ssm import at_least_one_column, load_state, store_stops

VALUE_PIECE = 32


@triton.jit
def recur(
    state, query, key, value, gate, beta, starts, blocks, columns, stop_starts, stop_counts, stop_blocks, output,
    pool, width, repeat,
    state_block, state_head, state_key, state_value, query_token, query_head, query_dim, key_token, key_head, key_dim,
    value_token, value_head, value_dim, gate_token, gate_head, beta_token, beta_head, block_row, block_column,
    output_token, output_head, output_dim,
    KEYS: tl.constexpr, VALUES: tl.constexpr, KEYS_P2: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """Grid (rows, heads, pieces of value_dim); shapes as in Ops.delta_rule, strides in elements."""
    row, head = tl.program_id(0), tl.program_id(1)
    k, v = tl.arange(0, KEYS_P2), tl.program_id(2) * PIECE + tl.arange(0, PIECE)
    first, end = tl.load(starts + row), tl.load(starts + row + 1)
    first_stop, end_stop = tl.load(stop_starts + row), tl.load(stop_starts + row + 1)
    block = column_block(blocks, row, tl.load(columns + row), width, block_row, block_column)
    held = load_state(state, block, pool, head, k, v, state_block, state_head, state_key, state_value, KEYS, VALUES)
    tl.debug_barrier()  # the same block may be written below
    store_stops(state, held, stop_counts, stop_blocks, first_stop, end_stop, 0, pool, head, k, v,
                state_block, state_head, state_key, state_value, KEYS, VALUES)  # fmt: skip
    for index in range(end - first):
        token = (first + index).to(tl.int64)
        at = query + token * query_token + head // repeat * query_head + k * query_dim
        queries = tl.load(at, mask=k < KEYS, other=0.0).to(tl.float32)
        at = key + token * key_token + head // repeat * key_head + k * key_dim
        keys = tl.load(at, mask=k < KEYS, other=0.0).to(tl.float32)
        at = value + token * value_token + head * value_head + v * value_dim
        values = tl.load(at, mask=v < VALUES, other=0.0).to(tl.float32)
        decay = tl.exp(tl.load(gate + token * gate_token + head * gate_head).to(tl.float32))
        strength = tl.load(beta + token * beta_token + head * beta_head).to(tl.float32)
        held = held * decay
        change = strength * (values - tl.sum(held * keys[:, None], axis=0))
        held += keys[:, None] * change[None, :]
        seen = tl.sum(held * queries[:, None], axis=0)
        at = output + token * output_token + head * output_head + v * output_dim
        tl.store(at, rounded(seen, output.dtype.element_ty), mask=v < VALUES)
        store_stops(state, held, stop_counts, stop_blocks, first_stop, end_stop, index + 1, pool, head, k, v,
                    state_block, state_head, state_key, state_value, KEYS, VALUES)  # fmt: skip


def delta_rule(
    state: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    gate: Tensor,
    beta: Tensor,
    rows: Rows,
    blocks: Tensor,
    columns: Tensor,
    stops: Stops,
    output: Tensor,
) -> None:
    """See Ops."""
    check_vectors(rows.starts, columns, stops.starts, stops.counts, stops.blocks)
    blocks = at_least_one_column(blocks)
    pool, heads, key_dim, value_dim = state.shape
    piece = min(VALUE_PIECE, triton.next_power_of_2(value_dim))
    if rows.count:
        recur[(rows.count, heads, triton.cdiv(value_dim, piece))](
            state, query, key, value, gate, beta, rows.starts, blocks, columns,
            stops.starts, stops.counts, stops.blocks, output, pool, blocks.shape[1], heads // key.shape[1],
            *state.stride(), *query.stride(), *key.stride(), *value.stride(), *gate.stride(), *beta.stride(),
            *blocks.stride(), *output.stride(),
            key_dim, value_dim, triton.next_power_of_2(key_dim), piece,
        )  # fmt: skip
