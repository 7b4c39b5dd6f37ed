"""Replacements of parts of vLLM that a CPU or shadow layers cannot run as they are.

With them the engine does what it does on a GPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from ...base.renamed import put
from .features import has_replay
from .wrapping import replaced


def copy_in_one_tile() -> None:
    """Copy a temporal state as one tile: a tag is 8 bytes, and each tile is a call of the interpreter.

    Tiles spread a copy of megabytes over a GPU.
    """
    with contextlib.suppress(ImportError):
        from vllm.v1.worker import mamba_utils

        mamba_utils._TEMPORAL_TILES = 1


def sample_in_torch() -> None:
    """Let the V1 sampler draw in PyTorch: its other kernels are compiled, and are not the cache's."""
    with contextlib.suppress(ImportError):
        from vllm.v1.sample.ops import topk_topp_sampler

        if hasattr(topk_topp_sampler, "HAS_TRITON"):
            topk_topp_sampler.HAS_TRITON = False
            topk_topp_sampler.TopKTopPSampler.forward_cpu = topk_topp_sampler.TopKTopPSampler.forward_native


def inspect_models_here() -> None:
    """Let vLLM look at the class of a model in this process. It starts one for each, so as not to touch a GPU, and
    imports itself there: twice twenty seconds for every new checkout, as it keeps what it saw."""
    from vllm.model_executor.models import registry

    put(registry, "_run_in_subprocess", lambda function: function())


def without_amx() -> list[tuple[Any, str, Any]]:
    """Return the replacements, as for `replaced`, with which the CPU seems to have no AMX tiles.

    On a CPU with AMX vLLM 0.22 to 0.24 switch prefix caching and chunked prefill off for linear attention: their CPU
    kernels have neither.
    """
    import torch

    return (
        [(torch.cpu, "_is_amx_tile_supported", lambda: False)] if hasattr(torch.cpu, "_is_amx_tile_supported") else []
    )


def without_replay_kernel() -> list[tuple[Any, str, Any]]:
    """Return the replacements, as for `replaced`, with which no kernel for Mamba's decodes is chosen: shadow layers
    call none, and the one for CPUs cannot replay inputs."""
    if not has_replay():
        return []
    from vllm.v1.worker import gpu_model_runner

    return [(gpu_model_runner, "initialize_mamba_ssu_backend", lambda *_, **__: None)]


def share_state_indices(runner: Any) -> None:
    """Let the V2 runner build metadata as on a GPU: for the first GDN group, of which the others get new indices.

    vLLM does so only if the device is a GPU.
    """
    import torch
    from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadataBuilder
    from vllm.v1.worker.mamba_utils import MambaSpecDecodeGPUContext

    for builder in [one for groups in runner.attn_groups for group in groups for one in group.metadata_builders]:
        if type(builder) is GDNAttentionMetadataBuilder:
            builder.supports_update_block_table = True
            builder.mamba_aligned_state_indices = None
    compute = MambaSpecDecodeGPUContext.compute_aligned_state_indices
    if hasattr(compute, "on_cpu"):
        return

    def compute_on_cpu(*arguments: Any, **keywords: Any) -> Any:
        with replaced((torch.Tensor, "is_cuda", True)):
            return compute(*arguments, **keywords)

    compute_on_cpu.on_cpu = True  # type: ignore[attr-defined]
    put(MambaSpecDecodeGPUContext, "compute_aligned_state_indices", compute_on_cpu)


def apart_buffers(wanted: bool) -> list[tuple[Any, str, Any]]:
    """Return the replacements under which the V1 runner has separate host and "device" copies of its buffers.

    Its CPU subclass aliases them, which is correct only without asynchronous scheduling.
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner

    if not hasattr(CPUModelRunner, "_postprocess_tensors"):
        return []
    return [(CPUModelRunner, "_postprocess_tensors", lambda runner: None)] if wanted else []


def without_pinning(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a tensor constructor to ignore `pin_memory`, which the V1 runner passes without checking for support."""

    def make(*arguments: Any, pin_memory: bool = False, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    return make
