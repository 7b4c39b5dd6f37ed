"""Tiny hybrid models with random weights, as vLLM's own model classes: Granite 4 and Nemotron-H (Mamba 2), Qwen3-Next
(gated delta net, without experts), Qwen3.5 (the same with a vision tower), LFM2 (short convolution) and Jamba (Mamba 1,
without experts).

A model has as many layers of each kind as the trace's groups, interleaved as in the CPU adapter's shadow model. Weights
depend on the parameter's name only: every process builds the same model. They are larger than a trained model's, so
that a wrong state changes the logits visibly.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Sequence
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any

from ...reference.tokens import VOCABULARY
from ..base.trace import Config
from .options import has_images, options_of, ring_entries
from .sizes import has_eagle_rules, layer_groups

_COMMON: dict[str, Any] = {
    "hidden_size": 128, "intermediate_size": 256, "vocab_size": VOCABULARY, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-06, "hidden_act": "silu", "tie_word_embeddings": False, "rope_theta": 10000.0,
    "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "num_experts_per_tok": 1,
}  # fmt: skip
# By the kind of state layer; a second model of a kind has a name of its own.
_MODELS: dict[str, dict[str, Any]] = {
    "mamba2": {
        "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid",
        "num_attention_heads": 2, "num_key_value_heads": 2,
        "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1, "mamba_d_conv": 4,
        "mamba_expand": 1, "mamba_chunk_size": 16, "mamba_conv_bias": True, "mamba_proj_bias": False,
        "num_local_experts": 0, "shared_intermediate_size": 256, "position_embedding_type": "nope",
        "attention_multiplier": 0.125, "embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0,
    },
    "gdn": {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4, "full_attention_interval": 2, "num_experts": 0, "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64, "decoder_sparse_step": 1, "partial_rotary_factor": 0.25,
    },
}  # fmt: skip
_MODELS |= {
    "nemotron_h": {
        "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h",
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 64, "attention_head_dim": 64,
        "mamba_num_heads": 4, "mamba_head_dim": 32, "ssm_state_size": 16, "n_groups": 1, "conv_kernel": 4,
        "chunk_size": 16, "use_conv_bias": True, "use_bias": False, "mlp_bias": False, "layer_norm_epsilon": 1e-06,
        "mlp_hidden_act": "relu2", "mamba_hidden_act": "silu", "residual_in_fp32": False,
        "n_routed_experts": 0, "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*",
    },
    "short_conv": {
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2",
        "num_attention_heads": 2, "num_key_value_heads": 2, "conv_L_cache": 4, "conv_bias": True, "conv_dim": 128,
        "block_dim": 128, "block_ff_dim": 256, "block_multiple_of": 64, "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": True, "norm_eps": 1e-06,
    },
    "mamba1": {
        "architectures": ["JambaForCausalLM"], "model_type": "jamba",
        "num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": 1,
        "expert_layer_period": 2, "expert_layer_offset": 1,
        "mamba_d_state": 8, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 16,
        "mamba_conv_bias": True, "mamba_proj_bias": False,
    },
}  # fmt: skip
_MODELS["qwen3_5"] = {
    name: value
    for name, value in _MODELS["gdn"].items()
    if name.startswith(("num_att", "num_key", "head_dim", "linear_"))
} | {
    "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5_text",
    # Positions in time, height and width take turns in the part of a head that is rotated.
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
        "mrope_section": [6, 5, 5], "mrope_interleaved": True,
    },
}  # fmt: skip
MERGED = 2
"""Patches of an image whose squares become one token."""
PATCH = 2
"""Pixels of a patch's side."""
CHANNELS = 3
_VISION: dict[str, Any] = {
    "model_type": "qwen3_5_vision", "depth": 1, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2,
    "hidden_act": "gelu_pytorch_tanh", "in_channels": CHANNELS, "patch_size": PATCH, "temporal_patch_size": 1,
    "spatial_merge_size": MERGED, "num_position_embeddings": 64, "out_hidden_size": _COMMON["hidden_size"],
}  # fmt: skip
"""The vision tower of Qwen3.5."""
_NAMES = {
    "mamba2": ("mamba", "attention"),
    "gdn": ("linear_attention", "full_attention"),
    "qwen3_5": ("linear_attention", "full_attention"),
    "short_conv": ("conv", "full_attention"),
}
STATE_KIND = {"nemotron_h": "mamba2", "qwen3_5": "gdn"}
"""The kind of state layer, for the models that are not named after it."""
KEY_VALUE: dict[str, tuple[int, int]] = {
    name: (fields["num_key_value_heads"], fields.get("head_dim", 64)) for name, fields in _MODELS.items()
}
"""Heads of keys and values, and their size."""
MIXERS = tuple(name for name in _MODELS if name != "qwen3_5")
"""What a trace may name: the model with images is that of `gdn`."""
WINDOWED = ("mamba2", "nemotron_h")
"""Mixers with windows beside full attention: those of Nemotron-H."""
WITH_EAGLE = ("gdn", "mamba2", "nemotron_h")
"""Mixers of which a model has an MTP head: vLLM then has EAGLE's rules."""
ADAPTED = ("gdn", "mamba2")
"""Models that are driven with LoRA adapters."""
WITH_IMAGES = ("gdn",)
"""Mixers of which a model with images is driven."""
NO_DRAFTS = ("short_conv", "mamba1")
"""Models that are not driven with speculation. vLLM has none for Mamba 1, and has it for short convolutions."""


