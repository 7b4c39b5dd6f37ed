"""The breaks of `breaks` within one process of the engine, so that it is imported once: for changes of function bodies.

    python benchmarks/breaks_inside.py vllm_breaks [--only SLUG,...] --results FILE

The code of the functions that a break changes is replaced while its traces run, and put back for the unbroken release.
Otherwise as `breaks.hunt`: the same traces, limits and rule. `--results` is the file of `vllm_breaks.py --results`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # the engine's environment sets PYTHONSAFEPATH

import msgspec
from breaks import TRACE_SECONDS, Break, Drill, Result, edited

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.targets.base.protocol import TargetFactory
from hybridfuzz.targets.base.registry import load_factory, prepare
from hybridfuzz.targets.base.trace import Trace


class Hang(BaseException):
    """A trace took too long. Not an Exception: the engine's code must not swallow it."""


def codes(code: CodeType) -> dict[str, CodeType]:
    """Return the functions that are defined in a module or in its classes, by qualified name."""
    found: dict[str, CodeType] = {}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            is_body_of_class = not constant.co_flags & 0x2  # CO_NEWLOCALS
            found |= codes(constant) if is_body_of_class else {constant.co_qualname: constant}
    return found


def function(module: ModuleType, name: str) -> FunctionType:
    """Return the function object behind a qualified name."""
    place: Any = module
    for part in name.split(".")[:-1]:
        place = getattr(place, part)
    found = vars(place)[name.rpartition(".")[2]]
    found = getattr(found, "fget", None) or getattr(found, "__func__", found)
    while hasattr(found, "__wrapped__"):
        found = found.__wrapped__
    assert isinstance(found, FunctionType), name
    return found


@contextmanager
def broken(drill: Drill, tree: Path, one: Break) -> Iterator[None]:
    """Replace the code of the functions that a break changes."""
    path = tree / drill.package / one.file
    module = importlib.import_module(f"{drill.package}/{one.file}".removesuffix(".py").replace("/", "."))
    before, after = (
        codes(compile(text, str(path), "exec", dont_inherit=True))
        for text in (path.read_text(encoding="utf-8"), edited(drill, tree, one))
    )
    changed = {name: code for name, code in after.items() if bare(code) != bare(before[name])}
    assert changed, one.slug
    kept = {name: function(module, name).__code__ for name in changed}
    for name, code in changed.items():
        function(module, name).__code__ = code
    try:
        yield
    finally:
        for name, code in kept.items():
            function(module, name).__code__ = code


def bare(code: CodeType) -> tuple[object, ...]:
    """Return what a function does, without its line numbers."""
    constants = tuple(bare(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts)
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars


def run(factory: TargetFactory, trace: Trace) -> tuple[int, Violation | None]:
    """Return the steps and the violation of a trace; a hang is one."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(int(TRACE_SECONDS))
    try:
        outcome = run_trace(factory, trace)
    except Hang:
        return len(trace.events), Violation(oracle="HANG", field="time-limit", told="HANG: did not end")
    finally:
        signal.alarm(0)
    return outcome.steps, outcome.violation


def hunt(drill: Drill, one: Break, factory: TargetFactory, tree: Path) -> Result:
    """As `breaks.hunt`, in this process. Seconds are CPU time."""
    start, steps, traces, known = time.process_time(), 0, 0, 0
    for index in range(100_000):
        trace = draw_trace(factory.capabilities, drill.seed, index, dict(one.config), factory.supports)
        with broken(drill, tree, one):
            ran, violation = run(factory, trace)
        steps, traces = steps + ran, traces + 1
        if violation:
            _, seen = run(factory, trace)
            if seen is None or (seen.signature != violation.signature and seen.event > violation.event):
                seconds = time.process_time() - start
                return Result(one.slug, steps, traces, known, seconds, violation.signature, violation.message)
            known += 1
        if steps >= drill.steps_max:
            break
    return Result(one.slug, steps, traces, known, time.process_time() - start)


def main() -> None:
    """Start the engine's interpreter with this script, or run the breaks in it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("script", help="vllm_breaks or sglang_breaks")
    parser.add_argument("--only", default="", metavar="SLUG,...")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--steps", type=int, help="limit for each break, if not the drill's")
    parser.add_argument("--tree", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    script = importlib.import_module(arguments.script)
    drill: Drill = script.DRILL
    if arguments.tree is None:
        launch = prepare(script.target(), print)
        ours = [str(Path(__file__).resolve()), *sys.argv[1:], "--tree", launch.tree]
        os.execve(launch.python, [launch.python, *ours], {**os.environ, **launch.env})
    tree, kept = Path(arguments.tree), arguments.results
    drill = replace(drill, steps_max=arguments.steps or drill.steps_max)
    saved = msgspec.json.decode(kept.read_bytes(), type=list[Result]) if kept.exists() else []
    results = {result.slug: result for result in saved}
    wanted = arguments.only.split(",") if arguments.only else [one.slug for one in drill.breaks]
    factory = load_factory(drill.target.partition("@")[0])
    for one in drill.breaks:
        if one.slug in wanted and one.slug not in results:
            result = results[one.slug] = hunt(drill, one, factory, tree)
            seen = f"{result.signature or 'NOT CAUGHT':40} {result.message}"
            print(
                f"{one.slug:26} {result.steps:6} {result.traces:5} {result.known:5} {result.seconds:6.0f} s  {seen}",
                flush=True,
            )
            kept.write_bytes(msgspec.json.encode(list(results.values())))


if __name__ == "__main__":
    main()
