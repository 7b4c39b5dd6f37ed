"""A fast interpreter for Triton kernels on a CPU, in place of Triton's own.

vLLM's model runner launches some twenty small bookkeeping kernels a step. Triton's interpreter
(TRITON_INTERPRET=1) needs 100-400 ms a step for them, because every scalar is a numpy array behind
several layers of calls. Here the kernel's unmodified source is compiled, once for each set of
argument types and constants, to a Python function: scalars are Python numbers, blocks are numpy
arrays, constant branches are gone, and a block that a mask cuts short is computed only that far.

It reproduces Triton's *interpreter* bit for bit (which is not always what a GPU does), or it does
not run at all: types, operations and functions are checked while a kernel is compiled, before
anything has run, and a kernel with anything unknown (bf16 and fp16, atomics, two dimensions,
variables that change their type, ...) is left to Triton's interpreter. `fallbacks()` returns these kernels
with the reasons, `counts()` the numbers of launches.

Differences, all of them in kernels that are wrong already:
- memory outside of the launch's tensors, or at a null pointer, raises with the kernel's name;
  accesses through pointer tables are otherwise not bounded (see `memory`);
- a block of int32 indices that would pass 2**31 raises instead of wrapping;
- a load or a cast whose result is unused is left out, so it cannot fail either;
- lanes that a mask cuts off are not loaded by a later load without a mask;
- a signalling NaN that is copied as a scalar float becomes a quiet one.

Alternatives looked for (three look-ups, late 2026): Triton 3.9.0, the newest, has the interpreter
measured above; triton-cpu (a compiler, not an interpreter) has no wheel on the package index; no
maintained fast interpreter was found.
"""

from __future__ import annotations

from triton.runtime.interpreter import InterpretedFunction

from . import launch


def install() -> None:
    """Run every kernel that can be reproduced exactly with our own code, from now on."""
    InterpretedFunction.run = launch.run


def uninstall() -> None:
    """Give all kernels back to Triton's interpreter."""
    InterpretedFunction.run = launch._original


def fallbacks() -> dict[str, str]:
    """The kernels that Triton's own interpreter ran, each with the (last) reason."""
    return dict(launch.fallbacks)


def counts() -> tuple[dict[str, int], dict[str, int]]:
    """Launches by kernel: run by our own code, and by Triton's interpreter."""
    return dict(launch.native_launches), dict(launch.fallback_launches)
