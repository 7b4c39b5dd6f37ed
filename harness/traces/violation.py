"""A violation: one oracle's verdict, and its signature."""

from __future__ import annotations

from msgspec import Struct


class Violation(Struct, frozen=True):
    """What broke, where, and both accounts of it.

    message is one readable sentence; everything else is for grouping and tables. `event` is the index of the event
    in the trace (len(events) and more: while draining), `event_kind` its tag. `rank` is -1 where there is only one.
    """

    oracle: str
    field: str
    message: str
    expected: str = ""
    observed: str = ""
    step: int = -1
    event: int = -1
    event_kind: str = ""
    request: str = ""
    group: int = -1
    group_kind: str = ""
    block: int = -1
    rank: int = -1

    @property
    def signature(self) -> str:
        """What makes two failures the same bug: oracle, event kind, group kind, field."""
        return "-".join(part for part in (self.oracle, self.event_kind, self.group_kind, self.field) if part)
