"""A fast interpreter for Triton kernels on a CPU, in place of Triton's own.

Triton's interpreter (TRITON_INTERPRET=1) needs milliseconds for a small kernel, because every scalar is a numpy array
behind several layers of calls. Here the kernel's unmodified source is compiled, once for each set of argument types and
constants, to a Python function: scalars are Python numbers, blocks are numpy arrays, constant branches are gone, and a
block that a mask cuts short is computed only that far.

It reproduces Triton's *interpreter* bit for bit, or leaves the kernel to it: types, operations and functions are
checked while a kernel is compiled, before anything has run. docs/explanation/triton-interpreter.md has the limits.

    launch         runs a launch: binds its arguments, finds or compiles the function for their types
    compiler       statements of a kernel, as lines of Python
    expressions    expressions, and functions that are inlined
    operators      operators, by Triton's rules for types
    language       functions of triton.language
    memory_ops     loads and stores, in generated code
    values         what is known of a value while a kernel is compiled
    emit           writes the generated code
    optimize       leaves out what generated code does not use
    arithmetic     functions that generated code calls
    memory         loads and stores by address, each checked
    host           what the program around it gives: an exception for wrong accesses, a listener for lines

It is a package of its own: it imports numpy, torch and triton, and nothing of the program that uses it.
"""

from __future__ import annotations

from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder

from . import launch
from .host import Host, Lines, OutOfBounds, Unheard


def install(error: type[Exception] = OutOfBounds, lines: Lines | None = None) -> None:
    """Run every kernel that can be reproduced exactly with our own code, from now on.

    A wrong access raises `error`; `lines` hears of the lines that kernels execute, if it wants them.
    """
    Host.error, Host.lines = error, lines or Unheard()
    launch.forget_kernels()
    InterpretedFunction.run = launch.run
    InterpreterBuilder.create_masked_store = launch.masked_store


def uninstall() -> None:
    """Give all kernels back to Triton's interpreter."""
    InterpretedFunction.run = launch._original
    InterpreterBuilder.create_masked_store = launch._masked_store


def fallbacks() -> dict[str, str]:
    """Return the kernels that Triton's own interpreter ran, each with the (last) reason."""
    return dict(launch.fallbacks)


def counts() -> tuple[dict[str, int], dict[str, int]]:
    """Return the launches by kernel: run by our own code, and by Triton's interpreter."""
    return dict(launch.native_launches), dict(launch.fallback_launches)


__all__ = ["Lines", "OutOfBounds", "counts", "fallbacks", "install", "uninstall"]
