"""Makes SGLang's own parts: configuration, pools, allocator, tree cache, attention backend."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

from ....reference.tokens import VOCABULARY
from ..stubs import OFF
from . import old_releases, scheduler_api, tree_api
from .memory import Memory, Pools, UnifiedMemory, make_unified_pools
from .sizes import DELAYED, Sizes, eviction_config, storage_config


def publish(sizes: Sizes) -> Any:
    """Set SGLang's process-wide configuration and return it."""
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    given: dict[str, Any] = {
        "model_path": "dummy",
        "page_size": sizes.page,
        "disable_radix_cache": not sizes.caching,
        "chunked_prefill_size": max(sizes.page, 16) if sizes.chunked else -1,
        "max_prefill_tokens": sizes.prefill_tokens,
        "max_running_requests": sizes.rows,
        "disable_overlap_schedule": not sizes.overlap,
        "disable_cuda_graph": not sizes.graphs,
        "enable_mixed_chunk": sizes.mixed,
        "schedule_policy": sizes.order,
        "retraction_policy": sizes.retraction,
        "prefill_max_requests": sizes.prefill_rows or None,
        "schedule_conservativeness": sizes.conservativeness,
        "enable_priority_scheduling": sizes.priorities,
        "prefill_decode_interval": sizes.prefill_interval,
        # What SGLang's resolution makes of a flag that is not given.
        "hicache_ratio": 2.0,
        # Without Triton: request rows are written by plain Torch.
        "attention_backend": "torch_native",
    }
    if sizes.caching:
        given |= {
            "mamba_radix_cache_strategy": sizes.strategy,
            "mamba_scheduler_strategy": sizes.strategy,  # its name up to 0.5.12
            "mamba_track_interval": sizes.track,
            "mamba_max_states_per_path": sizes.path_states,
            "radix_eviction_policy": sizes.eviction,
            "radix_eviction_policy_config": eviction_config(sizes.eviction, sizes.page),
            "enable_session_radix_cache": sizes.tags,
        }
    if sizes.ring:
        given |= {
            "enable_linear_replayssm": True,
            "linear_replayssm_cache_len": sizes.ring,
            # Its boundaries count without a prefix cache, too.
            "mamba_track_interval": sizes.track,
        }
    if sizes.int8 != "no":
        given |= {
            "enable_int8_mamba_checkpoint": True,
            "int8_mamba_ckpt_size": None if sizes.int8 == "default" else sizes.checkpoints,
        }
    if sizes.hicache != "no":
        given |= {
            "enable_hierarchical_cache": True,
            "hicache_ratio": sizes.host_ratio,
            "hicache_write_policy": sizes.hicache,
            "hicache_io_backend": "kernel" if sizes.host_layout == "page_first" else "direct",
            "hicache_mem_layout": sizes.host_layout,
        }
    if sizes.storage != "no":
        given |= {
            # A buffer's locks leave room for the longest request, if the server is told its length.
            "context_length": sizes.context if sizes.context_given else None,
            "hicache_host_memory_mode": "buffer_only" if sizes.host_mode == "buffer" else "cache",
            "hicache_storage_backend": sizes.storage,
            "hicache_storage_prefetch_policy": sizes.prefetch,
            "hicache_storage_backend_extra_config": json.dumps(storage_config(sizes)),
        }
    if sizes.unified != "no":
        given |= {"enable_unified_memory": True, "enable_page_major_kv_layout": True}
    if sizes.delay in ("slots", "queue"):
        given |= {"enable_prefill_delayer": True, "prefill_delayer_max_delay_passes": DELAYED}
    if sizes.delay == "queue":
        given |= {"prefill_delayer_queue_min_ratio": 1.0, "prefill_delayer_max_delay_ms": float(DELAYED)}
    if sizes.delay == "free":
        given |= {"min_free_slots_delay": 2}
    if not sizes.preempts:
        given |= {"disable_priority_preemption": True}
    if sizes.priorities:
        given |= {"schedule_low_priority_values_first": True, "priority_scheduling_preemption_threshold": 0}
    if sizes.drafts:
        given |= {
            "speculative_algorithm": sizes.drafter.upper(),
            "speculative_num_draft_tokens": sizes.drafts,
            "speculative_num_steps": sizes.draft_steps,
            "speculative_eagle_topk": sizes.breadth,
        }
        if sizes.drafter == "ngram":
            given["speculative_ngram_max_bfs_breadth"] = sizes.breadth
        # `--speculative-use-block-verification` switches rejection sampling on, too.
        given["speculative_use_rejection_sampling"] = sizes.proposes
        given["speculative_use_block_verification"] = sizes.sampled == "block"
    if sizes.logits != "plain":
        given["enable_custom_logit_processor"] = True
    if sizes.disaggregation == "decode":
        given |= {
            "disaggregation_decode_enable_radix_cache": sizes.caching,
            "disaggregation_decode_extra_slots": sizes.extra_rows,
            # What a model with states is resolved to (`resolve_decode_retraction_backup`).
            "disaggregation_decode_retraction_backup": "cpu_tensor",
            "hicache_ratio": None,
            "num_reserved_decode_tokens": sizes.reserved_tokens,
        }
    if sizes.strips:
        given |= {"strip_thinking_cache": True, "reasoning_parser": "qwen3"}
    if sizes.disaggregation != "no":
        given["disaggregation_mode"] = sizes.disaggregation
        given["optimistic_prefill_attempts"] = sizes.optimistic
    if sizes.sliding:
        from sglang.srt.environ import envs

        envs.SGLANG_SWA_EVICTION_INTERVAL.set(sizes.eviction_interval)  # scaled: 128 tokens
        envs.SGLANG_OPT_RELEASE_PREFILL_SWA.set(sizes.early_unlock)
        given["swa_full_tokens_ratio"] = sizes.window_ratio
    arguments = scheduler_api.call(ServerArgs, **given)
    old_releases.set_chunk(arguments, sizes.chunk)
    set_global_server_args_for_scheduler(arguments)
    scheduler_api.limit_rows(sizes.rows)
    return arguments


