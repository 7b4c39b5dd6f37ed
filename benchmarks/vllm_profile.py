"""Whose code the time on vLLM is spent in: `python benchmarks/vllm_profile.py [--target vllm@0.33.0] [--traces 40]`.

cProfile over whole traces, imports and the first bring-up excluded. Time in libraries (torch, numpy, the standard
library, built-in functions) counts for whoever called them, followed up through all callers.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from hybridfuzz.harness.lockstep import run_trace
from hybridfuzz.harness.workload import draw_trace
from hybridfuzz.targets.base.registry import load_factory, prepare
from hybridfuzz.targets.vllm import factory as factory_module

ROUNDS_MAX = 60
HERE = Path(factory_module.__file__).parents[2]
"""The `hybridfuzz` folder as this interpreter imports it."""
OWNERS = {
    "interpreter": "vLLM's Triton kernels, interpreted",
    "hybridfuzz": "hybridfuzz: reference, oracles, adapter, shadow layers",
    "vllm": "vLLM",
}


def owner(function: tuple[str, int, str]) -> str:
    """Whose function it is; "" for libraries."""
    path = function[0]
    if path.startswith(("<kernel", str(HERE / "targets" / "vllm" / "interpreter"))):
        return "interpreter"
    if path.startswith(str(HERE)):
        return "hybridfuzz"
    return "vllm" if "/tree/vllm/" in path else ""


def shares(stats: Any) -> dict[str, float]:
    """Seconds by owner; library time is passed on to callers in proportion."""
    seconds: dict[str, float] = defaultdict(float)
    pending = {function: row[2] for function, row in stats.items()}
    for _ in range(ROUNDS_MAX):
        passed: dict[Any, float] = defaultdict(float)
        for function, time in pending.items():
            name = owner(function)
            callers = stats[function][4]
            total = sum(row[3] for row in callers.values())
            if name or not callers or not total:
                seconds[name or "nobody"] += time
                continue
            for caller, row in callers.items():
                passed[caller] += time * row[3] / total
        pending = passed
        if sum(pending.values()) < 1e-3:
            break
    seconds["nobody"] += sum(pending.values())
    return seconds


def measure(traces: int, overrides: dict[str, object]) -> None:
    """Profile and print; runs in the engine's interpreter."""
    factory = load_factory("vllm")
    drawn = [draw_trace(factory.capabilities, 5, index, overrides, factory.supports) for index in range(traces + 1)]
    run_trace(factory, drawn[0])
    profile = cProfile.Profile()
    profile.enable()
    steps = sum(run_trace(factory, trace).steps for trace in drawn[1:])
    profile.disable()
    result = shares(pstats.Stats(profile).stats)  # type: ignore[attr-defined]
    total = sum(result.values())
    print(f"{overrides}: {steps} steps, {total:.1f} s under the profiler")
    for name, title in {**OWNERS, "nobody": "not attributed"}.items():
        print(f"  {result.get(name, 0.0) / total:6.1%}  {title}")


def main() -> int:
    """Start ourselves again in the engine's interpreter, or measure if this is it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="vllm@0.33.0")
    parser.add_argument("--traces", type=int, default=40)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        for runner in ("v2", "v1"):
            measure(arguments.traces, {"runner": runner})
        return 0
    launch = prepare(arguments.target, print)
    command = [str(launch.python), __file__, "--inside", "--traces", str(arguments.traces)]
    return subprocess.run(command, env={**os.environ, **launch.env}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
