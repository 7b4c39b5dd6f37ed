"""The devices that kernels of a real model run on, and stand-ins for binaries that are missing.

cuda         the GPU
interpreter  the CPU, each Triton kernel interpreted: slow, the same code otherwise; for tests without a GPU

A wheel that was unpacked without its compiled parts still runs: the few operators that a tiny hybrid model meets are
written here in PyTorch, and attention is Triton's. What is really installed is used.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

DEVICES = ("cuda", "interpreter")
OPERATORS = "vLLM's compiled operators (PyTorch)"
ATTENTION = "FlashAttention (vLLM's Triton attention)"
GPU = "the GPU (Triton's interpreter)"
INVARIANCE = "batch invariance of state layers (declared here, not by vLLM)"
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
"""vLLM's own switch for kernels whose results do not depend on the other rows of the batch."""


def variables(home: Path, device: str) -> dict[str, str]:
    """The environment of a worker, given a folder of its own."""
    common = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",  # one core is a worker's own
        "TRITON_CACHE_DIR": str(home / f"triton-{device}"),
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CACHE_ROOT": str(home / "cache"),
        "VLLM_CONFIG_ROOT": str(home / "config"),
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        BATCH_INVARIANT: os.environ.get(BATCH_INVARIANT, "0"),
    }
    if device == "cuda":
        # Products of float32 with three TF32 products each: rounding stays far below a defect.
        # Ranks exchange a few integers: they need no multicast, which some machines must not use.
        return common | {"TRITON_CACHE_AUTOTUNING": "1", "TRITON_F32_DEFAULT": "tf32x3", "NCCL_NVLS_ENABLE": "0"}
    return common | {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": "1"}


@cache
def prepare(device: str) -> tuple[str, ...]:
    """Prepare this process for engines on a device, before vLLM is imported; return what is replaced."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    found = find_spec("vllm")
    folder = Path(next(iter(found.submodule_search_locations or ()), "")) if found else Path()
    stood_in = stood_in_for(folder, device)
    if OPERATORS in stood_in:
        _stand_in_operators(device)
    if ATTENTION in stood_in:
        _stand_in_flash_attention(folder)
    if GPU in stood_in:
        _stand_in_platform()
    _without_subprocesses(bool(stood_in))
    if INVARIANCE in stood_in:
        _declare_batch_invariance()
    return stood_in


def stood_in_for(package: Path, device: str) -> tuple[str, ...]:
    """Return what has to be replaced in the vLLM of a folder, from its files alone."""
    missing = []
    if not any(package.glob("_C_stable_libtorch*.so")):
        missing.append(OPERATORS)
    if not any(package.glob("vllm_flash_attn/_vllm_fa2_C*.so")):
        missing.append(ATTENTION)
    if os.environ.get(BATCH_INVARIANT) == "1":
        missing.append(INVARIANCE)
    return (*missing, GPU) if device == "interpreter" else tuple(missing)


def _module(name: str, **attributes: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    module.__path__ = []
    sys.modules[name] = module
    return module


def _absent(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("not in a vLLM without its binaries")


def _stand_in_flash_attention(package: Path) -> None:
    """Put a module without functions in the place of FlashAttention; its Triton kernels need no binaries."""
    _module(
        "vllm.vllm_flash_attn",
        compile_flash_attn_varlen_func_from_specs=_absent,
        flash_attn_varlen_func=_absent,
        get_scheduler_metadata=_absent,
        is_fa_version_supported=lambda *_, **__: False,
        fa_version_unsupported_reason=lambda *_, **__: "no binaries",
        FA2_AVAILABLE=False,
        FA3_AVAILABLE=False,
    )
    for folder in ("layers", "ops"):
        _module(f"vllm.vllm_flash_attn.{folder}").__path__ = [str(package / "vllm_flash_attn" / folder)]


def _stand_in_operators(device: str) -> None:
    """Define the operators of `_C` that the models use, and those that vLLM looks up while it is imported."""
    import torch

    _module("vllm._C_stable_libtorch")
    made: Any = torch.library.Library
    library = made("_C", "FRAGMENT")
    _module("hybridfuzz_stood_in_operators", library=library)  # keeps them alive

    def operator(schema: str, function: Callable[..., None]) -> None:
        library.define(schema)
        library.impl(schema.split("(", maxsplit=1)[0], function, "CompositeExplicitAutograd")

    def silu_and_mul(result: Any, values: Any) -> None:
        half = values.shape[-1] // 2
        result.copy_(torch.nn.functional.silu(values[..., :half]) * values[..., half:])

    def rms_norm(result: Any, values: Any, weight: Any, epsilon: float) -> None:
        wide = values.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
        result.copy_(wide.to(values.dtype) * weight if weight is not None else wide)

    def fused_add_rms_norm(values: Any, residual: Any, weight: Any, epsilon: float) -> None:
        residual.add_(values)
        rms_norm(values, residual, weight, epsilon)

    def apply_repetition_penalties(logits: Any, in_prompt: Any, in_output: Any, penalties: Any) -> None:
        from vllm._custom_ops import apply_repetition_penalties_torch

        apply_repetition_penalties_torch(logits, in_prompt, in_output, penalties)

    operator(
        "apply_repetition_penalties_(Tensor! logits, Tensor prompt_mask, Tensor output_mask, "
        "Tensor repetition_penalties) -> ()",
        apply_repetition_penalties,
    )
    operator("silu_and_mul(Tensor! result, Tensor input) -> ()", silu_and_mul)
    operator("rms_norm(Tensor! result, Tensor input, Tensor? weight, float epsilon) -> ()", rms_norm)
    operator(
        "fused_add_rms_norm(Tensor! input, Tensor! residual, Tensor? weight, float epsilon) -> ()", fused_add_rms_norm
    )
    operator(
        "selective_scan_fwd(Tensor u, Tensor! delta, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor!? z, "
        "Tensor? delta_bias, bool delta_softplus, Tensor? query_start_loc, Tensor? cache_indices, "
        "Tensor? has_initial_state, Tensor! ssm_states, int null_block_id, int block_size, Tensor? first, "
        "Tensor? last, Tensor? initial, Tensor? cu_chunk_seqlen, Tensor? last_chunk_indices) -> ()",
        _selective_scan,
    )
    compiled: Any = torch.ops._C
    compiled.weak_ref_tensor = lambda tensor: tensor
    if device == "cuda":
        compiled.get_cuda_view_from_cpu_tensor = _cuda_view
    for name in (
        "rotary_embedding", "silu_and_mul_quant", "static_scaled_fp8_quant", "dynamic_scaled_fp8_quant",
        "dynamic_per_token_scaled_fp8_quant", "fused_qk_norm_rope", "rms_norm_static_fp8_quant",
        "fused_add_rms_norm_static_fp8_quant", "rms_norm_dynamic_per_token_quant", "silu_and_mul_per_block_quant",
    ):  # fmt: skip
        # Named by passes of the compiler, which a speculator imports and nothing here runs.
        operator(f"{name}() -> ()", _absent)
    for name in (
        "cutlass_group_gemm_supported", "cutlass_scaled_mm_supports_block_fp8", "cutlass_scaled_mm_supports_fp4",
        "cutlass_scaled_mm_supports_fp8", "mxfp4_experts_quant_supported", "cutlass_sparse_scaled_mm_supported",
    ):  # fmt: skip
        setattr(compiled, name, lambda *_: False)
    utilities: Any = torch.ops._C_cuda_utils
    utilities.get_max_shared_memory_per_block_device_attribute = lambda _: 232448


def _selective_scan(
    u: Any, delta: Any, a: Any, b: Any, c: Any, d: Any, z: Any, bias: Any, softplus: bool, starts: Any, slots: Any,
    has_initial: Any, states: Any, null: int, *_: Any,
) -> None:  # fmt: skip
    """Mamba 1's prefill, token by token: u, delta, z [channels, tokens]; b, c [1, state, tokens]; rows `starts`.

    The output replaces z, or delta where there is no gate. Rows at the null block are skipped.
    """
    import torch

    steps = delta.float() + (0.0 if bias is None else bias.float()[:, None])
    steps = torch.nn.functional.softplus(steps) if softplus else steps
    output, gates = (delta, None) if z is None else (z, torch.nn.functional.silu(z.float()))
    ends, rows, initial = starts.tolist(), slots.flatten().tolist(), has_initial.tolist()
    for row, slot in enumerate(rows):
        if slot == null:
            continue
        state = states[slot].float() if initial[row] else torch.zeros_like(states[slot], dtype=torch.float32)
        for token in range(ends[row], ends[row + 1]):
            step, value = steps[:, token, None], u[:, token].float()
            state = torch.exp(step * a) * state + step * value[:, None] * b[0, :, token].float()
            result = (state * c[0, :, token].float()).sum(-1)
            result = result if d is None else result + d * value
            output[:, token] = (result if gates is None else result * gates[:, token]).to(output.dtype)
        states[slot] = state.to(states.dtype)


def _declare_batch_invariance() -> None:
    """vLLM refuses the mode for state layers, whose Triton kernels compute each row by itself. Whether they are batch
    invariant is what the exact reference then checks."""
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

    for kind in MambaAttentionBackendEnum:
        try:
            backend: Any = kind.get_class()
        except (ImportError, ValueError):  # of other platforms, or not registered
            continue
        backend.supports_batch_invariance = classmethod(lambda cls: True)


class _Pinned:
    """Pinned host memory as CUDA sees it."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = {
            "shape": (tensor.numel() * tensor.element_size(),), "typestr": "|u1",
            "data": (tensor.data_ptr(), False), "version": 2, "strides": None,
        }  # fmt: skip


