"""A trace's configuration as a `VllmConfig` for a GPU. Block sizes come from the trace; everything else that vLLM
derives from the model and the device stays as vLLM derives it."""

from __future__ import annotations

from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    CompilationConfig,
    CUDAGraphMode,
    DeviceConfig,
    ModelConfig,
    VllmConfig,
)
from vllm.config.attention import AttentionConfig
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from ...base.trace import Config
from ..configuration import block_size, scheduler_config, set_graph_sizes, speculation
from ..models import KEY_VALUE, dtype, layer_kinds, mixer, model_folder
from ..options import has_graphs, options_of
from ..versions import compat

PIECES = (1, 2, 4, 8, 16, 32, 64)
"""Tokens of piecewise graphs, up to the largest batch."""


def configure(config: Config, device: torch.device) -> VllmConfig:
    """The configuration of one engine."""
    k = config.num_speculative_tokens
    model = ModelConfig(
        model=model_folder(mixer(config), layer_kinds(config)),
        skip_tokenizer_init=True,
        dtype=dtype(config),
        max_model_len=config.max_model_len,
        enforce_eager=not has_graphs(config),
    )
    cache = CacheConfig(
        block_size=block_size(config, "attention"),
        enable_prefix_caching=config.enable_prefix_caching,
        mamba_cache_mode=config.mamba_cache_mode,
        mamba_ssm_cache_dtype="float32",
        num_gpu_blocks_override=config.num_blocks,
    )
    made = VllmConfig(
        model_config=model,
        cache_config=cache,
        scheduler_config=scheduler_config(config),
        device_config=DeviceConfig(device.type),
        attention_config=AttentionConfig(backend=AttentionBackendEnum.TRITON_ATTN),
        compilation_config=_compilation(config),
        speculative_config=speculation(config, model, as_eagle=False) if k else None,
        additional_config={"gdn_prefill_backend": "triton"},
    )
    made.scheduler_config.async_scheduling = config.async_depth > 0
    _set_block_sizes(config, made.cache_config, torch.tensor([], dtype=getattr(torch, dtype(config))).element_size())
    if has_graphs(config):
        set_graph_sizes(config, made.compilation_config)
    if is_piecewise(config):
        compilation = made.compilation_config
        # vLLM captures a batch of dummy requests as long as the size needs, and looks their last block up.
        most = min(config.max_num_batched_tokens, config.max_num_seqs * config.max_model_len)
        sizes = {*compilation.cudagraph_capture_sizes, *[size for size in PIECES if size < most], most}
        # As vLLM does: one that exceeds its buffers would fail while it is captured.
        fitting = sorted(size for size in sizes if size <= most)
        compilation.cudagraph_mode = CUDAGraphMode.FULL_AND_PIECEWISE
        compilation.cudagraph_capture_sizes = fitting
        compilation.max_cudagraph_capture_size = fitting[-1]
    return made


def _compilation(config: Config) -> CompilationConfig:
    """Layers run as written. Full graphs for decode batches; with graphs=piecewise, others are replayed in pieces."""
    modes = {"decode": CUDAGraphMode.FULL_DECODE_ONLY, "piecewise": CUDAGraphMode.FULL_AND_PIECEWISE}
    mode = modes[options_of(config).graphs] if has_graphs(config) else CUDAGraphMode.NONE
    return CompilationConfig(mode=0, custom_ops=["none"], cudagraph_mode=mode)


def is_piecewise(config: Config) -> bool:
    """Return True if batches with prompts are replayed in pieces."""
    return has_graphs(config) and options_of(config).graphs == "piecewise"


def attention_page(config: Config, word: int) -> int:
    """Bytes of one block of one attention layer; `word` bytes an element."""
    heads, size = KEY_VALUE[mixer(config)]
    return block_size(config, "attention") * 2 * heads * size * word


def _set_block_sizes(config: Config, cache: Any, word: int) -> None:
    """The trace's block sizes in place of those of `Platform._align_hybrid_block_size`."""
    cache.block_size = block_size(config, "attention")
    aligned = config.mamba_cache_mode != "none"
    cache.mamba_block_size = block_size(config, "mamba") if aligned else config.max_model_len
    cache.mamba_page_size_padded = attention_page(config, word)
    cache.num_gpu_blocks_override = config.num_blocks
    cache.mamba_cache_mode = config.mamba_cache_mode
    if options_of(config).retention == "dense":
        compat.retain_every_boundary(cache)