def state_parameters(sizes: Sizes, layers: list[int]) -> Any:
    """Return the shapes and types of the states of layers."""
    import torch
    from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape

    shape = Mamba2StateShape(
        conv=old_releases.conv_shape(sizes.window),
        temporal=(1, 1, 1),
        intermediate_size=1,
        conv_dim=1,
        ssm_state_size=1,
        num_heads=1,
        head_dim=1,
        state_size=1,
        conv_kernel=sizes.window + 1,
    )
    return Mamba2CacheParams(shape=shape, layers=layers, dtype=Mamba2StateDType(conv=torch.int64, temporal=torch.int64))


def row_columns(sizes: Sizes) -> int:
    """Return the columns of a row: with drafts as many as on a server whose longest request is that of the trace."""
    if not sizes.drafts:
        return sizes.context + sizes.extra_context
    from sglang.srt.mem_cache.allocation_sizing import get_req_to_token_extra_context_len

    # A server's answers end two tokens before its context does (`init_req_max_new_tokens`).
    return sizes.context + 2 + int(get_req_to_token_extra_context_len())


def make_row_pool(sizes: Sizes, layers: list[int]) -> Any:
    """Return the pool of request rows and state slots."""
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

    kind: Any = HybridReqToTokenPool
    if sizes.disaggregation == "decode":
        from sglang.srt.disaggregation.decode import HybridMambaDecodeReqToTokenPool

        kind = HybridMambaDecodeReqToTokenPool
    make = partial(
        scheduler_api.call,
        kind,
        size=sizes.rows,
        pre_alloc_size=sizes.extra_rows,
        mamba_spec_state_size=sizes.rows,
        max_context_len=row_columns(sizes),
        device="cpu",
        enable_memory_saver=False,
        cache_params=state_parameters(sizes, layers),
        mamba_layer_ids=layers,
        enable_mamba_extra_buffer=sizes.strategy != "no_buffer",
        enable_mamba_extra_buffer_lazy=sizes.strategy == "extra_buffer_lazy",
        speculative_num_draft_tokens=sizes.drafts or None,
        # Convolution windows of the tokens of a chain overlap in memory, those of a tree do not.
        speculative_eagle_topk=sizes.breadth if sizes.drafts else None,
        enable_overlap_schedule=sizes.overlap,
        enable_linear_replayssm=sizes.ring > 0,
        linear_replayssm_cache_len=sizes.ring,
    )
    rows = make(mamba_size=sizes.slots)
    if old_releases.set_zero_aside(rows.mamba_pool):
        rows = make(mamba_size=sizes.slots + 1)
        old_releases.set_zero_aside(rows.mamba_pool)
    old_releases.follow_rows(rows)
    return rows


def make_kv_pool(sizes: Sizes, layers: list[int], window_layers: list[int], states: Any) -> Any:
    """Return the pool of keys and values of the attention layers: one 64-bit integer each."""
    import torch
    from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool

    if sizes.sliding:
        from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

        return SWAKVPool(
            size=sizes.pages * sizes.page,
            size_swa=sizes.window_pages * sizes.page,
            page_size=sizes.page,
            dtype=torch.int64,
            head_num=1,
            head_dim=1,
            swa_attention_layer_ids=window_layers,
            full_attention_layer_ids=layers,
            device="cpu",
        )
    return scheduler_api.call(
        HybridLinearKVPool,
        size=sizes.pages * sizes.page,
        dtype=torch.int64,
        page_size=sizes.page,
        head_num=1,
        head_dim=1,
        full_attention_layer_ids=layers,
        device="cpu",
        enable_memory_saver=False,
        mamba_pool=states,
        enable_kvcache_transpose=False,  # read up to 0.5.12
    )


