"""Runs a launch with Triton's own interpreter and with the fast one, and compares all memory bit for bit."""

import os
from collections.abc import Sequence
from typing import Any

import pytest

if os.environ.get("TRITON_INTERPRET") != "1":
    # Importing triton decides for the whole process whether kernels are compiled or interpreted:
    # test_in_own_process.py runs these tests in a process of their own.
    pytest.skip("TRITON_INTERPRET=1 is not set", allow_module_level=True)
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.runtime.interpreter import InterpretedFunction  # noqa: E402

from hybridfuzz.targets.triton_interpreter import launch  # noqa: E402


def ours(jitted: Any, grid: Any, *args: Any, **kwargs: Any) -> bool:
    """Run a launch with our interpreter; false where it leaves it to Triton's (and nothing ran)."""
    return launch.launch(launch.Kernel(jitted), args, kwargs, grid)


def storages(values: Sequence[Any]) -> list[Any]:
    """The bytes of all storages below some tensors, each once."""
    found = {}
    for value in values:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            found[storage.data_ptr()] = torch.tensor([], dtype=torch.uint8).set_(storage)
    return list(found.values())


def both(jitted: Any, grid: Any, *args: Any, reached: Sequence[Any] = (), **kwargs: Any) -> None:
    """Compare on all tensors that a launch is given, and on those it reaches through tables."""
    memory = storages([*args, *kwargs.values(), *reached])
    before = [part.clone() for part in memory]
    InterpretedFunction_run(jitted, *args, grid=grid, warmup=False, **kwargs)
    want = [part.clone() for part in memory]
    for part, old in zip(memory, before, strict=True):
        part.copy_(old)
    assert ours(jitted, grid, *args, **kwargs), launch.fallbacks.get(jitted.fn.__name__)
    for part, expected in zip(memory, want, strict=True):
        assert torch.equal(part, expected), (part != expected).nonzero().flatten()[:20]


InterpretedFunction_run = InterpretedFunction.run if InterpretedFunction.run is not launch.run else launch._original
