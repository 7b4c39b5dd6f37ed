"""The tiny hybrid model whose arithmetic the numeric run executes: shapes, weights and inputs.

Every layer is fed with the embeddings of the tokens, not with the layer before it, so that one wrong read shows in the
layer where it happens. Embeddings are multiples of 1/8 of at most 1: exact in fp8 e4m3, fp16, bf16 and fp32, so
that keys, values and convolution windows are stored without rounding and moves can be compared bit for bit.

It defines the result, not the algorithm: `reference/numeric/truth.py` computes it in float64, a target in its own way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

HEADS = 2
"""Heads of the recurrent layers and query heads of attention."""
HEAD_DIM = 4
STATE_DIM = 4
CONV_CHANNELS = HEADS * HEAD_DIM + 2 * STATE_DIM
"""x, B and C of a scan, or values, key and query of a delta net, one after another; heads share the last two."""
NORM_EPSILON = 2.0**-20
"""Under the root where keys and queries of a delta net are divided by their length."""
QUERY_SCALE = 0.5
"""STATE_DIM ** -0.5."""
KV_HEADS = 1
ATTENTION_DIM = 8
OUTPUT_WIDTH = 16
"""Features that a layer adds to the read-out; recurrent layers fill the first HEADS * HEAD_DIM."""
EMBEDDING_ROWS = 1024
LOGITS = 126
"""Token ids 2..127, as in `tokens`."""

ITEM_BYTES = {"float8_e4m3fn": 1, "float16": 2, "bfloat16": 2, "float32": 4}
"""Bytes of each data type, by its name in torch."""

Array = NDArray[np.float64]


Mixer = Literal["mamba2", "gated_delta_net"]


@dataclass(frozen=True, slots=True)
class TinyModel:
    """The parameters that a trace's configuration sets; data types by their names in torch."""

    conv_width: int
    kv_dtype: Literal["float8_e4m3fn", "float16", "bfloat16"] = "float8_e4m3fn"
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    mixer: Mixer = "mamba2"


@dataclass(frozen=True, slots=True)
class StateWeights:
    """One recurrent layer of Mamba 2.

    inputs  [EMBEDDING_ROWS, CONV_CHANNELS]     time_steps [EMBEDDING_ROWS, HEADS], in [1/4, 1]
    filter  [CONV_CHANNELS, conv_width]         bias       [CONV_CHANNELS]
    decay   [HEADS], negative                   skip       [HEADS]
    """

    inputs: Array
    time_steps: Array
    filter: Array
    bias: Array
    decay: Array
    skip: Array


@dataclass(frozen=True, slots=True)
class DeltaWeights:
    """One recurrent layer of a gated delta net; convolution as in `StateWeights`.

    gates     [EMBEDDING_ROWS, HEADS], in [-1/2, -1/8]: logarithm of what remains of a state
    strengths [EMBEDDING_ROWS, HEADS], in [1/8, 1]: how much of a value's error is corrected
    """

    inputs: Array
    filter: Array
    bias: Array
    gates: Array
    strengths: Array


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """One attention layer.

    queries [EMBEDDING_ROWS, HEADS, ATTENTION_DIM]   keys, values [EMBEDDING_ROWS, KV_HEADS, ATTENTION_DIM]
    """

    queries: Array
    keys: Array
    values: Array


def state_shape(mixer: Mixer) -> tuple[int, int, int]:
    """Return the shape of one recurrent state."""
    return (HEADS, HEAD_DIM, STATE_DIM) if mixer == "mamba2" else (HEADS, STATE_DIM, HEAD_DIM)


def embedding_row(token: int, position: int) -> int:
    """Return the row of the embedding tables for a token at a position."""
    return (token * 53 + position * 19) % EMBEDDING_ROWS


@lru_cache(maxsize=64)
def state_weights(conv_width: int, group: int, layer: int) -> StateWeights:
    """Weights of one recurrent layer, the same on every machine."""
    random = _generator(group, layer)
    return StateWeights(
        _eighths(random, EMBEDDING_ROWS, CONV_CHANNELS),
        random.integers(2, 9, (EMBEDDING_ROWS, HEADS)) / 8,
        random.integers(1, 9, (CONV_CHANNELS, conv_width)) / 8,
        _eighths(random, CONV_CHANNELS),
        -random.integers(1, 4, HEADS) / 4,
        _eighths(random, HEADS),
    )


@lru_cache(maxsize=64)
def delta_weights(conv_width: int, group: int, layer: int) -> DeltaWeights:
    """Weights of one recurrent layer, the same on every machine."""
    random = _generator(group, layer)
    return DeltaWeights(
        _eighths(random, EMBEDDING_ROWS, CONV_CHANNELS),
        random.integers(1, 9, (CONV_CHANNELS, conv_width)) / 8,
        _eighths(random, CONV_CHANNELS),
        -random.integers(1, 5, (EMBEDDING_ROWS, HEADS)) / 8,
        random.integers(1, 9, (EMBEDDING_ROWS, HEADS)) / 8,
    )


def recurrent_weights(model: TinyModel, group: int, layer: int) -> StateWeights | DeltaWeights:
    """Weights of one recurrent layer of the model's mixer."""
    make = state_weights if model.mixer == "mamba2" else delta_weights
    return make(model.conv_width, group, layer)


@lru_cache(maxsize=64)
def attention_weights(group: int, layer: int) -> AttentionWeights:
    """Embeddings of one attention layer, the same on every machine."""
    random = _generator(group, layer)
    return AttentionWeights(
        _eighths(random, EMBEDDING_ROWS, HEADS, ATTENTION_DIM),
        _eighths(random, EMBEDDING_ROWS, KV_HEADS, ATTENTION_DIM),
        _eighths(random, EMBEDDING_ROWS, KV_HEADS, ATTENTION_DIM),
    )


@lru_cache(maxsize=64)
def read_out(group: int, layer: int) -> Array:
    """Return the weights from a layer's output to the logits of the next token, [OUTPUT_WIDTH, LOGITS]."""
    return _generator(group, layer, 1).integers(-8, 9, (OUTPUT_WIDTH, LOGITS)) / 8


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([*key])))


def _eighths(random: np.random.Generator, *shape: int) -> Array:
    return random.integers(-8, 9, shape) / 8
