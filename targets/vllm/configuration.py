"""Translates a trace's configuration to a `VllmConfig`, as the platform would choose it for a small GPU.

vLLM derives block sizes, padding and graph sizes from the model and the device. Here they come from the trace, and are
set after vLLM has validated the rest. Differences between releases are in `compat` and `features`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)

from ...reference.layout import cdiv
from ..base.trace import Config, Group
from .options import (
    PREFILL_INTERVAL,
    drafts_on_device,
    has_graphs,
    options_of,
    reports_all,
    ring_entries,
    schedules_asynchronously,
)
from .versions import as_on_gpu, compat, features
from .versions.wrapping import replaced

MODEL = Path(__file__).parent / "model"
"""The `config.json` of a hybrid model that vLLM knows; its layers are never built. Its chunks are as long as the
smallest blocks, its vocabulary is the reference's `VOCABULARY`."""
KINDS = ("mamba", "attention")
_WIDE = 4096
"""Tokens: more than any block."""


def configure(config: Config, is_v2: bool) -> VllmConfig:
    """Return the configuration of one engine."""
    k = config.num_speculative_tokens
    model = ModelConfig(
        model=str(MODEL),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=config.max_model_len,
        enforce_eager=True,
    )
    cache_config = CacheConfig(
        block_size=block_size(config, "attention"), enable_prefix_caching=config.enable_prefix_caching
    )
    if hasattr(cache_config, "mamba_cache_mode"):
        cache_config.mamba_cache_mode = config.mamba_cache_mode
    scheduler = scheduler_config(config)
    tokens = scheduler.max_num_batched_tokens
    make = partial(
        VllmConfig,
        model_config=model,
        cache_config=cache_config,
        scheduler_config=scheduler,
        device_config=DeviceConfig("cpu"),
        speculative_config=speculation(config, model, as_eagle=drafts_as_eagle(config, is_v2)) if k else None,
    )
    try:
        with replaced(*as_on_gpu.without_amx()):
            vllm_config = make()
    except ValueError as error:
        # Up to 0.17 limits are compared with the block size of the model in `MODEL`, which is not the trace's: see
        # `VllmFactory.supports`. Some of the assertions have no message.
        if "Assertion failed" not in str(error):
            raise
        threshold = scheduler.long_prefill_token_threshold
        scheduler.max_num_batched_tokens, scheduler.long_prefill_token_threshold = max(tokens, _WIDE), 0
        vllm_config = make()
        vllm_config.scheduler_config.max_num_batched_tokens = tokens
        vllm_config.scheduler_config.long_prefill_token_threshold = threshold
    assert vllm_config.scheduler_config.enable_chunked_prefill
    # The CPU platform has disabled asynchronous scheduling and graphs and chosen block sizes of its own: restore what a
    # hybrid model has on a GPU.
    vllm_config.scheduler_config.async_scheduling = schedules_asynchronously(config)
    _set_block_sizes(config, vllm_config.cache_config)
    if ring_entries(config):
        as_on_gpu.replay_inputs(vllm_config, ring_entries(config))
    if has_graphs(config):
        set_graph_sizes(config, vllm_config.compilation_config)
    if reports_all(config):
        _report_all(vllm_config)
    return vllm_config


def _report_all(vllm_config: Any) -> None:
    from . import cache_events

    cache_events.switch_on(vllm_config)
    observed = vllm_config.observability_config
    observed.kv_cache_metrics, observed.kv_cache_metrics_sample = True, 1.0
    observed.per_request_spec_decode_metrics = "detailed"


def scheduler_config(config: Config) -> SchedulerConfig:
    """Return the scheduler's part of the configuration."""
    # The size of the buffers. The budget of a step is set before each schedule().
    tokens = max(config.max_num_batched_tokens, config.max_num_seqs * (config.num_speculative_tokens + 1))
    more: dict[str, Any] = {}
    if options_of(config).prefills == "spaced":
        more |= {"prefill_schedule_interval": PREFILL_INTERVAL, "long_prefill_token_threshold_adaptive": True}
    if options_of(config).admission == "chunk":
        more["scheduler_reserve_full_isl"] = False
    return SchedulerConfig(
        max_num_batched_tokens=tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        async_scheduling=schedules_asynchronously(config),
        policy=config.policy,
        long_prefill_token_threshold=min(config.long_prefill_token_threshold, config.max_model_len),
        **more,
    )


