"""The result of one trace, as a worker tells it and everybody else consumes it."""

from __future__ import annotations

from msgspec import Struct

from .violation import Violation


class Outcome(Struct, frozen=True):
    """Result of one trace. `digest` covers what is observable: equal runs have equal digests."""

    violation: Violation | None
    steps: int
    events: int
    exercised: dict[str, int]
    reached: dict[str, int]
    digest: int
