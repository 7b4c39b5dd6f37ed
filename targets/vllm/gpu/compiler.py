"""Says which kernel Triton compiles: the first traces wait for minutes until all are in its cache."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any


def watch_compiler(runtime: Any, say: Callable[[str], None], waited: dict[str, float]) -> None:
    """Say the number and name of each kernel before Triton compiles it, or loads it from its cache, and count the
    seconds as `compiling`. `runtime` is `triton.knobs.runtime`."""
    before, after = runtime.jit_cache_hook, runtime.jit_post_compile_hook
    count, began = 0, 0.0

    def begin(*arguments: Any, **keywords: Any) -> Any:
        nonlocal count, began
        count, began = count + 1, perf_counter()
        say(f"compiling kernel {count}, {keywords['fn'].name}")
        return before(*arguments, **keywords) if before else None  # a true value would leave the kernel out

    def end(*arguments: Any, **keywords: Any) -> Any:
        waited["compiling"] = waited.get("compiling", 0.0) + perf_counter() - began
        return after(*arguments, **keywords) if after else None

    runtime.jit_cache_hook, runtime.jit_post_compile_hook = begin, end
