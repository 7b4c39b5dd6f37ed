"""What only vLLM before 0.28 needs: a process that is started as a CPU's, and a V1 runner that a CPU can run.

platform        up to 0.27 vLLM takes its platform from the distribution's version, which a wheel without "cpu" in
                it does not name; VLLM_TARGET_DEVICE is read since 0.28
stand-ins       `vllm.v1.worker.cpu.shm` replaces CUDA's events and streams since 0.23
n-gram module   0.14 and 0.15 import numba for it at the top of the runner
V1 runner       up to 0.23 `CPUModelRunner` replaces Triton kernels by compiled operators, shares the host's buffers
                with the device and refuses speculation. The runner here is `GPUModelRunner` itself; only device
                properties and synchronization are left out
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from importlib.util import find_spec
from typing import Any, cast

NGRAM = "vllm.v1.spec_decode.ngram_proposer"


def prepare_import() -> None:
    """Make this process a CPU's for vLLM. Before any of its other modules is imported."""
    import torch
    from vllm import platforms

    if not hasattr(torch._C._cpu, "_is_avx512_supported"):  # 0.17 reads it; newer PyTorch has it elsewhere
        cpu: Any = torch._C._cpu
        cpu._is_avx512_supported = lambda: False
    if not platforms.current_platform.is_cpu():
        from vllm.platforms.cpu import CpuPlatform

        platforms._current_platform = platform = CpuPlatform()
        platform.is_pin_memory_available = lambda: False
        _disable_pinning()
    if find_spec("vllm.v1.worker.cpu") is None or find_spec("vllm.v1.worker.cpu.shm") is None:
        _stand_in_for_cuda()
    else:
        import vllm.v1.worker.cpu.shm  # noqa: F401  vLLM's own stand-ins
    if find_spec("numba") is None:
        stand_in_for_ngram(object)


def stand_in_for_ngram(proposer: type) -> None:
    """Put a module in the place of the n-gram proposer's, which needs numba."""
    stand_in = types.ModuleType(NGRAM)
    stand_in.NgramProposer = proposer  # type: ignore[attr-defined]
    sys.modules[NGRAM] = stand_in


def _disable_pinning() -> None:
    """Revise what `vllm.utils` decided before the platform was known."""
    from vllm.utils import platform_utils, torch_utils

    getattr(platform_utils.is_pin_memory_available, "cache_clear", _nothing)()
    for function in vars(torch_utils).values():
        if inspect.isfunction(function) and function.__defaults__ and "pin_memory" in function.__code__.co_varnames:
            function.__defaults__ = tuple(False if value is True else value for value in function.__defaults__)
    if hasattr(torch_utils, "PIN_MEMORY"):
        torch_utils.PIN_MEMORY = False


def _nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


class _Event:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.record = self.wait = self.synchronize = _nothing
        self.query = lambda: True


class _Stream:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.wait_stream = self.wait_event = self.record_event = self.synchronize = _nothing
        self.query = lambda: True

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was changed."""


def _stand_in_for_cuda() -> None:
    """Replace what `vllm.v1.worker.cpu.shm` of newer releases replaces, as far as the V1 runner uses it."""
    import torch

    changed: Any = torch
    changed.Event = changed.cuda.Event = _Event
    changed.cuda.Stream = _Stream
    # A function of its own for each name: Dynamo has a handler per function.
    for module, names in (
        (changed.cuda, ("set_stream", "synchronize", "empty_cache")),
        (changed.accelerator, ("synchronize", "empty_cache")),
    ):
        for name in names:
            setattr(module, name, lambda *_, **__: None)
    for name in ("current_stream", "stream"):
        setattr(changed.cuda, name, lambda *_, **__: _Stream())
    changed.Tensor.pin_memory = lambda tensor, *_, **__: tensor
    changed.Tensor.record_stream = _nothing
    make = torch.tensor

    def tensor(*arguments: Any, device: Any = None, **keywords: Any) -> Any:
        """0.15 and 0.16 name CUDA as the device of the addresses of align copies."""
        keywords["device"] = "cpu" if device == "cuda" else device
        return make(*arguments, **keywords)

    changed.tensor = tensor


_OF_A_GPU = (
    "_copy_draft_token_ids_to_cpu",
    "_get_draft_token_ids_cpu",
    "_copy_valid_sampled_token_count",
    "_get_valid_sampled_token_count",
)
"""Methods that 0.24 overrides for a CPU. Its copy of the accepted counts leaves the device's positions optimistic."""


def _as_on_a_gpu(runner: Any) -> type:
    """Return a CPU's runner with the methods of a GPU's where 0.24 differs: it zeroes nothing for its own attention."""
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    names = [name for name in _OF_A_GPU if name in vars(runner)]
    if "zero_()" not in inspect.getsource(runner._zero_block_ids):
        names.append("_zero_block_ids")
    if not names:
        return cast(type, runner)
    return type("Runner", (runner,), {name: vars(GPUModelRunner)[name] for name in names})


@functools.cache
def v1_runner() -> type:
    """Return the class of the V1 runner: vLLM's own for a CPU where that runs Triton kernels. Finding out reads source
    text, once."""
    from vllm.v1.worker import cpu_model_runner
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    wrapper = getattr(cpu_model_runner, "_torch_cuda_wrapper", None)
    if wrapper and "wait_stream" not in inspect.getsource(wrapper):
        # 0.24's stand-ins for the runner's streams lack what asynchronous scheduling uses; those in `shm` have it.
        cpu_model_runner._torch_cuda_wrapper = contextlib.nullcontext
    own: Any = cpu_model_runner.CPUModelRunner
    replaces = getattr(own, "_postprocess_triton", None)
    if find_spec("vllm.v1.worker.cpu") and (replaces is None or "HAS_TRITON" in inspect.getsource(replaces)):
        return _as_on_a_gpu(own)

    class Runner(GPUModelRunner):
        """`GPUModelRunner` with a CPU as its device."""

        def __init__(self, vllm_config: Any, device: Any) -> None:
            super().__init__(vllm_config, device)
            self.use_cuda_graph = False
            self.cascade_attn_enabled = False

        def load_model(self, *_: Any, **__: Any) -> None:
            """Take the given model, as `CPUModelRunner` does."""
            self.model = cpu_model_runner.get_model(vllm_config=self.vllm_config)
            if hasattr(self, "drafter"):
                self.drafter.load_model(self.model)

        def get_model(self) -> Any:
            """Return the model."""
            return self.model

        def _init_device_properties(self) -> None:
            self.num_sms = 1

        def _sync_device(self) -> None:
            """A CPU has nothing in flight."""

    return Runner
