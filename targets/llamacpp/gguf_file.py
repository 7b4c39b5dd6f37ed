"""Writes a tiny model as a GGUF file. Scripts copy this file's definitions."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from .families import VOCABULARY, Family

NORMAL, UNKNOWN, CONTROL = 1, 2, 3
"""Types of tokens (`llama_token_type`)."""
WEIGHTS = 1.5
"""Standard deviation of a weight, times the square root of its inputs."""

APART = 0.1
"""Part of the weights of a drafting model that is its own."""


def write_gguf(path: Path, family: Family, *, spelled: bool = False, apart: float = 0.0) -> None:
    """Write a model with random weights, which depend on their names alone; `spelled`: its tokens are words,
    and it has its block that drafts.

    `apart`: part of the weights that is another model's, so that this one often agrees with that without it.
    """
    writer = GGUFWriter(path, family.arch)
    writer.add_tokenizer_model("llama" if spelled else "none")
    if spelled:
        writer.add_token_list(["<unk>", "<s>", "</s>", *(f"\u2581t{token}" for token in range(3, VOCABULARY))])
        writer.add_token_scores([0.0] * VOCABULARY)
        writer.add_token_types([UNKNOWN, CONTROL, CONTROL, *[NORMAL] * (VOCABULARY - 3)])
    metadata, tensors = dict(family.metadata), dict(family.tensors)
    if spelled and family.head:
        blocks = metadata["block_count"]
        assert isinstance(blocks, int)
        metadata |= {"block_count": blocks + 1, "nextn_predict_layers": 1}
        tensors |= family.head
    for key, value in metadata.items():
        name = f"{family.arch}.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            writer.add_uint32(name, value)
    for name, shape in tensors.items():
        weights = weights_of(name, shape[::-1])
        if apart:
            weights = ((1 - apart) * weights + apart * weights_of(name, shape[::-1], 1)).astype(np.float32)
        writer.add_tensor(name, weights)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def weights_of(name: str, shape: tuple[int, ...], model: int = 0) -> Any:
    """Return the weights of one tensor, shape in numpy's order: norms around 1, decays negative, the rest normal.

    `model`: 0, or another number for weights of another model.
    """
    noise = np.random.default_rng(zlib.crc32(name.encode()) + model).standard_normal(shape).astype(np.float32)
    if name.endswith("ssm_a"):
        return -np.exp(noise / 2)
    if "norm" in name or name.endswith("ssm_d"):
        return 1 + noise / 10
    if len(shape) == 1:
        return noise / 4
    return noise * np.float32((1 if "embd" in name else WEIGHTS) / shape[-1] ** 0.5)