def make_allocator(sizes: Sizes, kv: Any, rows: Any) -> Any:
    """Return the allocator of token slots, in pages if these are larger than one token."""
    import torch
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator

    tokens, is_sorted = sizes.pages * sizes.page, sizes.disaggregation != "no"
    if sizes.sliding:
        from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

        return SWATokenToKVPoolAllocator(
            tokens,
            sizes.window_pages * sizes.page,
            page_size=sizes.page,
            dtype=torch.int64,
            device="cpu",
            kvcache=kv,
            need_sort=is_sorted,
            req_to_token_pool=rows,
        )
    if sizes.page == 1:
        return TokenToKVPoolAllocator(size=tokens, dtype=torch.int64, device="cpu", kvcache=kv, need_sort=is_sorted)
    return PagedTokenToKVPoolAllocator(
        size=tokens, page_size=sizes.page, dtype=torch.int64, device="cpu", kvcache=kv, need_sort=is_sorted
    )


def make_memory(sizes: Sizes, states: list[int], attention: list[int], windows: list[int]) -> Memory:
    """Return the pools for the given state layers, attention layers and layers with a sliding window."""
    if sizes.unified != "no":
        return UnifiedMemory(make_unified_pools(sizes, state_parameters(sizes, states), states, attention, windows))
    rows = make_row_pool(sizes, states)
    kv = make_kv_pool(sizes, attention, windows, rows.mamba_pool)
    return Memory(Pools(rows, kv, make_allocator(sizes, kv, rows)))


def tree_parameters(sizes: Sizes, rows: Any, allocator: Any) -> Any:
    """Return what the radix tree is made from, its components left out."""
    return scheduler_api.call(
        old_releases.cache_parameters(),
        req_to_token_pool=rows,
        token_to_kv_pool_allocator=allocator,
        page_size=sizes.page,
        disable=not sizes.caching,
        eviction_policy=sizes.eviction,
        eviction_policy_config=eviction_config(sizes.eviction, sizes.page),
        enable_session_radix_cache=sizes.tags,
        enable_mamba_extra_buffer=sizes.strategy != "no_buffer",
        enable_mamba_extra_buffer_lazy=sizes.strategy == "extra_buffer_lazy",
        # A model's window includes the token itself, this one does not.
        sliding_window_size=sizes.sliding - 1 if sizes.sliding else None,
    )


def make_cache(sizes: Sizes, rows: Any, allocator: Any) -> Any:
    """Return the radix tree with its components, or without prefix caching the cache that replaces it."""
    from sglang.srt.environ import envs

    tree_api.order_sets()
    parameters = tree_parameters(sizes, rows, allocator)
    if not sizes.caching and (stand_in := tree_api.chunk_cache()):
        return old_releases.plain_cache(stand_in, parameters)
    if sizes.tree_core == "legacy":
        from sglang.srt.mem_cache.mamba_radix_cache import MambaRadixCache

        return old_releases.plain_cache(MambaRadixCache, parameters)
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    kinds = tree_api.component_types()
    parameters.tree_components = (kinds.FULL, kinds.SWA, kinds.MAMBA) if sizes.sliding else (kinds.FULL, kinds.MAMBA)
    if not hasattr(envs, "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"):
        return UnifiedRadixCache(params=parameters)
    with envs.SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND.override(sizes.tree_core):
        return UnifiedRadixCache(params=parameters)


def model_config(sizes: Sizes) -> Any:
    """Return the model configuration that the scheduler reads; other attributes are `OFF`."""

    class Model(SimpleNamespace):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return OFF

    return Model(
        vocab_size=VOCABULARY,
        is_encoder_decoder=False,
        is_multimodal=False,
        hf_text_config=SimpleNamespace(mamba_chunk_size=sizes.chunk),
        context_len=sizes.context,
        think_end_ids=[VOCABULARY],  # which the model never says: all of an answer is reasoning
        request_selectable_think_end_id_sequences=[[token] for token in range(VOCABULARY)],
    )


def hybrid_model_config() -> Any:
    """Return a configuration by which SGLang recognizes a hybrid model."""
    from sglang.srt.configs import Qwen3NextConfig

    config = object.__new__(Qwen3NextConfig)
    hf_config = scheduler_api.Seen(get_text_config=lambda: config, architectures=["Qwen3NextForCausalLM"])
    return scheduler_api.Seen(hf_config=hf_config, model_is_mrope=False)


def make_backend(rows: Any, sizes: Sizes, mamba2: bool = False) -> Any:
    """Return the linear-attention backend without its kernels: it plans the sources of snapshots and stores them."""
    backend = object.__new__(mamba2_backend() if mamba2 else old_releases.backend_class())
    backend.device = "cpu"
    backend.topk = sizes.breadth
    backend.req_to_token_pool = rows
    backend.conv_states_shape = (1, sizes.window)
    backend._mamba_chunk_size = sizes.chunk
    backend.is_draft_worker, backend.enable_unified_memory = False, sizes.unified != "no"
    backend.accept_lens_pool = None
    return backend


def mamba2_backend() -> Any:
    """Return the class of the backend of Mamba 2 layers."""
    from sglang.srt.layers.attention.hybrid_linear_attn_backend import Mamba2AttnBackend

    return Mamba2AttnBackend
