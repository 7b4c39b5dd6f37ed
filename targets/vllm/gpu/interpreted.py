"""A real model on a CPU: vLLM's CPU runners with the model's own Triton kernels, interpreted.

The runner's small kernels go through the CPU adapter's fast interpreter, the model's through Triton's own. Autotuned
kernels take their first configuration: there is nothing to time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from .. import interpreted_kernels
from ..versions import as_on_gpu
from ..versions.wrapping import replaced


def prepare() -> None:
    """Patch Triton's interpreter and vLLM for models on a CPU, once per process."""
    import vllm.v1.worker.cpu.shm  # noqa: F401  vLLM's own stand-ins for CUDA events, streams and pinned memory
    from vllm.v1.sample.sampler import Sampler
    from vllm.v1.worker import mamba_utils

    torch.set_num_threads(1)
    launching: Any = torch.cuda
    launching.device = lambda _: nullcontext()
    _take_first_configuration()
    _convert_what_grids_exchange()
    _convert_masks()
    _look_up_functions()
    _give_counters_types()
    interpreted_kernels.interpret()
    as_on_gpu.sample_in_torch()
    mamba_utils._TEMPORAL_TILES = 1
    Sampler.greedy_sample = staticmethod(partial(torch.argmax, dim=-1))


def _take_first_configuration() -> None:
    from triton.runtime.autotuner import Autotuner

    def run(self: Any, *arguments: Any, **keywords: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, arguments, strict=False))
        self.best_config = self.configs[0]
        return self.fn.run(*arguments, **keywords, **self.configs[0].all_kwargs())

    Autotuner.run = run


def _convert_what_grids_exchange() -> None:
    """A grid function may exchange tensor arguments (`causal_conv1d_fn` does): Triton's interpreter converts arguments
    to pointers before it calls the grid, and not again."""
    from triton.runtime import interpreter

    initialise = interpreter.GridExecutor.__init__

    def init(self: Any, *arguments: Any, **keywords: Any) -> None:
        initialise(self, *arguments, **keywords)
        grid = self.grid
        if not callable(grid):
            return

        def converting(bound: dict[str, Any]) -> Any:
            programs = grid(bound)
            for name, value in bound.items():
                if isinstance(value, torch.Tensor):
                    bound[name] = interpreter._implicit_cvt(value)
            return programs

        self.grid = converting

    interpreter.GridExecutor.__init__ = init


def _convert_masks() -> None:
    """A mask that is an integer of one bit, as the conjunction of two comparisons of scalars is, is a mask."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def converting(function: Callable[..., Any], at: int) -> Callable[..., Any]:
        def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
            mask = arguments[at]
            if mask.data.dtype != bool:
                mask = TensorHandle(mask.data.astype(bool), mask.dtype)
            return function(self, *arguments[:at], mask, *arguments[at + 1 :], **keywords)

        return call

    for name, place in (("create_masked_load", 1), ("create_masked_store", 2)):
        setattr(InterpreterBuilder, name, converting(getattr(InterpreterBuilder, name), place))


def _look_up_functions() -> None:
    """Kernels of flash-linear-attention call functions of Triton's language under names of their own, which Triton's
    interpreter does not replace: look each up when it is called."""
    from vllm.third_party.flash_linear_attention.ops import op

    for name in ("exp", "exp2", "log", "log2"):
        for module in list(sys.modules.values()):
            if getattr(module, "__name__", "").startswith(op.__package__) and hasattr(module, name):
                setattr(module, name, _looked_up(name))


def _give_counters_types() -> None:
    """A loop's counter is a Python integer in Triton's interpreter, and `i.to(tl.int64)` fails: count in tensors."""
    from triton.runtime.interpreter import _implicit_cvt
    from vllm.third_party.flash_linear_attention.ops import chunk_delta_h

    def counters(*arguments: Any) -> Iterator[Any]:
        for number in range(*[int(one) for one in arguments]):
            yield _implicit_cvt(number)

    chunk_delta_h.range = counters


def _looked_up(name: str) -> Callable[[Any], Any]:
    def call(value: Any) -> Any:
        from triton import language

        return getattr(language, name)(value)

    return call


def runner_v1(vllm_config: Any, device: torch.device, model: Any, apart: bool) -> Any:
    """vLLM's V1 runner for CPUs; `apart` keeps host and "device" copies of its buffers apart."""
    from vllm.v1.worker import cpu_model_runner

    changes = [(cpu_model_runner, "get_model", lambda **_: model), *as_on_gpu.apart_buffers(apart)]
    with replaced(*changes, (torch, "zeros", as_on_gpu.without_pinning(torch.zeros))):
        runner = cpu_model_runner.CPUModelRunner(vllm_config, device)
        runner.load_model()
    return runner
