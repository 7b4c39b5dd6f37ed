"""The result of running one trace."""

from __future__ import annotations

from msgspec import Struct

from .violation import Violation


class Outcome(Struct, frozen=True):
    """Result of one trace. `digest` is a CRC over everything observed: equal runs have equal digests.

    `refused` is the target's reason if it refused a drawn trace when it was opened: nothing ran.
    """

    violation: Violation | None
    steps: int
    events: int
    exercised: dict[str, int]
    reached: dict[str, int]
    digest: int
    refused: str = ""
