"""The result of running one trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from .environment_fault import EnvironmentFault
from .violation import Violation


class Outcome(Struct, frozen=True):
    """Result of one trace. `digest` is a CRC over everything observed: equal runs have equal digests.

    `together` are the situations that came in one event (`situations`).
    `refused` is the target's reason if it refused a drawn trace when it was opened: nothing ran.
    `fault` is what the environment lacked for a drawn trace: whatever ran of it shows nothing.
    `ran` are the lines of the engine that ran, by file, of those that were watched.
    """

    violation: Violation | None
    steps: int
    events: int
    exercised: dict[str, int]
    reached: dict[str, int]
    digest: int
    refused: str = ""
    fault: EnvironmentFault | None = None
    together: Sequence[Sequence[int]] = ()
    ran: Mapping[str, Sequence[int]] = {}

    @property
    def opened(self) -> bool:
        """True if the trace ran, up to its end or a violation: only then does it count as a trace."""
        return not self.refused and self.fault is None
