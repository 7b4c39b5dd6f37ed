"""Counts the traces that a target refuses when it is opened, although it was said to support their configuration.

Such a trace does not end the campaign, but a campaign must not shrink without a word: each new reason is a warning, the
summary has the number, and a target that refuses everything ends the campaign with its reason as the error.
"""

from __future__ import annotations

from collections import Counter

from ...targets.base.protocol import Capabilities, TargetError
from ..units import plural

REASONS_SHOWN = 3
"""Different reasons of which each gets a warning; more are in the total."""
IN_A_ROW_MAX = 50
"""Different configurations that may be refused one after the other. With a limit of steps alone nothing else bounds
them: a trace that does not run takes no steps."""
UNSTARTED_MAX = 100
"""First traces of a campaign that may all fail before their first step: these take no steps, either."""


def check_started(traces: int, steps: int) -> None:
    """Raise TargetError if the traces of a campaign all failed before their first step."""
    if traces >= UNSTARTED_MAX and not steps:
        raise TargetError(f"none of {plural(traces, 'trace')} reached its first step: the target was not tested")


class Refusals:
    """The refusals of one campaign. The campaign's lock guards it."""

    def __init__(self, earlier: int = 0) -> None:
        self.count = earlier
        self._reasons: Counter[str] = Counter()
        self._in_a_row = 0

    def add(self, index: int, reason: str) -> str:
        """Count a refusal of this process; return a warning, "" for a reason that has had one."""
        self.count += 1
        self._in_a_row += 1
        self._reasons[reason] += 1
        if self._reasons[reason] > 1 or len(self._reasons) > REASONS_SHOWN:
            return ""
        return f"trace {index} did not run, as the target refuses its configuration: {reason}"

    def ran(self) -> None:
        """Note that a trace ran."""
        self._in_a_row = 0

    def check(self, capabilities: Capabilities) -> None:
        """Raise TargetError if the target seems to refuse everything now."""
        if self._in_a_row >= IN_A_ROW_MAX * capabilities.traces_per_configuration:
            raise TargetError(
                f"the target refused {plural(self._in_a_row, 'trace')} in a row{self._usual()}; change --config, or "
                "let `supports` refuse such configurations"
            )

    def check_all(self, drawn: int) -> None:
        """Raise TargetError if none of all drawn traces ran."""
        if self.count and self.count == drawn:
            raise TargetError(f"the target refused {plural(drawn, 'trace')}, all that were drawn{self._usual()}")

    def total(self, drawn: int) -> str:
        """Return the total as a warning, "" without refusals."""
        if not self.count:
            return ""
        return f"{self.count} of {plural(drawn, 'trace')} did not run, as the target refused them{self._usual()}"

    def _usual(self) -> str:
        """Return the reason that was given most often, to be appended; "" if all were before a resumption, whose
        reasons are not kept."""
        return "".join(f", most often because: {reason}" for reason, _ in self._reasons.most_common(1))
