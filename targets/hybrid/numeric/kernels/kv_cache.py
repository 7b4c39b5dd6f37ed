"""Writes KV to the paged cache by slot mapping, in the dtype of the cache."""

import triton
import triton.language as tl
from torch import Tensor

from .language import rounded
from .metadata import check_vectors


@triton.jit
def store_tokens(
    source, cache, slots, scale, blocks,
    source_token, source_head, source_dim, cache_block, cache_slot, cache_head, cache_dim,
    SIZE: tl.constexpr, HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HEADS_P2: tl.constexpr, DIM_P2: tl.constexpr,
):  # fmt: skip
    """Grid (tokens,). source [T, kv_heads, head_dim], cache [N, SIZE, kv_heads, head_dim], slots int64 [T]."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if (slot >= SIZE) & (slot < blocks.to(tl.int64) * SIZE):
        head, dim = tl.arange(0, HEADS_P2)[:, None], tl.arange(0, DIM_P2)[None, :]
        inside = (head < HEADS) & (dim < HEAD_DIM)
        values = tl.load(source + token * source_token + head * source_head + dim * source_dim, mask=inside, other=0.0)
        at = cache + slot // SIZE * cache_block + slot % SIZE * cache_slot + head * cache_head + dim * cache_dim
        tl.store(at, rounded(tl.div_rn(values.to(tl.float32), scale), cache.dtype.element_ty), mask=inside)


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
    check_vectors(slots)
    for source, cache, scale in ((key, key_cache, key_scale), (value, value_cache, value_scale)):
        blocks, size, heads, head_dim = cache.shape
        if len(slots):
            store_tokens[(len(slots),)](
                source, cache, slots, scale, blocks, *source.stride(), *cache.stride(),
                size, heads, head_dim, triton.next_power_of_2(heads), triton.next_power_of_2(head_dim),
            )  # fmt: skip
