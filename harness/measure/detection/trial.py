"""One trial: fuzz one target with one seed until an oracle reports a violation or the CPU time is spent.

The detection matrix and the canary consist of trials.
The traces are exactly those of a campaign with the same seed and overrides.
"""

from __future__ import annotations

from msgspec import Struct

from ....targets.base.trace import Trace
from ...draw.workload import DEFAULT, Workload
from ...group.reduction.reduce import reduce_trace
from ...workers.messages import Fuzz, Overrides
from ...workers.results import Ran
from ...workers.worker_client import WorkerClient
from .statistics import Detection

BATCH = 64
TWICE_EVERY = 50
"""One of this many traces is run twice, as in a campaign."""


class Trial(Struct, frozen=True):
    """Target, seed and budget. `seconds` are CPU seconds of the worker; no reduction if `reduce_seconds` is 0."""

    mutant: str
    seed: int
    seconds: float
    overrides: Overrides = {}
    reduce_seconds: float = 0.0
    workload: Workload = DEFAULT


def run_trial(worker: WorkerClient, asked: Trial) -> tuple[Detection, Trace | None]:
    """Return the result, with the (reduced) trace that failed. The worker must have been started.

    Raises what the worker raises: Stopped, TargetError, TraceError, InternalError.
    """
    traces = steps = 0
    seconds = 0.0
    while seconds < asked.seconds:
        batch = Fuzz(asked.seed, traces, BATCH, asked.overrides, TWICE_EVERY, workload=asked.workload)
        for ran in worker.fuzz(batch):
            traces, steps, seconds = traces + 1, steps + ran.outcome.steps, seconds + ran.seconds
            if ran.outcome.violation and ran.trace:
                return _found(worker, asked, ran, Detection(asked.mutant, asked.seed, traces, steps, seconds))
            if seconds >= asked.seconds:
                break
    return Detection(asked.mutant, asked.seed, traces, steps, seconds), None


def _found(worker: WorkerClient, asked: Trial, ran: Ran, spent: Detection) -> tuple[Detection, Trace]:
    violation, trace = ran.outcome.violation, ran.trace
    assert violation and trace
    if asked.reduce_seconds:
        twice = violation.oracle == "DETERMINISM"
        trace = reduce_trace(
            trace,
            violation.signature,
            lambda candidate: worker.run(candidate, twice=twice),
            seconds=asked.reduce_seconds,
        )
    detection = Detection(
        mutant=spent.mutant,
        seed=spent.seed,
        traces=spent.traces,
        steps=spent.steps,
        seconds=spent.seconds,
        signature=violation.signature,
        oracle=violation.oracle,
        message=violation.message,
        events=len(trace.events) if asked.reduce_seconds else 0,
    )
    return detection, trace
