"""Runs one trace on fresh targets: one engine, or one for each data-parallel rank."""

from __future__ import annotations

from collections.abc import Callable

from ...targets.base.protocol import TargetError, TargetFactory
from ...targets.base.trace import Trace, TraceError
from ..traces.adapt import refusal
from ..traces.outcome import Outcome
from .lockstep import Lockstep, unobserved
from .ranks import ranks_of, run_ranks
from .target_exception import crash_violation


def run_trace(factory: TargetFactory, trace: Trace, on_event: Callable[[int], None] = unobserved) -> Outcome:
    """Run one trace on a fresh target.

    `on_event` is called with each event's index before it happens; draining steps continue the count. TraceError for
    a contradictory configuration or an event that the target does not have, TargetError for a configuration that the
    target does not support.
    """
    if reason := refusal(trace, factory):
        raise TraceError(reason)
    if ranks_of(trace.config) > 1:
        return run_ranks(factory, trace, on_event=on_event)
    try:
        target = factory.open(trace.config)
    except (TargetError, TraceError):
        raise
    except Exception as error:  # an engine that cannot be built for a configuration it should take
        return Outcome(crash_violation(None, error, factory.capabilities.engine), 0, 0, {}, {}, 0)
    try:
        capabilities = factory.capabilities
        lockstep = Lockstep(target, trace.config, capabilities.observes, capabilities.engine)
        for index, event in enumerate(trace.events):
            on_event(index)
            if lockstep.apply(event, index):
                return lockstep.outcome(index + 1)
        lockstep.drain(len(trace.events), on_event)
        return lockstep.outcome(len(trace.events))
    finally:
        target.close()
