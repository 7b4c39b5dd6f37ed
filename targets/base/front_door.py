"""Compares the configuration of an engine with the one that the engine's own parser makes of the command in its report.

A drawn configuration stands for a server. Its command (`deployment`) goes through the engine's parser and validation,
and what comes out is compared field by field with what ran. A field may differ only if the engine's table lists it:
what the adapter sets behind the front door, the same for all traces.

`targets/ENGINE/front_door.py` offers the table, `BEHIND`, and `configurations(described, trace)`, which returns the
fields of the server's configuration and of the one that ran. It can be imported where the engine is not installed;
`configurations` needs the engine, and raises what the engine raises for a command that it refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from .kits import Behind


class Difference(Struct, frozen=True):
    """A field whose value on the server is not the one that ran, both as `repr`."""

    field: str
    server: str
    ran: str


def differences(server: Mapping[str, Any], ran: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the fields that differ between two configurations, in the order of their names."""
    for field in sorted(server.keys() | ran.keys()):
        one, other = server.get(field), ran.get(field)
        if one != other and repr(one) != repr(other):
            yield Difference(field, repr(one), repr(other))


def reason_for(table: Sequence[Behind], field: str) -> str:
    """Return why a field may differ, "" if it may not."""
    for behind in table:
        if any(field == name or field.startswith(f"{name}.") for name in behind.fields):
            return behind.reason
    return ""
