"""Runs one trace on fresh targets: one engine, or one for each data-parallel rank."""

from __future__ import annotations

from collections.abc import Callable

from ...targets.base.protocol import TargetFactory
from ...targets.base.trace import Trace, TraceError
from ..draw.adapt import refusal
from .engines import Engines
from .lockstep import Lockstep, unobserved
from .outcome import Outcome
from .ranks import ranks_of, run_ranks
from .violation import Violation


def run_trace(factory: TargetFactory, trace: Trace, on_event: Callable[[int], None] = unobserved) -> Outcome:
    """Run one trace on a fresh target. What the target raises, from its opening to its closing, is a finding.

    `on_event` is called with each event's index before it happens; draining steps continue the count. TraceError for
    a contradictory configuration or an event that the target does not have; its subclass RefusedError for a
    configuration that the target refuses when it is opened.
    """
    if reason := refusal(trace, factory):
        raise TraceError(reason)
    return run_taken(factory, trace, on_event)


def run_taken(factory: TargetFactory, trace: Trace, on_event: Callable[[int], None] = unobserved) -> Outcome:
    """Run a trace that the target takes: it was drawn for it, or `refusal` was asked."""
    if ranks_of(trace.config) > 1:
        return run_ranks(factory, trace, on_event=on_event)
    engines = Engines(factory, trace.config)
    return engines.run(lambda: _drive(engines.open(), trace, on_event))


def _drive(lockstep: Lockstep | Violation, trace: Trace, on_event: Callable[[int], None]) -> Outcome:
    if isinstance(lockstep, Violation):
        return Outcome(lockstep, 0, 0, {}, {}, 0)
    for index, event in enumerate(trace.events):
        on_event(index)
        if lockstep.apply(event, index):
            return lockstep.outcome(index + 1)
    lockstep.drain(len(trace.events), on_event)
    return lockstep.outcome(len(trace.events))
