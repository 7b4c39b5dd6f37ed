"""Tiny random models: one configuration for each hybrid family.

Three or four layers of 32 channels, with state layers before and after attention, because the defects of a state layer
and those of an attention layer hide each other at the ends of a model. Every expert of a mixture is used, so that
routing cannot turn rounding into another result. This module is importable without transformers: scripts copy the
configurations from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct

Kind = Literal["state", "attention", "both", "none"]
"""What one layer of a model keeps in the cache."""

CONV_WIDTH = 4
WEIGHTS = 1.5
"""Standard deviation of a weight matrix, times the square root of its inputs: large enough that one wrong token in the
cache changes the greedy tokens, small enough that rounding does not."""

_SIZES: dict[str, Any] = {
    "vocab_size": 128, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1,
    "max_position_embeddings": 512, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
    "tie_word_embeddings": False,
}  # fmt: skip
_MIXED = {"num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"]}
_MAMBA_2 = {
    "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_d_conv": CONV_WIDTH,
    "mamba_expand": 2, "mamba_chunk_size": 4,
}  # fmt: skip
_DELTA_NET = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": CONV_WIDTH, "head_dim": 16,
}  # fmt: skip
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 2}
_MAMBA_ALONE = {
    "vocab_size": 128, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "conv_kernel": CONV_WIDTH,
    "expand": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None,
}  # fmt: skip
_CONV = {
    "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": CONV_WIDTH,
}  # fmt: skip


class Family(Struct, frozen=True):
    """A model family.

    model_type  as `AutoConfig` knows it
    sizes       arguments of its configuration
    layers      what each layer keeps in the cache
    recurrent, conv  False if its state layers have no recurrent state, or no convolution
    cache_name  argument of its forward
    positions   True if its forward takes `position_ids`
    attention_first  True if a layer with both runs its attention before its state layer
    masks_itself  True if the model takes the mask as it is, and `generate` does not pass it after the first forward
    """

    model_type: str
    sizes: Mapping[str, Any]
    layers: tuple[Kind, ...]
    recurrent: bool = True
    conv: bool = True
    cache_name: Literal["past_key_values", "cache_params"] = "past_key_values"
    positions: bool = True
    attention_first: bool = False
    masks_itself: bool = False

    def count(self, kind: Literal["state", "attention"]) -> int:
        """Return the number of layers with a state, or with attention."""
        return sum(layer in (kind, "both") for layer in self.layers)


_SANDWICH: tuple[Kind, ...] = ("state", "attention", "state")
_SHARED: tuple[Kind, ...] = ("state", "both", "state", "both")
_PURE: tuple[Kind, ...] = ("state", "state")

FAMILIES: Mapping[str, Family] = {
    "bamba": Family(
        "bamba", {**_SIZES, **_MAMBA_2, "num_hidden_layers": 3, "attn_layer_indices": [1]}, _SANDWICH
    ),
    "falcon-h1": Family(
        "falcon_h1",
        {**_SIZES, **_MAMBA_2, "num_hidden_layers": 2, "head_dim": 16, "mamba_d_ssm": 64},
        ("both", "both"),
    ),
    "falcon-mamba": Family(
        "falcon_mamba", {**_MAMBA_ALONE, "time_step_rank": 4}, _PURE, cache_name="cache_params", positions=False,
        masks_itself=True,
    ),
    "granite-hybrid": Family(
        "granitemoehybrid",
        {**_SIZES, **_MAMBA_2, **_EXPERTS, "num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"],
         "shared_intermediate_size": 32, "position_embedding_type": "rope"},
        _SANDWICH,
    ),
    "jamba": Family(
        "jamba",
        {**_SIZES, "num_hidden_layers": 3, "attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2,
         "expert_layer_offset": 1, "num_experts": 2, "num_experts_per_tok": 2, "mamba_d_state": 8,
         "mamba_d_conv": CONV_WIDTH, "mamba_expand": 2, "mamba_dt_rank": 4, "use_mamba_kernels": False},
        _SANDWICH,
    ),
    "lfm2": Family("lfm2", {**_SIZES, **_CONV, "block_auto_adjust_ff_dim": False}, _SANDWICH, recurrent=False),
    "lfm2-moe": Family(
        "lfm2_moe",
        {**_SIZES, **_CONV, "moe_intermediate_size": 16, "num_experts": 2, "num_experts_per_tok": 2,
         "num_dense_layers": 1},
        _SANDWICH,
        recurrent=False,
    ),
    "mamba": Family(
        "mamba", {**_MAMBA_ALONE, "time_step_rank": 4}, _PURE, cache_name="cache_params", positions=False,
        masks_itself=True,
    ),
    "mamba2": Family(
        "mamba2", {**_MAMBA_ALONE, "num_heads": 4, "head_dim": 16, "n_groups": 1, "chunk_size": 4}, _PURE,
        cache_name="cache_params", positions=False,
    ),
    "minimax": Family(
        "minimax",
        {**_SIZES, **_EXPERTS, "num_hidden_layers": 3, "head_dim": 16, "block_size": 4,
         "layer_types": ["full_attention", "linear_attention", "full_attention"]},
        ("attention", "state", "attention"),
        conv=False,
    ),
    "minimax-linear-first": Family(
        "minimax",
        {**_SIZES, **_EXPERTS, "num_hidden_layers": 3, "head_dim": 16, "block_size": 4,
         "layer_types": ["linear_attention", "linear_attention", "full_attention"]},
        ("state", "state", "attention"),
        conv=False,
    ),
    "nemotron-h": Family(
        "nemotron_h",
        {**_SIZES, "num_hidden_layers": 4, "hybrid_override_pattern": "M*-M", "mamba_num_heads": 4,
         "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 1, "conv_kernel": CONV_WIDTH, "expand": 2,
         "chunk_size": 4, "head_dim": 16},
        ("state", "attention", "none", "state"),
    ),
    "olmo-hybrid": Family("olmo_hybrid", {**_SIZES, **_MIXED, **_DELTA_NET}, _SANDWICH),
    "qwen3-5": Family("qwen3_5_text", {**_SIZES, **_MIXED, **_DELTA_NET}, _SANDWICH),
    "qwen3-next": Family(
        "qwen3_next",
        {**_SIZES, **_MIXED, **_DELTA_NET, "mlp_only_layers": [0, 1, 2], "num_experts": 2, "num_experts_per_tok": 2,
         "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
        _SANDWICH,
    ),
    "zamba": Family(
        "zamba",
        {**_SIZES, "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
         "attention_hidden_size": 64, "attention_head_dim": 32, "n_mamba_heads": 2, "mamba_d_state": 8,
         "mamba_d_conv": CONV_WIDTH, "mamba_dt_rank": 4, "use_mamba_kernels": False},
        _SHARED,
        attention_first=True,
    ),
    "zamba2": Family(
        "zamba2",
        {**_SIZES, "num_hidden_layers": 4, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
         "attention_hidden_size": 64, "attention_head_dim": 32, "n_mamba_heads": 4, "mamba_headdim": 16,
         "mamba_d_state": 8, "mamba_d_conv": CONV_WIDTH, "mamba_ngroups": 1, "chunk_size": 4, "num_mem_blocks": 1,
         "adapter_rank": 4},
        _SHARED,
        attention_first=True,
    ),
}  # fmt: skip
