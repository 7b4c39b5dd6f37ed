"""Builds a `VllmConfig` from sizes, as the platform would choose it for a small GPU: for every kit.

vLLM derives block sizes, padding and graph sizes from the model and the device. Here they come from `Sizes`, and are
set after vLLM has validated the rest. Copied into the scripts of `repro`: nothing of ours but `Sizes` is used here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.config import CacheConfig, ModelConfig, ParallelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig

from .sizes import Sizes


def build(
    sizes: Sizes, model: ModelConfig, cache: CacheConfig, make: Callable[..., VllmConfig] = VllmConfig, **parts: Any
) -> VllmConfig:
    """Return the configuration of one engine. `parts` are further arguments of `make`."""
    config = make(
        model_config=model,
        cache_config=cache,
        scheduler_config=scheduler_config(sizes),
        speculative_config=speculation(sizes, model) if sizes.num_drafts else None,
        **parts,
    )
    # A CPU platform disables asynchronous scheduling and chooses block sizes of its own: restore what a GPU has.
    config.scheduler_config.async_scheduling = sizes.asynchronous
    set_block_sizes(sizes, config.cache_config)
    if sizes.graph_rows:
        set_graph_sizes(sizes, config.compilation_config)
    if sizes.ring:
        replay_inputs(sizes, config)
    return config


def model_config(sizes: Sizes, folder: str, dtype: str = "float32", eager: bool = True, **more: Any) -> ModelConfig:
    """Return the configuration of the model whose `config.json` is in a folder. `more` are further arguments of it."""
    return ModelConfig(
        model=folder,
        skip_tokenizer_init=True,
        dtype=dtype,
        max_model_len=sizes.max_model_len,
        enforce_eager=eager,
        **more,
    )


def cache_config(sizes: Sizes, **more: Any) -> CacheConfig:
    """Return the cache's part of the configuration, before vLLM has validated it."""
    cache = CacheConfig(block_size=sizes.block_size, enable_prefix_caching=sizes.prefix_caching, **more)
    if hasattr(cache, "mamba_cache_mode"):
        cache.mamba_cache_mode = sizes.mode
    return cache


def scheduler_config(sizes: Sizes) -> SchedulerConfig:
    """Return the scheduler's part of the configuration."""
    more: dict[str, Any] = {}
    if sizes.prefill_interval:
        more = {
            "prefill_schedule_interval": sizes.prefill_interval,
            "long_prefill_token_threshold_adaptive": True,
        }
    if not sizes.reserve_full_isl:
        more["scheduler_reserve_full_isl"] = False
    return SchedulerConfig(
        # The size of the buffers. The budget of a step is set before each schedule().
        max_num_batched_tokens=max(sizes.max_num_batched_tokens, sizes.max_num_seqs * (sizes.num_drafts + 1)),
        max_num_seqs=sizes.max_num_seqs,
        max_model_len=sizes.max_model_len,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        async_scheduling=sizes.asynchronous,
        policy=sizes.policy,
        long_prefill_token_threshold=min(sizes.long_prefill, sizes.max_model_len),
        **more,
    )


def speculation(sizes: Sizes, model: ModelConfig) -> SpeculativeConfig:
    """Return the speculative part of the configuration."""
    name = "disable_lookahead_block_hashes"
    hashes = {name: sizes.plain_hashes} if name in SpeculativeConfig.__dataclass_fields__ else {}
    return SpeculativeConfig(
        **hashes,
        method=sizes.method,
        num_speculative_tokens=sizes.num_drafts,
        prompt_lookup_max=3,
        prompt_lookup_min=1,
        target_model_config=model,
        target_parallel_config=ParallelConfig(),
    )


def set_block_sizes(sizes: Sizes, cache: Any) -> None:
    """Set what `Platform._align_hybrid_block_size` derives from the sizes of a real model's states."""
    cache.block_size = sizes.hit_block_size
    cache.mamba_block_size = sizes.mamba_block_size
    cache.enable_prefix_caching = sizes.prefix_caching
    if hasattr(cache, "mamba_cache_mode"):  # the model may have no mode all
        cache.mamba_cache_mode = sizes.mode
    cache.mamba_page_size_padded = sizes.page_bytes
    cache.num_gpu_blocks_override = sizes.num_blocks
    if sizes.prefix_match_unit:
        cache.prefix_match_unit = sizes.prefix_match_unit
    # By default newer releases publish only where prompts end or fork: a state written by decoding is never hit.
    if sizes.every_boundary and hasattr(cache, "prefix_cache_retention_interval"):
        cache.prefix_cache_retention_interval = None
    if sizes.junctions:
        cache.enable_mamba_shared_prefix_checkpoint = True


def set_graph_sizes(sizes: Sizes, compilation: Any) -> None:
    """Request full graphs for decode batches: all that the backend of a state layer supports (`UNIFORM_BATCH`)."""
    from vllm.config import CUDAGraphMode

    query = sizes.num_drafts + 1
    compilation.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    compilation.cudagraph_capture_sizes = [rows * query for rows in sizes.graph_rows]
    compilation.max_cudagraph_capture_size = compilation.cudagraph_capture_sizes[-1]


def replay_inputs(sizes: Sizes, config: Any) -> None:
    """Switch ReplaySSM on once vLLM has validated the configuration: the platform's backend and the model, both of
    which a test replaces, do not support it."""
    from vllm.config.mamba import MambaBackendEnum

    config.mamba_config.backend = MambaBackendEnum.TRITON
    config.cache_config.use_replayssm = True
    config.cache_config.replayssm_buffer_len = sizes.ring
