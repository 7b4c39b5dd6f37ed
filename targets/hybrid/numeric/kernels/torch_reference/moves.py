"""Operations that move bytes or store KV in slots."""

from __future__ import annotations

import torch
from torch import Tensor

from ..metadata import NULL_BLOCK, Regions, ZeroPlan

FP8_LARGEST = 448.0


def zero_blocks(plan: ZeroPlan, ids: Tensor) -> None:
    """See Ops."""
    for block in ids.tolist():
        if NULL_BLOCK < block < plan.blocks:
            for view in plan.views:
                view[block] = 0


def stored_as(values: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Return values / scale in the dtype of a cache, rounded to nearest even; fp8 saturates."""
    scaled = values.float() / scale
    if dtype == torch.float8_e4m3fn:
        scaled = scaled.clamp(-FP8_LARGEST, FP8_LARGEST)
    return scaled.to(dtype)


def write_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    *,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """See Ops."""
    blocks, size = key_cache.shape[:2]
    keys = stored_as(key, key_cache.dtype, key_scale)
    values = stored_as(value, value_cache.dtype, value_scale)
    for token, slot in enumerate(slots.tolist()):
        block, offset = divmod(slot, size)
        if NULL_BLOCK < block < blocks:
            key_cache[block, offset] = keys[token]
            value_cache[block, offset] = values[token]


def copy_regions(pool: Tensor, regions: Regions) -> None:
    """See Ops. All regions are read before any is written."""
    columns = (regions.sources, regions.destinations, regions.lengths)
    numbers = zip(*(column.tolist() for column in columns), strict=True)
    legal = [
        (source, destination, length)
        for source, destination, length in numbers
        if length > 0 and min(source, destination) >= 0 and max(source, destination) + length <= pool.shape[0]
    ]
    held = [pool[source : source + length].clone() for source, _, length in legal]
    for (_, destination, length), content in zip(legal, held, strict=True):
        pool[destination : destination + length] = content
