"""Tiny models of the hybrid families: their metadata and weights. Importable without llama.cpp and numpy.

A family has two to four layers of 32 channels. Tensors are named and shaped as llama.cpp's loader wants them. Shapes
are in the order of GGUF, the reverse of numpy's.

Source: src/models/*.cpp of build 11549 (`load_arch_hparams`, `load_arch_tensors`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

WIDTH, HIDDEN, VOCABULARY = 32, 48, 128
HEADS, KV_HEADS, HEAD = 2, 1, 16
CONV, STATE, INNER, RANK = 4, 16, 64, 4
"""Taps of the convolution, size of a state, channels of a state layer, its heads (Mamba 1: rank of the time step)."""
WINDOW = "attention.sliding_window"
Value = int | float | list[int]
Shapes = dict[str, tuple[int, ...]]


class Family(NamedTuple):
    """One hybrid architecture.

    arch      llama.cpp's name
    metadata  hyperparameters, without the architecture's prefix
    tensors   name -> shape
    planes    True if its contexts can keep snapshots for roll-back (`llm_arch_supports_rs_rollback`)
    head      tensors of the MTP block, which follows the others and drafts: only a server's model has it
    state     words at the end of what a save of a recurrent state has that are it, 0 for all: cells of a window precede
    """

    arch: str
    metadata: Mapping[str, Value]
    tensors: Shapes
    planes: bool = False
    state: int = 0
    head: Shapes | None = None


def _common(blocks: int, more: Mapping[str, Value]) -> dict[str, Value]:
    return {
        "vocab_size": VOCABULARY,
        "context_length": 4096,
        "embedding_length": WIDTH,
        "block_count": blocks,
        "feed_forward_length": HIDDEN,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": HEAD,
        "rope.freq_base": 10000.0,
        **more,
    }


def _ssm(groups: int) -> dict[str, Value]:
    return {
        "ssm.conv_kernel": CONV,
        "ssm.state_size": STATE,
        "ssm.group_count": groups,
        "ssm.time_step_rank": RANK,
        "ssm.inner_size": INNER,
    }


def _ends(norm: str = "output_norm") -> Shapes:
    return {
        "token_embd.weight": (WIDTH, VOCABULARY),
        f"{norm}.weight": (WIDTH,),
        "output.weight": (WIDTH, VOCABULARY),
    }


def _mlp(layer: str, gate: bool = True) -> Shapes:
    shapes: Shapes = {f"{layer}.ffn_down.weight": (HIDDEN, WIDTH), f"{layer}.ffn_up.weight": (WIDTH, HIDDEN)}
    return {f"{layer}.ffn_gate.weight": (WIDTH, HIDDEN)} | shapes if gate else shapes


def _attention(layer: str, gated: bool = False) -> Shapes:
    """`gated`: the queries carry an output gate."""
    return {
        f"{layer}.attn_q.weight": (WIDTH, HEADS * HEAD * (2 if gated else 1)),
        f"{layer}.attn_k.weight": (WIDTH, KV_HEADS * HEAD),
        f"{layer}.attn_v.weight": (WIDTH, KV_HEADS * HEAD),
        f"{layer}.attn_output.weight": (HEADS * HEAD, WIDTH),
    }


def _qk_norms(layer: str) -> Shapes:
    return {f"{layer}.attn_q_norm.weight": (HEAD,), f"{layer}.attn_k_norm.weight": (HEAD,)}


def _delta_net(layer: str) -> Shapes:
    """Gated delta net, with 2 heads of keys and 4 of values."""
    channels = 2 * 2 * STATE + INNER
    return {
        f"{layer}.attn_qkv.weight": (WIDTH, channels),
        f"{layer}.attn_gate.weight": (WIDTH, INNER),
        f"{layer}.ssm_conv1d.weight": (CONV, channels),
        f"{layer}.ssm_dt.bias": (RANK,),
        f"{layer}.ssm_a": (RANK,),
        f"{layer}.ssm_beta.weight": (WIDTH, RANK),
        f"{layer}.ssm_alpha.weight": (WIDTH, RANK),
        f"{layer}.ssm_norm.weight": (STATE,),
        f"{layer}.ssm_out.weight": (INNER, WIDTH),
    }


def _mamba2(layer: str, groups: int) -> Shapes:
    channels = INNER + 2 * groups * STATE
    return {
        f"{layer}.ssm_in.weight": (WIDTH, INNER + channels + RANK),
        f"{layer}.ssm_conv1d.weight": (CONV, channels),
        f"{layer}.ssm_conv1d.bias": (channels,),
        f"{layer}.ssm_dt.bias": (RANK,),
        f"{layer}.ssm_a": (1, RANK),
        f"{layer}.ssm_d": (1, RANK),
        f"{layer}.ssm_norm.weight": (INNER // groups, groups),
        f"{layer}.ssm_out.weight": (INNER, WIDTH),
    }


def _mamba1(layer: str) -> Shapes:
    """Mamba 1 with Jamba's norms."""
    return {
        f"{layer}.ssm_in.weight": (WIDTH, 2 * INNER),
        f"{layer}.ssm_conv1d.weight": (CONV, INNER),
        f"{layer}.ssm_conv1d.bias": (INNER,),
        f"{layer}.ssm_x.weight": (INNER, RANK + 2 * STATE),
        f"{layer}.ssm_dt_norm.weight": (RANK,),
        f"{layer}.ssm_dt.weight": (RANK, INNER),
        f"{layer}.ssm_dt.bias": (INNER,),
        f"{layer}.ssm_b_norm.weight": (STATE,),
        f"{layer}.ssm_c_norm.weight": (STATE,),
        f"{layer}.ssm_a": (STATE, INNER),
        f"{layer}.ssm_d": (INNER,),
        f"{layer}.ssm_out.weight": (INNER, WIDTH),
    }


