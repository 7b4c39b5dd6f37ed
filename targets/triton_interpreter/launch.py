"""Runs a launch: binds its arguments, finds or compiles the function for their types, calls it."""

from __future__ import annotations

import collections
import inspect
import math
import re
from typing import Any

import numpy as np
import torch
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder

from . import arithmetic, memory
from .compiler import Compiler
from .expressions import unwrap
from .host import Host
from .optimize import optimize
from .values import NUMPY, SIZE, Unsupported, Untruncatable, Value, const

ELEMENTS: dict[torch.dtype, str] = {
    torch.bool: "int1",
    torch.float32: "fp32",
    torch.float64: "fp64",
} | {getattr(torch, name): name for name in SIZE if name.startswith(("int", "uint")) and name != "int1"}
VARIANTS = 200  # of one kernel: a "constant" that differs at each launch would fill the memory

fallbacks: dict[str, str] = {}
native_launches: collections.Counter[str] = collections.Counter()
fallback_launches: collections.Counter[str] = collections.Counter()


class Kernel:
    """One jitted function: its parameters, and its compiled versions by argument types."""

    def __init__(self, jitted: Any) -> None:
        self.fn = jitted.fn
        self.name = jitted.fn.__name__
        parameters = inspect.signature(self.fn).parameters
        self.names = list(parameters)
        self.place = {name: i for i, name in enumerate(self.names)}
        self.defaults = [unwrap(p.default) for p in parameters.values()]
        self.required = [i for i, p in enumerate(parameters.values()) if p.default is inspect.Parameter.empty]
        self.constant = ["constexpr" in str(p.annotation) for p in parameters.values()]
        self.variants: dict[Any, Any] = {}
        self.marked = Host.lines.wanted

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        values = [*args, *self.defaults[len(args) :]]
        for name, value in kwargs.items():
            place = self.place.get(name)
            if place is not None:  # else an option of the launch, such as num_warps
                values[place] = value
        missing = [i for i in self.required if i >= len(args) and values[i] is inspect.Parameter.empty]
        if len(values) != len(self.names) or missing:
            raise TypeError(f"kernel {self.name}: arguments do not match its signature")
        return values

    def function(self, key: tuple[Any, ...]) -> Any:
        """The compiled function, or None with the reason noted in `fallbacks`."""
        if len(self.variants) >= VARIANTS:
            fallbacks[self.name] = f"more than {VARIANTS} sets of constants"
            return None
        try:
            self.variants[key] = self.compile(key)
        except Unsupported as error:
            self.variants[key] = None
            fallbacks[self.name] = str(error)
        return self.variants[key]

    def compile(self, key: tuple[Any, ...]) -> Any:
        arguments: dict[str, Value] = {}
        names: list[str] = []
        for i, (name, (kind, what, *_)) in enumerate(zip(self.names, key, strict=True)):
            if kind == "const":
                arguments[name] = const(what)
            elif kind == "ptr":
                arguments[name] = Value("ptr", f"p{i}", element=what, low=f"p{i}", high=f"high{i}", aligned=True)
                names += [f"p{i}", f"high{i}"]
            else:
                arguments[name] = Value(what, f"p{i}")
                names.append(f"p{i}")
        try:
            lines = Compiler(self.fn, arguments, cut=True, marked=self.marked).compile()
        except Untruncatable:
            try:
                lines = Compiler(self.fn, arguments, cut=False, marked=self.marked).compile()
            except Untruncatable as error:
                raise Unsupported("a block that is cut nevertheless") from error
        source = "\n".join(
            [
                f"def kernel(grid0, grid1, grid2, {', '.join(names)}):",
                "  def program(pid0, pid1, pid2):",
                *lines,
                "  for x in range(grid0):",
                "    for y in range(grid1):",
                "      for z in range(grid2):",
                "        program(x, y, z)",
            ]
        )
        return load(self.name, optimize(source))


