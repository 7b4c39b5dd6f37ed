"""LoRA adapters for a real model: vLLM's own manager and kernels, with random weights in the place of checkpoints.

They change what goes into states, windows and keys: the projections in front of and behind each mixer, and those of
attention.
"""

from __future__ import annotations

import inspect
import zlib
from functools import cache
from typing import Any

import torch
from vllm.config.lora import LoRAConfig

from ..counterparts.inputs import MAX_ADAPTERS
from .source_edits import leave_out

RANK = 8
TARGETS = ["in_proj", "in_proj_qkvz", "out_proj", "qkv_proj", "o_proj"]
SIZE = 2.0
"""Of the random weights. Log-probabilities then differ by more than 1 from those without the adapter."""


def lora_config() -> LoRAConfig:
    """Return vLLM's configuration of adapters."""
    return LoRAConfig(max_lora_rank=RANK, max_loras=MAX_ADAPTERS, target_modules=TARGETS)


@cache
def prepare_kernels() -> None:
    """Let vLLM's kernels take float32, which they can compute but refuse, and sum in one order: by default programs add
    to the same sum in any order, so that not even the same step twice has the same bits."""
    from vllm.lora.ops.triton_ops import lora_expand_op, lora_shrink_op, utils

    for module, name in ((lora_shrink_op, "_lora_shrink"), (lora_expand_op, "_lora_expand")):
        leave_out(inspect.unwrap(getattr(module, name)), lambda line: "torch.bfloat16]" in line)
    utils.is_batch_invariant = lora_shrink_op.is_batch_invariant = True


def generate(manager: Any) -> None:
    """Let a worker's manager generate the weights of an adapter where it would load them. They follow from the names of
    adapter and module, and are the same in every engine."""

    def made(request: Any) -> Any:
        adapter = manager._adapter_manager.create_dummy_lora(request.lora_int_id, RANK, manager.embedding_modules)
        for name, weights in adapter.loras.items():
            for part, sides in enumerate((weights.lora_a, weights.lora_b)):
                for number, one in enumerate(sides if isinstance(sides, list) else [sides]):
                    seed = zlib.crc32(f"{request.lora_name} {name} {part} {number}".encode())
                    values = torch.randn(one.shape, generator=torch.Generator().manual_seed(seed))
                    one.copy_(SIZE * values / one.shape[-1] ** 0.5)
        return adapter

    manager._load_adapter = made


def forget(manager: Any) -> None:
    """Drop what vLLM's kernels keep by the addresses of an engine's adapters, which another engine may get."""
    from vllm.lora.ops.triton_ops import utils

    modules = manager._adapter_manager.modules.values()
    stacked = [one for module in modules for one in (*module.lora_a_stacked, *module.lora_b_stacked)]
    addresses = {one.data_ptr() for one in stacked}
    for kept in (utils._LORA_A_PTR_DICT, utils._LORA_B_PTR_DICT):
        for key in [key for key in kept if addresses.intersection(key)]:
            del kept[key]
