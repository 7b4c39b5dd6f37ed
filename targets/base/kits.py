"""What a kit of an engine cannot do, and what it changes: the forms of the tables in `targets/ENGINE/kit_limits.py`
and `targets/ENGINE/front_door.py`.

A *kit* is one way to run an engine's cache code: with stand-in layers, with real ones, or as a script that imports
nothing of ours. The default is that a kit can do what the others can; each exception is a `Limit`. A
`kit_limits.py` offers `limits() -> Sequence[Limit]` and can be imported where the engine is not installed.

Such a file is a table of `Row`s. A row refuses the traces that its `refuses` is true for; the first row of a kit that
does gives the reason, so that a row may rely on those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

Case = TypeVar("Case")


class Limit(Struct, frozen=True):
    """Something that one kit of an engine cannot do. Words in capitals in `reason` stand for values of a trace."""

    kit: str
    feature: str
    reason: str


class Behind(Struct, frozen=True):
    """Fields of an engine's configuration that its adapter sets behind the front door, and why.

    The front door is the command in a report, the engine's parser and its validation. A field stands for all fields
    below it.
    """

    reason: str
    fields: tuple[str, ...]


class Row(NamedTuple, Generic[Case]):
    """Something that one kit cannot do. Values of the trace stand in `reason` as `{config.NAME}`."""

    kit: str
    feature: str
    refuses: Callable[[Case], Any]
    reason: str


def first_reason(rows: Sequence[Row[Case]], kit: str, case: Case, /, **values: Any) -> str:
    """Return "", or the reason why a kit cannot run a case; `values`: what reasons name."""
    for row in rows:
        if row.kit == kit and row.refuses(case):
            return row.reason.format(**values)
    return ""


def in_words(rows: Sequence[Row[Case]], *names: str) -> list[Limit]:
    """Return a table in words; `names`: what reasons name."""
    words = dict.fromkeys(names, _Capitals())
    return [Limit(row.kit, row.feature, row.reason.format(**words)) for row in rows]


class _Capitals:
    """Stands for a struct of a case where a table is shown: an attribute is its name in capitals."""

    def __getattr__(self, name: str) -> str:
        return name.upper()
