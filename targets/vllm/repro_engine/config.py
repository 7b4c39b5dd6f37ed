"""Configuration of a small engine, as the platform would choose it for a small GPU.

(This file is inlined into reproducers, between `layers` and `engine`; nothing imports it.)
"""

import atexit
import json
import os
import shutil
import tempfile
from pathlib import Path

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.distributed.parallel_state import ensure_model_parallel_initialized, init_distributed_environment
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker import mamba_utils
from vllm.v1.worker.gpu import model_runner

from .layers import VOCABULARY, takes

HYBRID = {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": VOCABULARY, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "full_attention_interval": 2, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-06, "torch_dtype": "bfloat16", "decoder_sparse_step": 1,
    "hidden_act": "silu", "tie_word_embeddings": False, "partial_rotary_factor": 0.25, "rope_theta": 10000.0,
}  # fmt: skip
"""A hybrid model that vLLM knows; its layers are never built."""


def prepare(runner):
    """Prepare the process, once; return the folder of the model."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner == "v2" else "0"
    Path(f"{folder}/config.json").write_text(json.dumps(HYBRID), encoding="utf-8")
    torch.set_num_threads(1)
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
    mamba_utils._TEMPORAL_TILES = 1  # a state is 8 bytes
    Sampler.greedy_sample = staticmethod(lambda logits: logits.argmax(dim=-1).view(-1))  # otherwise a compiled operator
    return folder


def configure(folder, runner, mode, block_size, num_drafts, async_depth, eagle, **more):
    """Return the configuration that the platform would choose for a small GPU."""
    eagle = eagle or (runner == "v2" and drafts_as_eagle())
    tokens = max(more["max_num_batched_tokens"], more["max_num_seqs"] * (num_drafts + 1))
    length = more["max_model_len"]
    model = ModelConfig(
        model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=length, enforce_eager=True
    )
    cache = CacheConfig(block_size=block_size, enable_prefix_caching=mode != "none")
    cache.mamba_cache_mode = mode
    scheduling = SchedulerConfig(
        max_num_batched_tokens=tokens, max_num_seqs=more["max_num_seqs"], max_model_len=length,
        enable_chunked_prefill=True, is_encoder_decoder=False, async_scheduling=async_depth > 0,
        policy=more["policy"], long_prefill_token_threshold=min(more["long_prefill"], length),
        **({"scheduler_reserve_full_isl": False} if not more.get("reserve_full_isl", True) else {}),
    )  # fmt: skip
    config = VllmConfig(
        model_config=model, cache_config=cache, scheduler_config=scheduling, device_config=DeviceConfig("cpu"),
        speculative_config=speculation(model, num_drafts, eagle) if num_drafts else None,
    )  # fmt: skip
    config.scheduler_config.async_scheduling = async_depth > 0  # the CPU platform disables it
    return config


def speculation(model, num_drafts, eagle):
    known = SpeculativeConfig.__dataclass_fields__
    more = {"disable_lookahead_block_hashes": True} if "disable_lookahead_block_hashes" in known else {}
    return SpeculativeConfig(
        method="mtp" if eagle else "ngram", num_speculative_tokens=num_drafts, prompt_lookup_max=3,
        prompt_lookup_min=1, target_model_config=model, target_parallel_config=ParallelConfig(), **more,
    )  # fmt: skip


def drafts_as_eagle():
    """Return True if this release's V2 runner refuses the n-gram method: then the drafter passes as MTP."""
    return not takes(model_runner.init_speculator, "req_states")
