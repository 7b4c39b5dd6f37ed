"""Says which kernel Triton compiles: the first traces wait for minutes until all are in its cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def watch_compiler(runtime: Any, say: Callable[[str], None]) -> None:
    """Say the number and name of each kernel before Triton compiles it, or loads it from its cache. `runtime` is
    `triton.knobs.runtime`."""
    before, count = runtime.jit_cache_hook, 0

    def hook(*arguments: Any, **keywords: Any) -> Any:
        nonlocal count
        count += 1
        say(f"compiling kernel {count}, {keywords['fn'].name}")
        return before(*arguments, **keywords) if before else None  # a true value would leave the kernel out

    runtime.jit_cache_hook = hook
