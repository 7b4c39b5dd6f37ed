"""A violation: one oracle's verdict, and its signature."""

from __future__ import annotations

from msgspec import Struct, structs

from ..quoting import DETAILS_MAX, MESSAGE_MAX, clean

FIELD_MAX = 100
"""Characters that are kept of a part of a signature, and of a name."""
_LIMITS = {"message": MESSAGE_MAX, "expected": DETAILS_MAX, "observed": DETAILS_MAX}


class Violation(Struct, frozen=True):
    """A broken invariant: what, where, and the expected and observed values.

    `message` is one sentence; the other fields are for grouping and tables. `event` is the index of the event in the
    trace (len(events) or more: while draining), `event_kind` its tag. `rank` is -1 where there is only one.
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
        """Identity of a bug: oracle, event kind, group kind, field. Failures with one signature count as one bug."""
        return "-".join(part for part in (self.oracle, self.event_kind, self.group_kind, self.field) if part)


def cleaned(violation: Violation) -> Violation:
    """Return the violation with valid Unicode of a bounded length in every field.

    Its text may be the target's: an exception's message, or a repr of what the target returned.
    """
    fields = structs.asdict(violation)
    texts = {name: clean(text, _LIMITS.get(name, FIELD_MAX)) for name, text in fields.items() if isinstance(text, str)}
    return structs.replace(violation, **texts)