def block_size(config: Config, kind: str) -> int:
    """Return the tokens per block of the groups of a kind."""
    return next(group.block_size for group in config.groups if group.kind == kind)


def hash_unit(config: Config) -> int:
    """Return the tokens per key of the prefix cache."""
    return options_of(config).prefix_match_unit or config.hash_block_size


def layer_groups(config: Config) -> list[Group]:
    """Return the group of each layer of the model, from bottom to top: interleaved, as in real hybrid models."""
    target = [one for one in config.groups if not one.draft]
    layers = {kind: [one for one in target if one.kind == kind for _ in range(one.layers)] for kind in KINDS}
    mamba, attention = layers["mamba"], layers["attention"]
    each = cdiv(len(mamba), len(attention))
    return [group for index, one in enumerate(attention) for group in (*mamba[each * index : each * (index + 1)], one)]


def page_words(config: Config) -> int:
    """Return the 8-byte words of a page: those of the largest attention block with keys large enough for a state."""
    largest = max(group.block_size for group in config.groups if group.kind == "attention")
    entries = ring_entries(config)
    state = config.conv_width + config.num_speculative_tokens + (entries + 2 if entries else 0)
    return 2 * largest * cdiv(state, 2 * largest)


def head_size(config: Config, size: int) -> int:
    """Return the 8-byte words per key with which a block of `size` tokens fills a page."""
    return page_words(config) // (2 * size)


def drafts_as_eagle(config: Config, is_v2: bool) -> bool:
    """Return True if the drafter passes as MTP: the last matched block of a hit is then computed again."""
    has_own = any(group.draft for group in config.groups)
    return config.eagle_block_drop or has_own or (is_v2 and features.is_v2_drafting_as_eagle())


def speculation(config: Config, model: Any, *, as_eagle: bool) -> SpeculativeConfig:
    """Return the speculative part of the configuration, for a drafter with or without EAGLE's rules."""
    # Lookahead hashes cover tokens behind their block: they replace the drop by a condition that no key shows.
    legacy = {"disable_lookahead_block_hashes": True} if features.has_lookahead_hashes() else {}
    return SpeculativeConfig(
        **legacy,
        method="mtp" if as_eagle else "ngram_gpu" if drafts_on_device(config) else "ngram",
        num_speculative_tokens=config.num_speculative_tokens,
        prompt_lookup_max=3,
        prompt_lookup_min=1,
        target_model_config=model,
        target_parallel_config=ParallelConfig(),
    )


def _set_block_sizes(config: Config, cache_config: Any) -> None:
    """Set what `Platform._align_hybrid_block_size` derives from the sizes of a real model's states."""
    # As `EngineCore` does once the groups are planned.
    cache_config.block_size = min(
        group.block_size for group in config.groups if group.kind == "attention" or config.mamba_cache_mode != "none"
    )
    prefix_caching = config.mamba_cache_mode != "none"
    cache_config.mamba_block_size = block_size(config, "mamba") if prefix_caching else config.max_model_len
    cache_config.enable_prefix_caching = config.enable_prefix_caching
    if hasattr(cache_config, "mamba_cache_mode"):  # the model in `MODEL` has no mode all
        cache_config.mamba_cache_mode = config.mamba_cache_mode
    cache_config.mamba_page_size_padded = page_words(config) * 8
    cache_config.num_gpu_blocks_override = config.num_blocks
    options = options_of(config)
    if options.prefix_match_unit:
        cache_config.prefix_match_unit = hash_unit(config)
    if options.retention == "dense":
        compat.retain_every_boundary(cache_config)
    if options.retention == "junctions":
        cache_config.enable_mamba_shared_prefix_checkpoint = True
    assert getattr(cache_config, "mamba_cache_mode", config.mamba_cache_mode) == config.mamba_cache_mode


def set_graph_sizes(config: Config, compilation: Any) -> None:
    """Request full graphs for decode batches: all that the backend of a state layer supports (`UNIFORM_BATCH`)."""
    from vllm.config import CUDAGraphMode

    query = config.num_speculative_tokens + 1
    compilation.cudagraph_mode = CUDAGraphMode.FULL_DECODE_ONLY
    compilation.cudagraph_capture_sizes = sorted(rows * query for rows in set(config.graph_sizes))
    compilation.max_cudagraph_capture_size = compilation.cudagraph_capture_sizes[-1]
