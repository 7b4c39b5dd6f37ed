"""`fuzz --against` and `replay --against`: run the same traces on two targets and compare."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...targets.base.trace import Trace
    from ..events import Reason
    from ..traces.outcome import Outcome
    from ..traces.violation import Violation
    from ..workers.client import WorkerClient

REDUCE_SECONDS = 20.0
ALONE = ("jobs", "known", "fresh", "events", "junit", "sarif")
"""Options of `fuzz` that a comparison does not have."""


class Pair:
    """Two workers, one for each target. Use as a context manager."""

    def __init__(self, options: argparse.Namespace) -> None:
        from ..workers.client import WorkerClient
        from .common import launch_target

        self.names = (options.target, options.against)
        self.workers = [
            WorkerClient(name, launch_target(name), options.timeout, options.memory) for name in self.names
        ]  # fmt: skip
        self._stack = ExitStack()

    def __enter__(self) -> Pair:
        from ..workers.client import Stopped

        for worker in self.workers:
            self._stack.enter_context(worker)
        try:
            self.ready, _ = [worker.start() for worker in self.workers]
        except Stopped:
            raise KeyboardInterrupt from None
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stop(self, reason: Reason) -> None:
        """End both workers; called from a signal handler."""
        del reason
        for worker in self.workers:
            worker.stop()

    @property
    def first(self) -> WorkerClient:
        """Return the worker that draws traces."""
        return self.workers[0]

    def run(self, trace: Trace) -> Outcome:
        """Return the first target's outcome; its violation is the difference if it has none of its own."""
        from msgspec import structs

        from ..lockstep.differential import difference

        one, other = [worker.run_summarized(trace) for worker in self.workers]
        return structs.replace(one[0], violation=difference(trace, self.names, one, other))


def replay_against(options: argparse.Namespace, files: list[Path]) -> int:
    """Replay files on both targets; exit status 1 if any trace differs or fails, else 2 if a file is no trace."""
    from ..exit_status import CLEAN, USAGE, VIOLATION
    from ..lockstep.ranks import on_ranks
    from ..units import plural
    from .common import print_json, printer
    from .reading import read_all, unread

    line = printer(options.json)
    read = read_all(files, line)
    results: list[dict[str, object]] = [unread(file, why) for file, why in read.items() if isinstance(why, str)]
    refused = len(results)
    if refused < len(read):
        with Pair(options) as pair:
            for file, trace in read.items():
                if isinstance(trace, str):
                    continue
                violation = pair.run(on_ranks(trace, options.dp)).violation
                line(
                    f"{'DIFFERS' if violation else 'alike  '} {file}"
                    + (f"\n        {violation.message}" if violation else "")
                )
                results.append({"trace": str(file), "signature": violation.signature if violation else None})
    failed = sum(result["signature"] is not None for result in results)
    end = f", {refused} refused" if refused else ""
    line(f"{plural(len(results), 'trace')} on {options.target} and {options.against}: {failed} differ or fail{end}")
    if options.json:
        reason = "violation" if failed else "refused" if refused else "clean"
        print_json({"exit_reason": reason, "results": results})
    return VIOLATION if failed else USAGE if refused else CLEAN


def fuzz_against(options: argparse.Namespace, seconds: float, overrides: dict[str, object]) -> int:
    """Draw traces for the first target until a limit is met; each difference is reduced and saved once."""
    from ..exit_status import CLEAN, VIOLATION
    from ..findings.store import make_folder
    from ..generate.overrides import check_overrides
    from ..units import plural
    from ..workers.client import Stopped
    from .common import ending_on_signals, output_folder, print_json, printer

    check(options)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    out = options.out or output_folder(f"{options.target}-against-{options.against}-{seed}")
    make_folder(out)
    line, found, reason = printer(options.json), dict[str, Path](), "limit"
    steps = index = 0
    pair = Pair(options)
    with ending_on_signals(pair), pair:
        check_overrides(overrides, pair.ready.capabilities)
        line(f"comparing {' and '.join(pair.names)}, seed {seed}; findings to {out}")
        start = time.monotonic()
        try:
            while not _over(options, index, steps, seconds - (time.monotonic() - start)):
                trace = pair.first.draw(seed, index, overrides)
                outcome = pair.run(trace)
                index, steps = index + 1, steps + outcome.steps
                violation = outcome.violation
                if violation and violation.signature not in found:
                    found[violation.signature] = out / f"{violation.signature}.json"
                    reduce(pair, trace, violation, found[violation.signature], line)
        except Stopped:
            reason = "interrupted"
    end = ", interrupted" if reason == "interrupted" else ""
    ran = f"{plural(index, 'trace')}, {plural(steps, 'step')} on {' and '.join(pair.names)}"
    line(f"{ran}: {plural(len(found), 'kind')} of difference{end}")
    if options.json:
        findings = [{"signature": signature, "trace": str(path)} for signature, path in found.items()]
        print_json({"exit_reason": reason, "seed": seed, "traces": index, "steps": steps, "findings": findings})
    return VIOLATION if found else CLEAN


def check(options: argparse.Namespace) -> None:
    """Raise TraceError for options that a comparison does not have."""
    from ...targets.base.trace import TraceError

    if given := [f"--{name}" for name in ALONE if getattr(options, name)]:
        raise TraceError(f"--against compares two targets, one trace at a time: it has no {', '.join(given)}")


def _over(options: argparse.Namespace, traces: int, steps: int, left: float) -> bool:
    limits = options.traces is not None or options.steps is not None
    return (
        (options.traces is not None and traces >= options.traces)
        or (options.steps is not None and steps >= options.steps)
        or (left <= 0 and (options.time is not None or not limits))
    )


def reduce(pair: Pair, trace: Trace, violation: Violation, path: Path, line: Callable[[str], None]) -> None:
    """Save the trace of a difference at once, then each smaller trace that shows it."""
    from ..findings.store import OutputError
    from ..traces.files import save_trace
    from ..traces.reduce import reduce_trace

    def save(better: Trace) -> None:
        try:
            save_trace(better, path)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}") from error

    save(trace)
    best = reduce_trace(trace, violation.signature, pair.run, seconds=REDUCE_SECONDS, on_better=save)
    final = pair.run(best).violation
    line(f"{violation.signature}: {len(best.events)} events, {path}\n  {(final or violation).message}")
