"""Whose code the time on vLLM is spent in: `python benchmarks/vllm_profile.py [--target vllm@0.33.0] [--traces 40]`.

A sampling profiler: a timer fires every two milliseconds of CPU time, and the time since the last sample counts for
the innermost function that is not a library's (torch, numpy, standard library). Imports and the compilation of
kernels are excluded: every trace has run once before.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType

from hybridfuzz.harness.lockstep import run_trace
from hybridfuzz.harness.workload import draw_trace
from hybridfuzz.targets.base.registry import load_factory, prepare
from hybridfuzz.targets.vllm import factory as factory_module

HERE = str(Path(factory_module.__file__).parents[2])
"""The `hybridfuzz` folder as this interpreter imports it."""
INTERPRETER = f"{HERE}/targets/vllm/interpreter"
INTERVAL_SECONDS = 0.002
OWNERS = {
    "vllm": "vLLM",
    "interpreter": "vLLM's Triton kernels, interpreted",
    "hybridfuzz": "hybridfuzz: reference, oracles, adapter, shadow layers",
    "": "not attributed",
}


def owner(frame: FrameType | None) -> str:
    """Whose function the innermost frame outside of libraries is."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(("<kernel", INTERPRETER)):
            return "interpreter"
        if path.startswith(HERE):
            return "hybridfuzz"
        if "/tree/vllm/" in path or frame.f_code.co_name == "decorate_context":
            return "vllm"  # torch's decorator around vLLM's own methods (inference mode)
        frame = frame.f_back
    return ""


class Sampler:
    """CPU seconds by owner while it is on."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._last = 0.0

    def __enter__(self) -> Sampler:
        self._last = time.process_time()
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_SECONDS, INTERVAL_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        now = time.process_time()
        self.seconds[owner(frame)] += now - self._last  # type: ignore[assignment]
        self._last = now


def measure(traces: int, overrides: dict[str, object]) -> None:
    """Profile and print; runs in the engine's interpreter."""
    factory = load_factory("vllm")
    drawn = [draw_trace(factory.capabilities, 5, index, overrides, factory.supports) for index in range(traces)]
    for trace in drawn:
        run_trace(factory, trace)
    with Sampler() as sampler:
        steps = sum(run_trace(factory, trace).steps for trace in drawn)
    total = sum(sampler.seconds.values())
    print(f"{overrides}: {steps} steps, {total:.1f} s, {steps / total:.0f} steps/s")
    for name, title in OWNERS.items():
        print(f"  {sampler.seconds[name] / total:6.1%}  {title}")


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
