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
    from ....targets.base.trace import Trace
    from ...campaign_events import Reason
    from ...judge.outcome import Outcome
    from ...judge.violation import Violation
    from ...workers.client import WorkerClient

ALONE = ("jobs", "known", "fixes", "fresh", "shard", "cluster", "events", "junit", "sarif")
"""Options of `fuzz` that a comparison does not have."""


class Pair:
    """Two workers, one for each target. Use as a context manager."""

    def __init__(self, options: argparse.Namespace) -> None:
        from ...workers.client import WorkerClient
        from .common import launch_target, memory_limit

        self.names = (options.target, options.against)
        memory = memory_limit(options, len(self.names))
        self.workers = [WorkerClient(name, launch_target(name), options.timeout, memory) for name in self.names]
        self._stack = ExitStack()

    def __enter__(self) -> Pair:
        from ...workers.client import Stopped

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

        from ...judge.differential import difference

        one, other = [worker.run_summarized(trace) for worker in self.workers]
        return structs.replace(one[0], violation=difference(trace, self.names, one, other))


def replay_against(options: argparse.Namespace, files: list[Path]) -> int:
    """Replay files on both targets; exit status 1 if any trace differs or fails, else 2 if a file or trace is refused.

    Raises TraceError or TargetError if the only trace is refused.
    """
    from ....targets.base.protocol import TargetError
    from ....targets.base.trace import TraceError
    from ...exit_status import CLEAN, USAGE, VIOLATION
    from ...judge.ranks import on_ranks
    from ...units import plural
    from .common import print_json, printer
    from .reading import read_all, unread

    line = printer(options.json)
    read = read_all(files, line)
    results: list[dict[str, object]] = [unread(file, why) for file, why in read.items() if isinstance(why, str)]
    if len(results) < len(read):
        with Pair(options) as pair:
            for file, trace in read.items():
                if isinstance(trace, str):
                    continue
                try:
                    violation = pair.run(on_ranks(trace, options.dp)).violation
                except (TraceError, TargetError) as error:  # of the latter, one that does not start after a crash
                    if len(read) == 1:
                        raise TraceError(f"{file}: {error}") from None
                    line(f"refused {file}: {error}")
                    results.append(unread(file, str(error)))
                    continue
                line(
                    f"{'DIFFERS' if violation else 'alike  '} {file}"
                    + (f"\n        {violation.message}" if violation else "")
                )
                results.append({"trace": str(file), "signature": violation.signature if violation else None})
    failed = sum(result["signature"] is not None for result in results)
    refused = sum("refused" in result for result in results)
    end = f", {refused} refused" if refused else ""
    line(f"{plural(len(results), 'trace')} on {options.target} and {options.against}: {failed} differ or fail{end}")
    if options.json:
        reason = "violation" if failed else "refused" if refused else "clean"
        print_json({"exit_reason": reason, "results": results})
    return VIOLATION if failed else USAGE if refused else CLEAN


def fuzz_against(options: argparse.Namespace, seconds: float, overrides: dict[str, object]) -> int:
    """Draw traces for the first target until a limit is met; each difference is reduced and saved once.

    A trace that one of the two refuses is counted; raises TargetError if all of them are.
    """
    from ....targets.base.protocol import TargetError
    from ....targets.base.trace import TraceError
    from ...campaign.refusals import Refusals
    from ...draw.overrides import check_overrides
    from ...exit_status import CLEAN, INTERRUPTED, VIOLATION
    from ...group.store import file_name, make_folder
    from ...units import plural
    from ...workers.client import Stopped
    from .common import ending_on_signals, output_folder, print_json, printer

    check(options)
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    out = options.out or output_folder(f"{options.target}-against-{options.against}-{seed}")
    make_folder(out)
    line, found, reason = printer(options.json), dict[str, Path](), "limit"
    steps = index = 0
    pair, refusals = Pair(options), Refusals()
    with ending_on_signals(pair), pair:
        check_overrides(overrides, pair.ready.capabilities)
        line(f"comparing {' and '.join(pair.names)}, seed {seed}; findings to {out}")
        start = time.monotonic()
        try:
            while not _over(options, index, steps, seconds - (time.monotonic() - start)):
                trace = pair.first.draw(seed, index, overrides)
                index += 1
                try:
                    outcome = pair.run(trace)
                except TraceError as error:
                    if warning := refusals.add(index - 1, str(error)):
                        line(f"warning: {warning}")
                    refusals.check(pair.ready.capabilities)
                    continue
                refusals.ran()
                steps += outcome.steps
                violation = outcome.violation
                if violation and violation.signature not in found:
                    found[violation.signature] = out / f"{file_name(violation.signature)}.json"
                    reduce(pair, trace, violation, found[violation.signature], options.reduce, line)
        except Stopped:
            reason = "interrupted"
        except TargetError as error:  # one that does not start after a crash: the crash counts more
            if not found:
                raise
            reason = "error"
            line(f"warning: the comparison ended early: {error}")
    if reason != "interrupted":
        refusals.check_all(index)
    if warning := refusals.total(index):
        line(f"warning: {warning}")
    end = ", interrupted" if reason == "interrupted" else ""
    ran = f"{plural(index, 'trace')}, {plural(steps, 'step')} on {' and '.join(pair.names)}"
    line(f"{ran}: {plural(len(found), 'kind')} of difference{end}")
    if options.json:
        findings = [{"signature": signature, "trace": str(path)} for signature, path in found.items()]
        totals = {"seed": seed, "traces": index, "refused": refusals.count, "steps": steps}
        print_json({"exit_reason": reason, **totals, "findings": findings})
    return VIOLATION if found else INTERRUPTED if reason == "interrupted" else CLEAN


def check(options: argparse.Namespace) -> None:
    """Raise TraceError for options that a comparison does not have."""
    from ....targets.base.trace import TraceError

    if given := [f"--{name}" for name in ALONE if getattr(options, name)]:
        raise TraceError(f"--against compares two targets, one trace at a time: it has no {', '.join(given)}")


def _over(options: argparse.Namespace, traces: int, steps: int, left: float) -> bool:
    limits = options.traces is not None or options.steps is not None
    return (
        (options.traces is not None and traces >= options.traces)
        or (options.steps is not None and steps >= options.steps)
        or (left <= 0 and (options.time is not None or not limits))
    )


def reduce(
    pair: Pair, trace: Trace, violation: Violation, path: Path, seconds: float, line: Callable[[str], None]
) -> None:
    """Save the trace of a difference at once, then each smaller trace that shows it."""
    from ...draw.files import save_trace
    from ...group.reduce import reduce_trace
    from ...group.store import OutputError

    def save(better: Trace) -> None:
        try:
            save_trace(better, path)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}") from error

    save(trace)
    best = reduce_trace(trace, violation.signature, pair.run, seconds=seconds, on_better=save)
    final = pair.run(best).violation
    line(f"{violation.signature}: {len(best.events)} events, {path}")
    line(f"  {(final or violation).message}")