NAMESPACE: dict[str, Any] = {
    **{name: getattr(arithmetic, name) for name in dir(arithmetic) if name[0].islower()},
    **{name: getattr(np, name) for name in ("where", "fmod", "minimum", "maximum", "fmin", "fmax")},
    **{name: getattr(np, name) for name in ("exp", "log", "floor", "ceil")},
    **{f"np_{name}": np.dtype(name).type for name in NUMPY.values()},
    **{f"scalars_{name}": view for name, view in memory.SCALARS.items()},
    **{name: getattr(memory, name) for name in dir(memory) if name.startswith(("load_", "store_"))},
    "elements": memory.elements,
    "load_slow": memory.load,
    "store_slow": memory.store,
    "PAGE": memory.PAGE,
    "TOP": memory.TOP,
    "INF": math.inf,
    "NAN": math.nan,
}


def load(name: str, source: str) -> Any:
    scope = NAMESPACE | {"mark": Host.lines.add}
    for indices, type_, n in set(re.findall(r"\b(arange_(\w+?)_(\d+))\b", source)):
        scope[indices] = np.arange(int(n), dtype=type_)
    exec(compile(source, f"<kernel {name}>", "exec"), scope)
    scope["kernel"].source = source
    return scope["kernel"]


_kernels: dict[Any, Kernel] = {}
_original = InterpretedFunction.run
_masked_store = InterpreterBuilder.create_masked_store


def forget_kernels() -> None:
    """Compile every kernel again, since it reports lines to the listener that it was compiled for."""
    _kernels.clear()


def run(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
    """In place of InterpretedFunction.run."""
    if warmup:
        return None
    kernel = _kernels.get(self)
    if kernel is None or kernel.marked is not Host.lines.wanted:
        kernel = _kernels[self] = Kernel(self)
    if not self.pre_run_hooks and launch(kernel, args, kwargs, grid):
        native_launches[kernel.name] += 1
        return None
    fallback_launches[kernel.name] += 1
    return _original(self, *args, grid=grid, warmup=warmup, **kwargs)


def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
    """In place of InterpreterBuilder.create_masked_store, whose masks may have become bytes in an operation on bits: it
    then refuses them."""
    mask.data = mask.data.astype(bool)
    return _masked_store(self, pointers, value, mask, *rest)


def launch(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], grid: Any) -> bool:
    """Run a launch by compiled code. Return False if it is left to Triton's interpreter."""
    values = kernel.bind(args, kwargs)
    key: list[tuple[Any, ...]] = []
    given: list[int] = []
    tensors: list[torch.Tensor] = []
    for value, is_constant in zip(values, kernel.constant, strict=True):
        kind = type(value)
        if is_constant or value is None:
            constant = unwrap(value)
            key.append(("const", constant, type(constant)))
        elif kind is torch.Tensor or isinstance(value, torch.Tensor):
            address, element = value.data_ptr(), ELEMENTS.get(value.dtype)
            if element is None or address % SIZE[element] or not value.is_cpu:
                fallbacks[kernel.name] = f"a tensor of {value.dtype}"
                return False
            key.append(("ptr", element))
            given += (address, address + value.nbytes)
            tensors.append(value)
        elif kind is bool:
            key.append(("scalar", "int1"))
            given.append(value)
        elif kind is int and -(2**63) <= value < 2**63 and not 2**31 <= value < 2**32:
            key.append(("scalar", "int32" if -(2**31) <= value < 2**31 else "int64"))
            given.append(value)
        elif kind is float:
            key.append(("const", value, float))
        else:
            fallbacks[kernel.name] = f"an argument like {value!r:.60}"
            return False
    signature = tuple(key)
    try:
        function = kernel.variants[signature]
    except KeyError:
        function = kernel.function(signature)
    except TypeError:  # a constant that cannot be hashed
        fallbacks[kernel.name] = "a constant that cannot be hashed"
        return False
    if function is None:
        return False
    if callable(grid):
        grid = grid(dict(zip(kernel.names, values, strict=True)))
    outer = memory.Launch.kernel, memory.Launch.tensors
    memory.Launch.kernel, memory.Launch.tensors = kernel.name, tuple(tensors)
    try:
        with np.errstate(all="ignore"):
            function(*grid, *(1,) * (3 - len(grid)), *given)
    finally:
        memory.Launch.kernel, memory.Launch.tensors = outer
    return True