def _cuda_view(tensor: Any) -> Any:
    """A device tensor over pinned host memory (unified virtual addresses)."""
    import torch

    if tensor.numel() == 0:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="cuda")
    assert tensor.is_contiguous() and tensor.is_pinned(), "only pinned, contiguous memory has a device address"
    flat = torch.as_tensor(_Pinned(tensor), device="cuda")
    assert flat.data_ptr() == tensor.data_ptr()
    return flat.view(tensor.dtype).view(tensor.shape)


def _stand_in_platform() -> None:
    """Make vLLM see an A100 (its kernels need no launch dependency) whose tensors lie on the CPU."""
    import torch
    from vllm import platforms
    from vllm.platforms import cuda
    from vllm.platforms.interface import DeviceCapability

    kind: Any = cuda.NonNvmlCudaPlatform
    kind.get_device_capability = classmethod(lambda cls, device_id=0: DeviceCapability(8, 0))
    kind.get_device_name = classmethod(lambda cls, device_id=0: "NVIDIA A100")
    kind.get_device_total_memory = classmethod(lambda cls, device_id=0: 80 << 30)
    kind.num_compute_units = classmethod(lambda cls, device_id=0: 132)
    kind.device_count = classmethod(lambda cls: 1)
    kind.current_device = classmethod(lambda cls: "cpu")
    kind.device_type, kind.dispatch_key = "cpu", "CPU"
    kind.dist_backend = "gloo"
    kind.is_pin_memory_available = classmethod(lambda cls: False)
    kind.get_device_communicator_cls = classmethod(
        lambda cls: "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"
    )
    kind.get_current_memory_usage = classmethod(lambda cls, device=None: 0.0)
    kind.graph_pool_handle = lambda _: object()
    platforms._current_platform = kind()
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda device=None: (8, 0)


def _without_subprocesses(stood_in: bool) -> None:
    """Make vLLM inspect models in this process, the only one with stand-ins, and prefer its native operators."""
    if not stood_in:
        return
    from vllm.config.kernel import IrOpPriorityConfig
    from vllm.model_executor.models import registry
    from vllm.platforms.cuda import CudaPlatformBase

    native = classmethod(lambda cls, config: IrOpPriorityConfig.with_default(["native"]))
    CudaPlatformBase.get_default_ir_op_priority = native
    registry._run_in_subprocess = lambda function: function()
