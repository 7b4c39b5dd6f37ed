"""Differences of SGLang's releases up to 0.5.12, found by feature detection.

Pools allocate their own slots, batches carry the next input, constants stand in place of settings. On later releases
these functions change nothing.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from types import ModuleType
from typing import Any


def strategies() -> tuple[str, ...]:
    """Return the strategies for snapshots that the pools of a release support."""
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

    switches = ("enable_mamba_extra_buffer", "enable_mamba_extra_buffer_lazy")
    known = signature(HybridReqToTokenPool).parameters
    return ("no_buffer", *[switch.removeprefix("enable_mamba_") for switch in switches if switch in known])


def features() -> frozenset[str]:
    """Return the features of a release that make reached states required."""
    has = {"padding": has_sink_row(), "snapshots": len(strategies()) > 1}
    return frozenset(name for name, wanted in has.items() if wanted)


def token_list(tokens: list[int]) -> Any:
    """Return tokens in the form that a request has: a plain list up to 0.5.12."""
    from array import array

    from sglang.srt.mem_cache.radix_cache import RadixKey

    return array("q", tokens) if hasattr(RadixKey, "raw_token_ids") else tokens


def prefill_tokens(batch: Any) -> list[int]:
    """Return the tokens of an extend batch."""
    kept = getattr(batch, "prefill_input_ids_cpu", None)
    tokens: list[int] = (batch.input_ids if kept is None else kept).tolist()
    return tokens


def length_to_compute(request: Any) -> int:
    """Return the number of a request's tokens; its prefill samples when all are computed."""
    whole = getattr(request, "full_untruncated_fill_ids", None)
    return len(request.origin_input_ids) + len(request.output_ids) if whole is None else len(whole)


def free_slots(rows: Any) -> list[int]:
    """Return the free state slots. Up to 0.5.12 the pool allocates its own."""
    slots: list[int] = getattr(rows, "mamba_allocator", rows.mamba_pool).free_slots.tolist()
    return slots


def note_sampled(batch: Any, tokens: Any) -> None:
    """Store the input of the next decode in the batch, as `run_batch` does up to 0.5.12.

    These are tokens, or with overlap their places in a relay.
    """
    if hasattr(batch, "output_ids"):
        batch.output_ids = tokens


def backend_class() -> Any:
    """Return the class of the linear-attention backend, which plans and stores the snapshots of a prefill."""
    layers = "sglang.srt.layers.attention"
    apart = find_spec(f"{layers}.linear") and find_spec(f"{layers}.linear.gdn_backend")
    return import_module(f"{layers}.{'linear.gdn_backend' if apart else 'hybrid_linear_attn_backend'}").GDNAttnBackend


def has_sink_row() -> bool:
    """Return True if request row 0 is reserved for padding.

    Up to 0.5.9 it belongs to a request, and the kernels skip padding rows (their state index is -1).
    """
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

    return 0 not in ReqToTokenPool(size=1, max_context_len=1, device="cpu", enable_memory_saver=False).free_slots


def set_chunk(arguments: Any, tokens: int) -> None:
    """Set the grid of prefill snapshots in tokens, a constant of several modules up to 0.5.12."""
    arguments._mamba_cache_chunk_size = tokens
    if len(strategies()) > 1:
        backend_class()
    for module in _modules_with_grid(len(sys.modules)):
        module.FLA_CHUNK_SIZE = tokens  # type: ignore[attr-defined]


@lru_cache(maxsize=1)
def _modules_with_grid(imported: int) -> list[ModuleType]:
    """Return the modules with that constant, looked up again when more modules are `imported`."""
    # By the key: packages put objects without a `__name__` there, such as Cython's `cython.parallel`.
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("sglang.")]
    return [module for module in modules if "FLA_CHUNK_SIZE" in vars(module)]


def always_two_tracks() -> bool:
    """Return True if a request has two slots for snapshots even without overlap, as up to 0.5.9."""
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

    return "enable_overlap_schedule" not in signature(HybridReqToTokenPool).parameters


