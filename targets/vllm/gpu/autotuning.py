"""Chooses the configuration of an autotuned kernel without timing it.

Triton compiles and times each configuration of such a kernel, for each shape. With three TF32 products that takes
minutes before the first step of a gated delta net, what it chooses differs from worker to worker, and a configuration
that spills registers makes the device reserve memory for all threads that it can hold, for as long as the process
lives. Which configuration runs does not change what a kernel computes beyond rounding.
"""

from __future__ import annotations

from typing import Any

TRIED = 4
"""Configurations that are compiled, at most, where each one spills."""


def choose_in_registers(autotuner: Any) -> None:
    """Make `triton.runtime.autotuner.Autotuner` take the first configuration that keeps everything in registers, or of
    the first few the one that spills least."""
    prune = autotuner.prune_configs

    def prune_configs(self: Any, keywords: dict[str, Any]) -> list[Any]:
        candidates, tried = prune(self, keywords), list[tuple[int, int]]()
        for index, candidate in enumerate(candidates):
            if (spills := _spills(self, candidate, keywords)) is not None:
                tried.append((spills, index))
            if spills == 0 or len(tried) == TRIED:
                break
        return [candidates[min(tried)[1]]] if tried else candidates

    autotuner.prune_configs = prune_configs
    autotuner._bench = lambda self, *arguments, config, **keywords: [0.0]


def _spills(autotuner: Any, candidate: Any, keywords: dict[str, Any]) -> int | None:
    """Compile one configuration; return how many registers it spills, or None if the device cannot run it."""
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.errors import OutOfResources, PTXASError

    options = {**keywords, **candidate.all_kwargs(), "warmup": True}
    try:
        kernel = autotuner.fn.run(*autotuner.nargs.values(), **options)
        kernel._init_handles()
    except (OutOfResources, CompileTimeAssertionFailure, PTXASError):
        return None
    return int(kernel.n_spills)
