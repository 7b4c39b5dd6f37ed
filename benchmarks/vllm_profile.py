"""Whose code the time on vLLM is spent in: `python benchmarks/vllm_profile.py [--target vllm@0.33.0] [--traces 40]`.

A sampling profiler: a timer fires every two milliseconds of CPU time, and the time since the last sample counts for
the innermost function that is not a library's (torch, numpy, standard library); what our observation of the host asks
of vLLM counts as ours. Imports and the compilation of kernels are excluded: every trace has run once before. Shares are
of everything, and of everything but the opening of engines, which is mostly vLLM's.

`--proof` compares instead: each trace runs with what engines of one process share, then again without; the exit status
is 1 if any outcome differs. `--leak` shows that it would be noticed: the shared model configuration changes once.
"""

from __future__ import annotations

import argparse
import dis
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets import triton_interpreter
from hybridfuzz.targets.base.registry import load_factory, prepare
from hybridfuzz.targets.vllm import factory as factory_module
from hybridfuzz.targets.vllm.factory import VllmFactory

HERE = str(Path(factory_module.__file__).parents[2])
"""The `hybridfuzz` folder as this interpreter imports it."""
INTERPRETER = f"{HERE}/targets/triton_interpreter"
INTERVAL_SECONDS = 0.002
OBSERVER = "Host."
"""The class of ours that looks at the scheduler through vLLM's own accessors."""
OURS, KERNEL = "hybridfuzz", "interpreter"
OWNERS = {
    "vllm": "vLLM",
    KERNEL: "vLLM's Triton kernels, interpreted",
    OURS: "hybridfuzz: reference, oracles, adapter, shadow layers",
    "": "not attributed",
}


@cache
def entries(code: CodeType) -> frozenset[int]:
    """Offsets at which a function, or a generator, begins to run."""
    return frozenset(one.offset for one in dis.get_instructions(code) if one.opname == "RESUME")


def is_entering(frame: FrameType) -> bool:
    """Whether a function was only just called. Python looks for signals there, but not after each operator: what the
    sample is about came before the call, such as the indexing of a tensor that is its argument."""
    return frame.f_lasti in entries(frame.f_code)


def owner(frame: FrameType | None) -> str:
    """Whose function the innermost frame outside of libraries is."""
    found = ""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(HERE):
            kernel = code.co_filename.startswith(INTERPRETER)
            return found if found and not code.co_qualname.startswith(OBSERVER) else KERNEL if kernel else OURS
        if not found and code.co_filename.startswith("<kernel"):
            return KERNEL
        if "/tree/vllm/" in code.co_filename or code.co_name == "decorate_context":
            found = "vllm"  # torch's decorator around vLLM's own methods (inference mode)
        frame = frame.f_back
    return found


def is_opening(frame: FrameType | None) -> bool:
    """Whether an engine is being built."""
    while frame is not None:
        if frame.f_code is VllmFactory.open.__code__:
            return True
        frame = frame.f_back
    return False


class Sampler:
    """Samples CPU seconds by owner and by phase (opening an engine or not) while it is on."""

    def __init__(self) -> None:
        self.seconds: Counter[tuple[str, bool]] = Counter()
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
        if frame is not None and is_entering(frame):
            frame = frame.f_back
        self.seconds[owner(frame), is_opening(frame)] += now - self._last  # type: ignore[assignment]
        self._last = now


def measure(traces: int, overrides: dict[str, object]) -> None:
    """Profile and print; runs in the engine's interpreter."""
    factory = load_factory("vllm")
    drawn = [draw_trace(factory.capabilities, 5, index, overrides, factory.supports) for index in range(traces)]
    for trace in drawn:
        run_trace(factory, trace)
    with Sampler() as sampler:
        steps = sum(run_trace(factory, trace).steps for trace in drawn)
    seconds = sampler.seconds
    opened = sum(seconds.values())
    total = sum(seconds[name, False] for name in OWNERS)
    print(f"{overrides}: {steps} steps, {opened:.1f} s, {steps / opened:.0f} steps/s; {total:.1f} s without opening")
    for name, title in OWNERS.items():
        both = seconds[name, False] + seconds[name, True]
        print(f"  {both / opened:6.1%}  {seconds[name, False] / total:6.1%}  {title}")


class Leak:
    """A shared configuration that an engine changes: each but the first gets half of the model's length."""

    def __init__(self, fresh: Callable[..., bytes]) -> None:
        self._fresh = fresh
        self._is_used = False

    def __call__(self, *arguments: Any) -> bytes:
        """Return the pickled configuration of the model."""
        model = pickle.loads(self._fresh(*arguments))
        if self._is_used:
            model.max_model_len //= 2
        self._is_used = True
        return pickle.dumps(model)

    def cache_clear(self) -> None:
        """Begin anew."""
        self._is_used = False


def prove(traces: int, leak: bool) -> int:
    """Run each trace with what is shared between engines, then with all of it made anew. Return 1 if any differs."""
    from hybridfuzz.targets.vllm import shadow_config
    from hybridfuzz.targets.vllm.versions import features, old_releases

    factory = load_factory("vllm")
    model: Any = Leak(shadow_config._pickled_model) if leak else shadow_config._pickled_model
    shadow_config._pickled_model = model
    shared: list[Any] = [model, old_releases.v1_runner, features.has_conv_layouts, metadata.entry_points]
    drawn = [draw_trace(factory.capabilities, 5, index, {}, factory.supports) for index in range(traces)]
    outcomes = [run_trace(factory, trace) for trace in drawn]
    differing = []
    for index, (trace, outcome) in enumerate(zip(drawn, outcomes, strict=True)):
        for one in shared:
            one.cache_clear()
        if run_trace(factory, trace) != outcome:
            differing.append(index)
    steps = sum(outcome.steps for outcome in outcomes)
    print(f"{traces} traces, {steps} steps, run twice; differing: {differing or 'none'}")
    return 1 if differing else 0


def main() -> int:
    """Start ourselves again in the engine's interpreter, or measure if this is it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="vllm@0.33.0")
    parser.add_argument("--traces", type=int, default=40)
    parser.add_argument("--proof", action="store_true", help="compare with engines that share nothing")
    parser.add_argument("--leak", action="store_true", help="with --proof: plant a leak")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside and arguments.proof:
        return prove(arguments.traces, arguments.leak)
    if arguments.inside:
        for runner in ("v2", "v1"):
            measure(arguments.traces, {"runner": runner})
        _, left = triton_interpreter.counts()
        print(f"launches left to Triton's own interpreter, first runs included: {left or 'none'}")
        return 0
    launch = prepare(arguments.target, print)
    command = [str(launch.python), __file__, "--inside", *sys.argv[1:]]
    return subprocess.run(command, env={**os.environ, **launch.env}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