def conv_shape(taps: int) -> Any:
    """Return the shape of a window: a list of shapes, up to 0.5.4 one shape with more rows than taps."""
    from sglang.srt.configs.mamba_utils import Mamba2StateShape

    single = str(Mamba2StateShape.__annotations__["conv"]).startswith("tuple")
    return (taps + 1, taps) if single else [(1, taps)]


def windows(state: Any) -> Any:
    """Return convolution windows by layer and slot; of a window with several rows, the first."""
    conv = state.conv[0] if isinstance(state.conv, list | tuple) else state.conv
    return conv.numpy()[:, :, 0]


def clears_what_is_freed(rows: Any) -> bool:
    """Return True if a state slot is cleared when it is freed, as up to 0.5.4: the pool starts with zeros."""
    pool = rows.mamba_pool
    if hasattr(rows, "mamba_allocator"):
        return False
    before, slot = pool.free_slots, pool.alloc(1)
    dirty = bool(pool.mamba_cache.temporal[:, slot].any())
    pool.free_slots = before
    return dirty


def set_zero_aside(pool: Any) -> bool:
    """Reserve state slot 0, which the pool allocates up to 0.5.4; return True if it did."""
    if hasattr(pool, "free_slots") and len(pool.free_slots) and int(pool.free_slots[0]) == 0:
        pool.free_slots = pool.free_slots[1:]
        return True
    return False


def cache_parameters() -> Any:
    """Return the class of a cache's parameters."""
    if not find_spec("sglang.srt.mem_cache.cache_init_params"):
        return _Parameters
    return import_module("sglang.srt.mem_cache.cache_init_params").CacheInitParams


class _Parameters:
    def __init__(self, req_to_token_pool: Any, token_to_kv_pool_allocator: Any, page_size: int, disable: bool) -> None:
        self.req_to_token_pool = req_to_token_pool
        self.token_to_kv_pool_allocator = token_to_kv_pool_allocator
        self.page_size, self.disable = page_size, disable


def plain_cache(cache_class: Any, parameters: Any) -> Any:
    """Construct a cache, whose parameters are separate arguments up to 0.5.4."""
    if "params" in signature(cache_class).parameters:
        return cache_class(params=parameters)
    known = signature(cache_class).parameters
    return cache_class(**{name: value for name, value in vars(parameters).items() if name in known})


def follow_rows(rows: Any) -> None:
    """Track the request of each row: up to 0.5.4 a request keeps naming a row that it freed."""
    if "need_size" not in signature(rows.alloc).parameters:
        return
    hand_out, take_back = rows.alloc, rows.free
    owners: dict[int, Any] = {}

    def watched_alloc(need_size: int, requests: Any = None) -> Any:
        taken = hand_out(need_size, requests)
        for row, request in zip(taken or (), requests or (), strict=True):
            owners[row] = request
            request.client_row = row
        return taken

    def watched_free(row: Any, *arguments: Any, **keywords: Any) -> Any:
        for one in [row] if isinstance(row, int) else row:
            owners.pop(one).client_row = None
        return take_back(row, *arguments, **keywords)

    rows.alloc, rows.free = watched_alloc, watched_free


def note_lengths(batch: Any) -> Any:
    """Store with each request its number of KV locations, which up to 0.5.4 only the batch has."""
    for request, length in zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=True) if batch else ():
        if not hasattr(request, "kv_committed_len"):
            request.kv_allocated_len = length
    return batch


def evict_each(cache: Any, tokens: int, states: int) -> None:
    """Evict pages and states, by different calls up to 0.5.4."""
    cache.evict(tokens)
    if hasattr(cache, "evict_mamba"):
        cache.evict_mamba(states)


def settle(scheduler: Any) -> None:
    """Set numbers that the constructor computes from the server's arguments; later releases keep them elsewhere."""
    scheduler.pp_size = scheduler.decode_mem_cache_buf_multiplier = 1
    scheduler.new_token_ratio = scheduler.init_new_token_ratio = scheduler.min_new_token_ratio = 0.0
    scheduler.new_token_ratio_decay = 0.0
