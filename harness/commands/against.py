"""What `fuzz --against` and `replay --against` share: two workers, and where they differ."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...targets.base.trace import Trace
    from ..lockstep import Outcome
    from ..supervisor import Worker
    from ..violation import Violation

REDUCE_SECONDS = 20.0


class Pair:
    """Two targets that get the same traces. Use as a context manager."""

    def __init__(self, options: argparse.Namespace) -> None:
        from ..supervisor import Worker
        from .common import launch_target

        self.names = (options.target, options.against)
        self.workers = [
            Worker(name, launch_target(name), options.timeout, options.memory) for name in self.names
        ]  # fmt: skip
        self._stack = ExitStack()

    def __enter__(self) -> Pair:
        for worker in self.workers:
            self._stack.enter_context(worker)
            worker.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def first(self) -> Worker:
        """The worker that draws."""
        return self.workers[0]

    def run(self, trace: Trace) -> Outcome:
        """The first target's outcome; its violation is a difference if it has none of its own."""
        from msgspec import structs

        from ..differential import difference

        one, other = [worker.witness(trace) for worker in self.workers]
        return structs.replace(one[0], violation=difference(trace, self.names, one, other))


def replay_against(options: argparse.Namespace, files: list[Path]) -> int:
    """Replay files on both targets; exit status 1 if any differs or fails."""
    from ..cli import CLEAN, VIOLATION
    from ..codec import load_trace
    from .common import print_json, say

    line, results = say(options.json), []
    with Pair(options) as pair:
        for file in files:
            violation = pair.run(load_trace(file)).violation
            line(
                f"{'DIFFERS' if violation else 'alike  '} {file}"
                + (f"\n        {violation.message}" if violation else "")
            )
            results.append({"trace": str(file), "signature": violation.signature if violation else None})
    failed = sum(result["signature"] is not None for result in results)
    line(f"{len(results)} traces on {options.target} and {options.against}: {failed} differ or fail")
    if options.json:
        print_json({"exit_reason": "violation" if failed else "clean", "results": results})
    return VIOLATION if failed else CLEAN


def fuzz_against(options: argparse.Namespace, seconds: float) -> int:
    """Draw traces for the first target until a limit is met; each difference is reduced and saved once."""
    from ..cli import CLEAN, VIOLATION
    from .common import output_folder, print_json, say

    line, start = say(options.json), time.monotonic()
    out = options.out or output_folder(f"{options.target}-against-{options.against}-{options.seed}")
    overrides = {key: value for pairs in options.config for key, value in pairs.items()}
    found: dict[str, Path] = {}
    steps = index = 0
    with Pair(options) as pair:
        while not _over(options, index, steps, seconds - (time.monotonic() - start)):
            trace = pair.first.draw(options.seed or 0, index, overrides)
            outcome = pair.run(trace)
            index, steps = index + 1, steps + outcome.steps
            violation = outcome.violation
            if violation and violation.signature not in found:
                found[violation.signature] = _reduced(pair, trace, violation, out, line)
    line(f"{index} traces, {steps:,} steps on {' and '.join(pair.names)}: {len(found)} kinds of difference")
    if options.json:
        findings = [{"signature": signature, "trace": str(path)} for signature, path in found.items()]
        print_json({"traces": index, "steps": steps, "findings": findings})
    return VIOLATION if found else CLEAN


def _over(options: argparse.Namespace, traces: int, steps: int, left: float) -> bool:
    limits = options.traces is not None or options.steps is not None
    return (
        (options.traces is not None and traces >= options.traces)
        or (options.steps is not None and steps >= options.steps)
        or (left <= 0 and (options.time is not None or not limits))
    )


def _reduced(pair: Pair, trace: Trace, violation: Violation, out: Path, line: Callable[[str], None]) -> Path:
    """Where the smallest trace of a difference was saved."""
    from ..codec import save_trace
    from ..reduce import reduce_trace

    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{violation.signature}.json"
    best = reduce_trace(trace, violation.signature, pair.run, seconds=REDUCE_SECONDS)
    save_trace(best, path)
    final = pair.run(best).violation
    line(f"{violation.signature}: {len(best.events)} events, {path}\n  {(final or violation).message}")
    return path
