"""Images for a real model: pixels that follow from an image's name, for vLLM's own vision tower (Qwen3.5).

The tower, the encoder cache, the gathering of embeddings and the positions of images (M-RoPE) are vLLM's. Its processor
is not: it needs files of a checkpoint. It would turn a client's image into the patches that are made here, and say how
many tokens the encoder takes in one step, which the trace's scheduler is told (`counterparts.inputs`).
"""

from __future__ import annotations

import logging
import sys
import types
import zlib
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFieldElem,
    MultiModalFlatField,
    MultiModalKwargsItem,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from ....reference.tokens import IMAGE_TOKENS
from ..counterparts.inputs import ENCODER_TOKENS
from ..models import CHANNELS, PATCH, image_grid

MODEL_ARGUMENTS = {"mm_encoder_attn_backend": AttentionBackendEnum.TORCH_SDPA}
"""Of the tower: attention that takes float32 and needs no binaries."""


class Budget:
    """In place of vLLM's `MultiModalBudget`, which asks the processor."""

    encoder_compute_budget = encoder_cache_size = ENCODER_TOKENS

    def __init__(self, *_: Any, **__: Any) -> None:
        self.mm_max_toks_per_item = {"image": IMAGE_TOKENS}
        self.mm_max_items_per_batch = self.mm_max_items_per_prompt = {"image": 1}

    def get_encoder_budget(self) -> int:
        """Return the tokens that are encoded in one step at most."""
        return ENCODER_TOKENS

    def get_modality_with_max_tokens(self) -> str:
        """Return the only modality."""
        return "image"

    def reset_cache(self) -> None:
        """Do nothing: no image is kept here."""


@cache
def prepare() -> None:
    """Let schedulers and runners of this process take their budget from here, and import the model, once."""
    _import_model()
    from vllm.v1.core.sched import scheduler
    from vllm.v1.worker import gpu_model_runner

    scheduler.MultiModalBudget = gpu_model_runner.MultiModalBudget = Budget


def _import_model() -> None:
    """Import vLLM's model with images. With it come the processors of transformers, which import torchvision: where
    that is missing an empty module takes its place for as long, since nothing here runs them."""
    if find_spec("torchvision") is not None:
        return
    parts = ("torchvision", "transforms", "v2", "functional")
    names = [".".join(parts[: count + 1]) for count in range(len(parts))]
    modules = [types.ModuleType(name) for name in names]
    for module, inner, name in zip(modules, modules[1:], parts[1:], strict=False):
        module.__path__ = []
        setattr(module, name, inner)
    logger = logging.getLogger("transformers")
    level = logger.level
    sys.modules.update(zip(names, modules, strict=True))
    logger.setLevel(logging.ERROR)
    try:
        import_module("vllm.model_executor.models.qwen3_5")
    finally:
        logger.setLevel(level)
        for name in names:
            del sys.modules[name]


@cache
def picture(name: str, tokens: int) -> MultiModalKwargsItem:
    """Return what vLLM's processor would make of an image: its patches, and their grid."""
    shape = image_grid(tokens)
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    patches = torch.randn((shape[1] * shape[2], CHANNELS * PATCH * PATCH), generator=generator)
    flat = MultiModalFlatField(slices=[slice(0, len(patches))])
    each = MultiModalBatchedField(keep_on_cpu=True)
    return MultiModalKwargsItem(
        {
            "pixel_values": MultiModalFieldElem(data=patches, field=flat),
            "image_grid_thw": MultiModalFieldElem(data=torch.tensor(shape), field=each),
        }
    )
