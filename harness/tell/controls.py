"""Controls of a bug report: runs that differ from the failing trace in one factor, and pass.

One request fewer, or one setting as the stock server has it. A run that fails in another way, or that cannot be
compared with the trace, is no control. Which implementations pass is already known (`OtherRun`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from msgspec import structs

from ...targets.base.protocol import Capabilities, TargetError
from ...targets.base.trace import Arrive, Trace, TraceError
from ..draw.near_stock import departs
from ..draw.overrides import apply_overrides
from ..group.reach import setting_name
from ..judge.outcome import Outcome

REQUESTS_MAX = 6
"""Requests that are left out in turn."""


class Runner(Protocol):
    """The part of a worker that is used here."""

    def run(self, trace: Trace) -> Outcome:
        """Run a trace."""
        ...


def controls(trace: Trace, subject: str, engine: Runner, capabilities: Capabilities) -> Iterator[str]:
    """Yield what is different in each run that passes. `subject`: the request that fails, which stays."""
    names = [event.name for event in trace.events if isinstance(event, Arrive)]
    others = [name for name in names if name != subject] if len(names) > 1 else []  # without any, nothing can fail
    for name in others[:REQUESTS_MAX]:
        events = tuple(event for event in trace.events if getattr(event, "name", "") != name)
        if _passes(engine, structs.replace(trace, events=events)):
            yield f"without {name}"
    for setting in capabilities.stock or ():
        # In another schedule the same events meet other steps.
        if "async_depth" in setting.stock or not departs(setting, trace.config):
            continue
        config = apply_overrides(trace.config, setting.stock)
        if config.num_blocks >= config.smallest_pool() and _passes(engine, structs.replace(trace, config=config)):
            yield f"without {setting_name(setting, trace.config)}"


def _passes(engine: Runner, trace: Trace) -> bool:
    """Return False also for a trace that cannot run."""
    try:
        return engine.run(trace).violation is None
    except (TraceError, TargetError):
        return False