def _short_convolution(layer: str) -> Shapes:
    return {
        f"{layer}.shortconv.conv.weight": (3, WIDTH),
        f"{layer}.shortconv.in_proj.weight": (WIDTH, 3 * WIDTH),
        f"{layer}.shortconv.out_proj.weight": (WIDTH, WIDTH),
    }


def _norm(layer: str, *names: str) -> Shapes:
    return {f"{layer}.{name}": (WIDTH,) for name in names}


def _qwen35() -> Family:
    tensors = _ends()
    for index in range(4):
        layer = f"blk.{index}"
        tensors |= _norm(layer, "attn_norm.weight", "post_attention_norm.weight") | _mlp(layer)
        tensors |= _attention(layer, gated=True) | _qk_norms(layer) if index % 2 else _delta_net(layer)
    metadata = _common(4, {"full_attention_interval": 2, "rope.dimension_sections": [2, 1, 1, 0]})
    metadata |= {"rope.dimension_count": 8} | _ssm(2)
    return Family("qwen35", metadata, tensors, planes=True, head=_mtp("blk.4"))


def _mtp(layer: str) -> Shapes:
    """Qwen3.5's block that drafts."""
    block = _norm(layer, "attn_norm.weight", "post_attention_norm.weight") | _mlp(layer)
    block |= _attention(layer, gated=True) | _qk_norms(layer)
    norms = (f"nextn.{name}.weight" for name in ("enorm", "hnorm", "shared_head_norm"))
    return block | {f"{layer}.nextn.eh_proj.weight": (2 * WIDTH, WIDTH)} | _norm(layer, *norms)


def _nemotron_h() -> Family:
    tensors = _ends() | {f"blk.{index}.attn_norm.weight": (WIDTH,) for index in range(4)}
    tensors |= _mamba2("blk.0", 2) | _attention("blk.1") | _mamba2("blk.2", 2) | _mlp("blk.3", gate=False)
    sizes: dict[str, Value] = {
        "feed_forward_length": [0, 0, 0, HIDDEN],
        "attention.head_count": HEADS,
        "attention.head_count_kv": [0, KV_HEADS, 0, 0],
        "attention.layer_norm_epsilon": 1e-6,
    }
    return Family("nemotron_h", _common(4, sizes) | _ssm(2), tensors, planes=True)


def _lfm2(window: int = 0) -> Family:
    """`window`: tokens that attention looks back to, 0 for all."""
    tensors = _ends("token_embd_norm")
    for index in range(4):
        layer = f"blk.{index}"
        tensors |= _norm(layer, "attn_norm.weight", "ffn_norm.weight") | _mlp(layer)
        tensors |= _attention(layer) | _qk_norms(layer) if index % 2 else _short_convolution(layer)
    sizes: dict[str, Value] = {"attention.head_count_kv": [0, KV_HEADS] * 2, "shortconv.l_cache": 3}
    if window:
        sizes[WINDOW] = window
    # Per layer two inputs of the convolution, a type and a size, and the type and size of no other state; a header.
    state = 2 * (2 * WIDTH + 3 + 3) + 5
    return Family("lfm2", _common(4, sizes), tensors, planes=True, state=state if window else 0)


def _granite_hybrid() -> Family:
    tensors = _ends()
    for index in range(4):
        layer = f"blk.{index}"
        tensors |= _norm(layer, "attn_norm.weight", "ffn_norm.weight") | _mlp(layer)
        tensors |= _attention(layer) if index % 2 else _mamba2(layer, 1)
    sizes: dict[str, Value] = {
        "attention.head_count_kv": [0, KV_HEADS] * 2, "logit_scale": 1.0, "residual_scale": 1.0,
        "embedding_scale": 1.0, "attention.scale": 0.25,
    }  # fmt: skip
    return Family("granitehybrid", _common(4, sizes) | _ssm(1), tensors)


def _falcon_h1() -> Family:
    tensors = _ends()
    for index in range(2):
        layer = f"blk.{index}"
        tensors |= _norm(layer, "attn_norm.weight", "ffn_norm") | _mlp(layer)
        tensors |= _attention(layer) | _mamba2(layer, 1)
    return Family("falcon-h1", _common(2, {}) | _ssm(1), tensors)


def _jamba() -> Family:
    tensors = _ends()
    for index in range(4):
        layer = f"blk.{index}"
        tensors |= _norm(layer, "attn_norm.weight", "ffn_norm.weight") | _mlp(layer)
        tensors |= _attention(layer) if index % 2 else _mamba1(layer)
    sizes: dict[str, Value] = {"attention.head_count_kv": [0, KV_HEADS] * 2}
    return Family("jamba", _common(4, sizes) | _ssm(1), tensors)


FAMILIES = {
    "qwen3-5": _qwen35(),
    "nemotron-h": _nemotron_h(),
    "lfm2": _lfm2(),
    "lfm2-window": _lfm2(window=8),
    "granite-hybrid": _granite_hybrid(),
    "falcon-h1": _falcon_h1(),
    "jamba": _jamba(),
}
"""Value of the option `family` -> its model: gated delta net, Mamba 2 (three), short convolutions (two, one of them
with a sliding window), Mamba 1."""
