"""Two targets on the same traces, which must behave alike: `fuzz --against` and `replay --against`.

A difference is a violation of the first target's outcome (oracle D1). Each kind is reduced once and saved at once; what
happens is yielded as data, and the caller writes the sentences.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec import Struct, structs

from ...targets.base.launch import Launch
from ...targets.base.protocol import TargetError
from ...targets.base.trace import Trace, TraceError
from ..campaign_summary import Reason
from ..draw.overrides import check_overrides
from ..draw.trace_files import file_name, save_trace
from ..draw.workload import DEFAULT, Workload
from ..group.findings.finding_store import OutputError
from ..group.reduction.reduce import reduce_trace
from ..judge.differential import difference
from ..judge.outcome import Outcome
from ..judge.violation import Violation
from ..workers.worker_client import Stopped, WorkerClient
from .refusals import Refusals


class Pair:
    """Two workers, one for each target. Use as a context manager."""

    def __init__(self, names: tuple[str, str], launches: Sequence[Launch], timeout: float, memory: int | None) -> None:
        """`timeout` is the limit for one trace in seconds, `memory` that of one worker in bytes."""
        self.names = names
        self.workers = [
            WorkerClient(name, launch, timeout, memory) for name, launch in zip(names, launches, strict=True)
        ]
        self._stack = ExitStack()

    def __enter__(self) -> Pair:
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
        one, other = [worker.run_summarized(trace) for worker in self.workers]
        return structs.replace(one[0], violation=difference(trace, self.names, one, other))


class Limits(Struct, frozen=True):
    """When a comparison ends: whichever comes first; without a number of traces or steps after `seconds`."""

    seconds: float
    """Limit of the time; it also holds beside a number of traces or steps if `timed`."""
    timed: bool
    traces: int | None = None
    steps: int | None = None

    def over(self, traces: int, steps: int, seconds: float) -> bool:
        """Return True after so many traces, steps and seconds."""
        counted = self.traces is not None or self.steps is not None
        return (
            (self.traces is not None and traces >= self.traces)
            or (self.steps is not None and steps >= self.steps)
            or (seconds >= self.seconds and (self.timed or not counted))
        )


class Warned(Struct, frozen=True):
    """Something went wrong that does not end the comparison, or ends it early."""

    message: str


class Differs(Struct, frozen=True):
    """A new kind of difference, reduced and saved."""

    violation: Violation
    path: Path
    events: int


class Comparison:
    """Draws traces for the first target until a limit is met, and reduces each new kind of difference."""

    def __init__(
        self,
        pair: Pair,
        seed: int,
        overrides: Mapping[str, object],
        out: Path,
        reduce_seconds: float,
        workload: Workload = DEFAULT,
    ) -> None:
        self.pair, self.seed, self.overrides, self.out = pair, seed, dict(overrides), out
        self.workload = workload
        self.reduce_seconds = reduce_seconds
        self.refusals = Refusals()
        self.found: dict[str, Path] = {}
        self.traces = self.steps = 0
        self.reason = "limit"

    def run(self, limits: Limits) -> Iterator[Warned | Differs]:
        """Yield what happens. The pair has been started.

        Raises TargetError if every trace is refused, or if a target does not start again and nothing was found.
        """
        check_overrides(self.overrides, self.pair.ready.capabilities)
        start = time.monotonic()
        try:
            while not limits.over(self.traces, self.steps, time.monotonic() - start):
                yield from self._next()
        except Stopped:
            self.reason = "interrupted"
        except TargetError as error:  # one that does not start after a crash: the crash counts more
            if not self.found:
                raise
            self.reason = "error"
            yield Warned(f"the comparison ended early: {error}")
        if self.reason != "interrupted":
            self.refusals.check_all(self.traces)
        if warning := self.refusals.total(self.traces):
            yield Warned(warning)

    def _next(self) -> Iterator[Warned | Differs]:
        trace = self.pair.first.draw(self.seed, self.traces, self.overrides, workload=self.workload)
        self.traces += 1
        try:
            outcome = self.pair.run(trace)
        except TraceError as error:
            if warning := self.refusals.add(self.traces - 1, str(error)):
                yield Warned(warning)
            self.refusals.check(self.pair.ready.capabilities)
            return
        self.refusals.ran()
        self.steps += outcome.steps
        violation = outcome.violation
        if violation and violation.signature not in self.found:
            self.found[violation.signature] = self.out / f"{file_name(violation.signature)}.json"
            yield self._reduced(trace, violation, self.found[violation.signature])

    def _reduced(self, trace: Trace, violation: Violation, path: Path) -> Differs:
        """Save the trace of a difference at once, then each smaller trace that shows it."""
        _saver(path)(trace)
        best = reduce_trace(
            trace, violation.signature, self.pair.run, seconds=self.reduce_seconds, on_better=_saver(path)
        )
        return Differs(self.pair.run(best).violation or violation, path, len(best.events))


def _saver(path: Path) -> Callable[[Trace], None]:
    def save(trace: Trace) -> None:
        try:
            save_trace(trace, path)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}") from error

    return save
