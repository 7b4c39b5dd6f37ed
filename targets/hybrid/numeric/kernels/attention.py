"""Paged attention for batches that mix prefills and decodes, one program for each token and head.

Softmax runs online over the pages of the row, which are read whole: what a page holds behind the context is either
discarded ("where") or weighted by 0 ("multiply"). The second is what real kernels do for speed, and why a page must
not hold another kind of bytes: 0 * NaN = NaN (vLLM PR #53856, #43990).
"""

import triton
import triton.language as tl
from torch import Tensor

from .language import column_block, exists, rounded
from .metadata import Rows, check_vectors
from .ops import Masking


@triton.jit
def attend(
    query, key_cache, value_cache, table, starts, lengths, output,
    scale, key_scale, value_scale, blocks, columns, repeat,
    query_token, query_head, query_dim,
    key_block, key_slot, key_head, key_dim, value_block, value_slot, value_head, value_dim,
    table_row, table_column, output_token, output_head, output_dim,
    SIZE: tl.constexpr, SIZE_P2: tl.constexpr, HEAD_DIM: tl.constexpr, DIM_P2: tl.constexpr,
    MULTIPLY: tl.constexpr, WINDOW: tl.constexpr,
):  # fmt: skip
    """Grid (longest row, heads, rows); shapes as in Ops.paged_attention, strides in elements."""
    index, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    end = tl.load(starts + row + 1)
    token = (tl.load(starts + row) + index).to(tl.int64)
    if token < end:
        position = (tl.load(lengths + row) - (end - token)).to(tl.int32)
        dim, slot = tl.arange(0, DIM_P2), tl.arange(0, SIZE_P2)
        at = query + token * query_token + head * query_head + dim * query_dim
        own = tl.load(at, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
        best = tl.full([1], float("-inf"), tl.float32)
        total = tl.zeros([1], tl.float32)
        mixed = tl.zeros([DIM_P2], tl.float32)
        key_at = key_cache + head // repeat * key_head + slot[:, None] * key_slot + dim[None, :] * key_dim
        value_at = value_cache + head // repeat * value_head + slot[:, None] * value_slot + dim[None, :] * value_dim
        pages = tl.where(position < 0, 0, tl.cdiv(tl.load(lengths + row), SIZE))
        for column in range(pages):
            block = column_block(table, row, column, columns, table_row, table_column).to(tl.int64)
            held = tl.where(exists(block, blocks), SIZE, 0)
            inside = (slot[:, None] < held) & (dim[None, :] < HEAD_DIM)
            keys = tl.load(key_at + block * key_block, mask=inside, other=0.0).to(tl.float32) * key_scale
            values = tl.load(value_at + block * value_block, mask=inside, other=0.0).to(tl.float32) * value_scale
            place = column * SIZE + slot
            visible = (slot < SIZE) & (place <= position)
            if WINDOW > 0:
                visible = visible & (place > position - WINDOW)
            scores = tl.where(visible, tl.sum(keys * own[None, :], axis=1) * scale, float("-inf"))
            highest = tl.maximum(best, tl.max(scores, axis=0))
            shift = tl.where(highest == float("-inf"), 0.0, highest)
            weights = tl.exp(scores - shift) * visible.to(tl.float32)
            if not MULTIPLY:
                values = tl.where(visible[:, None], values, 0.0)
            fade = tl.exp(best - shift)
            total = total * fade + tl.sum(weights, axis=0)
            mixed = mixed * fade + tl.sum(weights[:, None] * values, axis=0)
            best = highest
        result = tl.where(position < 0, 0.0, mixed / tl.where(position < 0, 1.0, total))
        at = output + token * output_token + head * output_head + dim * output_dim
        tl.store(at, rounded(result, output.dtype.element_ty), mask=dim < HEAD_DIM)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    table: Tensor,
    rows: Rows,
    lengths: Tensor,
    output: Tensor,
    *,
    scale: float,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    masking: Masking = "where",
    window: int = 0,
) -> None:
    """See Ops."""
    check_vectors(rows.starts, lengths)
    table = table if table.shape[1] else table.new_zeros(table.shape[0], 1)
    blocks, size, kv_heads, head_dim = key_cache.shape
    heads = query.shape[1]
    if rows.count:
        attend[(rows.longest, heads, rows.count)](
            query, key_cache, value_cache, table, rows.starts, lengths, output,
            scale, key_scale, value_scale, blocks, table.shape[1], heads // kv_heads,
            *query.stride(), *key_cache.stride(), *value_cache.stride(), *table.stride(), *output.stride(),
            size, triton.next_power_of_2(size), head_dim, triton.next_power_of_2(head_dim),
            masking == "multiply", window,
        )  # fmt: skip
