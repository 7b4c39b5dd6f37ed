"""A trace's configuration as a `VllmConfig` for a GPU. Block sizes come from the trace; everything else that vLLM
derives from the model and the device stays as vLLM derives it."""

from __future__ import annotations

import torch
from vllm.config import CompilationConfig, CUDAGraphMode, DeviceConfig, VllmConfig
from vllm.config.attention import AttentionConfig
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from ...base.trace import Config
from ..models import KEY_VALUE, LayerConfigs, dtype, layer_kinds, mixer, model_folder, windows
from ..options import has_adapters, has_graphs, has_images, options_of, reports_all
from ..shadow_config import report_all
from ..sizes import Sizes, block_size, sizes_of
from ..vllm_config import build, cache_config, model_config
from . import adapters, images

PIECES = (1, 2, 4, 8, 16, 32, 64)
"""Tokens of piecewise graphs, up to the largest batch."""


def configure(config: Config, device: torch.device) -> VllmConfig:
    """The configuration of one engine."""
    sizes = _sizes(config)
    folder = model_folder(mixer(config), layer_kinds(config))
    more = images.MODEL_ARGUMENTS if has_images(config) else {}
    model = model_config(sizes, folder, dtype(config), not has_graphs(config), **more)
    if any(windows(config)):
        model.hf_config.get_nemotron_h_config_for_layer = LayerConfigs(model.hf_config, windows(config))
    made = build(
        sizes,
        model,
        cache_config(
            sizes,
            mamba_cache_mode=config.mamba_cache_mode,
            mamba_ssm_cache_dtype="float32",
            num_gpu_blocks_override=config.num_blocks,
        ),
        device_config=DeviceConfig(device.type),
        attention_config=AttentionConfig(backend=AttentionBackendEnum.TRITON_ATTN),
        compilation_config=_compilation(config),
        additional_config={"gdn_prefill_backend": "triton"},
        lora_config=adapters.lora_config() if has_adapters(config) else None,
    )
    if reports_all(config):
        report_all(made)
    if is_piecewise(config):
        compilation = made.compilation_config
        # vLLM captures a batch of dummy requests as long as the size needs, and looks their last block up.
        most = min(config.max_num_batched_tokens, config.max_num_seqs * config.max_model_len)
        wanted = {*compilation.cudagraph_capture_sizes, *[size for size in PIECES if size < most], most}
        # As vLLM does: one that exceeds its buffers would fail while it is captured.
        fitting = sorted(size for size in wanted if size <= most)
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


def _sizes(config: Config) -> Sizes:
    """The trace's sizes, with pages as large as the model's attention makes them."""
    word = torch.tensor([], dtype=getattr(torch, dtype(config))).element_size()
    return sizes_of(config)._replace(
        hit_block_size=block_size(config, "attention"), page_bytes=attention_page(config, word)
    )
