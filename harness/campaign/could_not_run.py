"""Counts the traces that could not run for want of memory or a device (`judge.environment_fault`).

A fault may have two reasons, and running the trace again alone on its node tells them apart:

    it runs alone           the load was too much: the campaign goes on with one worker less
    it fails alone, too     the trace needs more than the machine has, or something else took it: it is not run

Other traces with a configuration that failed alone are not tried alone, until a trace runs alone: with as little memory
as before, they would fail like it. Each further configuration that fails alone waits longer, and after `ALONE_MAX` of
them with nothing between that ran, nothing can run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from msgspec.json import encode

from ...targets.base.protocol import TargetError
from ...targets.base.trace import Trace
from ..judge.environment_fault import EnvironmentFault
from ..units import plural

WAITS = (0.0, 1.0, 10.0, 30.0, 60.0)
"""Seconds to wait after the first, second, ... configuration in a row that failed alone: memory may become free."""
ALONE_MAX = len(WAITS) + 1


class EnvironmentFaults:
    """The faults of one campaign. The campaign's lock guards it."""

    def __init__(self, earlier: Mapping[str, int]) -> None:
        self.not_run = Counter[str](earlier)
        """Traces that did not run, by kind of fault."""
        self._in_a_row = 0
        self._failed_alone: set[bytes] = set()
        """Configurations."""

    def ran(self) -> None:
        """Note that a trace ran."""
        self._in_a_row = 0

    def ran_alone(self) -> None:
        """Note that a trace that had failed ran alone."""
        self._failed_alone.clear()

    def failed_alone(self, trace: Trace | None) -> float:
        """Note that a trace failed alone, too. Return how many seconds to wait."""
        self._in_a_row += 1
        if trace:
            self._failed_alone.add(encode(trace.config))
        return WAITS[min(self._in_a_row, len(WAITS)) - 1]

    def is_known(self, trace: Trace | None) -> bool:
        """Return True if a trace with this configuration failed alone."""
        return trace is not None and encode(trace.config) in self._failed_alone

    def count(self, fault: EnvironmentFault) -> None:
        """Count a trace that is not run."""
        self.not_run[fault.kind] += 1

    def check(self, fault: EnvironmentFault) -> None:
        """Raise TargetError if it seems that nothing can run."""
        if self._in_a_row >= ALONE_MAX:
            raise TargetError(f"{plural(self._in_a_row, 'trace')} in a row could not run alone on the machine: {fault}")

    def check_all(self, traces: int) -> None:
        """Raise TargetError if none of all traces ran."""
        if self.not_run and not traces:
            raise TargetError(f"nothing ran: {not_run_line(self.not_run)}; free memory, or check the device")


def not_run_line(not_run: Mapping[str, int]) -> str:
    """Return what was not run, in a few words; "" if that is nothing."""
    return ", ".join(f"{plural(count, 'trace')} not run: {kind}" for kind, count in sorted(not_run.items()) if count)
