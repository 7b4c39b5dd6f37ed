"""Finds the plainest options with which a trace still fails: every option that a report lists should matter.

A drawn trace sets every option of its target, and reduction keeps them: evidence of causes compares them. Readers ask
which flags they need. So each option in turn gets another value if the failure stays the same and the server that the
trace stands for is then closer to a default one, or as close with one more usual option.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf

from msgspec import structs

from ...targets.base.protocol import Capabilities
from ...targets.base.trace import Trace
from ..group.reduction.reduce import Run, violation_of


def plainest(
    trace: Trace,
    signature: str,
    run: Run,
    capabilities: Capabilities,
    unusual: Callable[[Trace], int],
    deadline: float = inf,
) -> Trace:
    """Return the trace with other options, or as it is. `unusual` counts a server's departures from its
    defaults; the trace is run once for each value that would reduce them, until `deadline` (of the monotonic clock)."""
    usual = capabilities.usual_options

    def odd(one: Trace) -> tuple[int, int]:
        """Return how far a trace is from a server as it comes."""
        options = one.config.options
        return unusual(one), sum(options.get(name, value) != value for name, value in usual.items())

    least = odd(trace)
    for name, values in capabilities.options.items():
        for value in dict.fromkeys(values):
            config = structs.replace(trace.config, options={**trace.config.options, name: value})
            candidate = structs.replace(trace, config=config)
            if time.monotonic() >= deadline or (now := odd(candidate)) >= least:
                continue
            violation = violation_of(run, candidate)
            if violation and violation.signature == signature:
                trace, least = candidate, now
    return trace


def changes(before: Trace, after: Trace) -> list[str]:
    """Return the settings that differ, as `name=value`."""
    old, new = ({**structs.asdict(one.config), **one.config.options, "options": {}} for one in (before, after))
    return [f"{name}={value}" for name, value in new.items() if old.get(name) != value]
