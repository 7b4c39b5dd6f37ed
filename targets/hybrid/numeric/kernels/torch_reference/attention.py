"""Attention over paged keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from ..metadata import NULL_BLOCK, Rows
from ..ops import Masking


def pages(cache: Tensor, row: list[int], columns: int, scale: float) -> Tensor:
    """Return the first `columns` pages of a row as float32 [slots, kv_heads, head_dim]; zeros for null or missing."""
    read = torch.zeros(columns, *cache.shape[1:], device=cache.device)
    for column, block in enumerate(row[:columns]):
        if NULL_BLOCK < block < cache.shape[0]:
            read[column] = cache[block].float() * scale
    return read.flatten(0, 1)


def attend(query: Tensor, keys: Tensor, values: Tensor, visible: Tensor, scale: float, masking: Masking) -> Tensor:
    """One token: query [heads, head_dim], keys and values [slots, heads, head_dim], visible [slots]."""
    scores = torch.einsum("hd,shd->hs", query.float(), keys) * scale
    scores = scores.masked_fill(~visible, -torch.inf)
    weights = torch.exp(scores - scores.amax(1, keepdim=True)) * visible
    if masking == "where":
        values = values.masked_fill(~visible[:, None, None], 0.0)
    return torch.einsum("hs,shd->hd", weights, values) / weights.sum(1, keepdim=True)


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
    size, repeat = key_cache.shape[1], query.shape[1] // key_cache.shape[2]
    starts = rows.starts.tolist()
    for row, (blocks, length) in enumerate(zip(table.tolist(), lengths.tolist(), strict=True)):
        first, end = starts[row], starts[row + 1]
        columns = max(-(-length // size), 0)
        keys = pages(key_cache, blocks, columns, key_scale).repeat_interleave(repeat, 1)
        values = pages(value_cache, blocks, columns, value_scale).repeat_interleave(repeat, 1)
        slots = torch.arange(columns * size, device=query.device)
        for token in range(first, end):
            position = length - (end - token)
            if position < 0:
                output[token] = 0
                continue
            visible = slots <= position
            if window:
                visible &= slots > position - window
            attended = attend(query[token], keys, values, visible, scale, masking)
            output[token] = attended.to(output.dtype)