def mixer(config: Config) -> str:
    """The model of a trace, by the kind of its state layers. Nemotron-H takes the place of Granite 4, which has no
    windows and no EAGLE head, and for which vLLM refuses ReplaySSM; Qwen3.5 that of Qwen3-Next, which has no images."""
    name = options_of(config).mixer
    if has_images(config):
        return "qwen3_5"
    needs = ring_entries(config) or any(windows(config)) or has_eagle_rules(config)
    return "nemotron_h" if name == "mamba2" and needs else name


def dtype(config: Config) -> str:
    """The dtype of weights and activations of a trace."""
    return options_of(config).dtype


def layer_kinds(config: Config) -> str:
    """The layers from bottom to top: "m" a state layer, "a" an attention layer."""
    return "".join(group.kind[0] for group in layer_groups(config))


def windows(config: Config) -> Sequence[int]:
    """The sliding windows of the layers from bottom to top, 0 for none."""
    return [group.window for group in layer_groups(config)]


class LayerConfigs:
    """The `get_nemotron_h_config_for_layer` of a model whose attention layers differ by their windows. Checkpoints with
    unequal layers bring such a function along."""

    def __init__(self, config: Any, windows: Sequence[int]) -> None:
        self.configs = [copy(config) for _ in windows]
        for one, window in zip(self.configs, windows, strict=True):
            one.sliding_window = window or None

    def __call__(self, layer: int) -> Any:
        """Return the configuration of one layer."""
        return self.configs[layer]


def model_fields(name: str, kinds: str) -> dict[str, Any]:
    """The fields of the `config.json` of a model whose layers are `kinds`."""
    if name == "nemotron_h":
        layers: dict[str, Any] = {"hybrid_override_pattern": kinds.replace("m", "M").replace("a", "*")}
    elif name == "mamba1":
        period = kinds.index("a") + 1
        layers = {"attn_layer_period": period, "attn_layer_offset": period - 1}
    else:
        names = dict(zip("ma", _NAMES[name], strict=True))
        layers = {"layer_types": [names[kind] for kind in kinds]}
    fields = _COMMON | _MODELS[name] | layers | {"num_hidden_layers": len(kinds)}
    if name != "qwen3_5":
        return fields
    ids = dict.fromkeys(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"), 0)
    kind = {"architectures": fields.pop("architectures"), "model_type": "qwen3_5"}
    return kind | ids | {"text_config": fields, "vision_config": _VISION}


def image_grid(tokens: int) -> tuple[int, int, int]:
    """Return the frames, rows and columns of patches of an image with so many tokens: as square as they can be, so that
    the text behind it begins at a lower position than the number of its tokens."""
    rows = max(one for one in range(1, int(tokens**0.5) + 1) if tokens % one == 0)
    return 1, rows * MERGED, tokens // rows * MERGED


def has_layers(name: str, kinds: str) -> bool:
    """Return True if the model can have layers of these kinds: those of Jamba have a period."""
    period = kinds.index("a") + 1
    return name != "mamba1" or all((kind == "a") == (index % period == period - 1) for index, kind in enumerate(kinds))


@cache
def model_folder(name: str, kinds: str) -> str:
    """A folder with the `config.json` of a model, made once per process."""
    folder = tempfile.mkdtemp(prefix="tiny-model-")
    Path(folder, "config.json").write_text(json.dumps(model_fields(name, kinds)))
    return folder


def fill_weights(model: Any, name: str, *, apart: bool = False) -> None:
    """Random weights, the same in every engine and process; `apart`, others than those of the same names."""
    import torch

    prefix = "apart." if apart else ""
    with torch.no_grad():
        for title, parameter in model.named_parameters():
            parameter.data.copy_(_weights(prefix + title, tuple(parameter.shape), name))


@cache
def _weights(title: str, shape: tuple[int, ...], name: str) -> Any:
    """One weight of a model, in float32. A worker builds many engines with the same few."""
    import torch

    generator = torch.Generator().manual_seed(zlib.crc32(title.encode()))
    return _scaled(torch.randn(shape, generator=generator), title, name)


def _scaled(values: Any, title: str, name: str) -> Any:
    last = title.rsplit(".", 1)[-1]
    if last == "A_log":
        return 0.5 * values - 2
    if last == "A":
        return -0.2 * values.exp()
    if last in ("dt_bias", "D"):
        return 0.3 * values
    if "norm" in title:
        # Qwen3-Next keeps a norm's weight as its distance from one, except that of a gated delta net.
        is_other = title.endswith("linear_attn.norm.weight") or title.startswith("visual.")
        from_one = STATE_KIND.get(name, name) == "gdn" and not is_other
        return (0.0 if from_one else 1.0) + 0.1 * values
    if "embed_tokens" in title:
        return 0.5 * values
    if values.dim() > 1:
        return 1.5 * values / float(values.shape[-1]) ** 0.5
    return 0.1 * values
