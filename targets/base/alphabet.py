"""What an event's type says about the event, beside the type: for the grammar, reducer, lockstep and reports alike.

The kinds of events are in `trace`. Each has an `about`; each of its fields may have marks, in `typing.Annotated`.
msgspec ignores them: they change neither the JSON form of a trace nor what is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, TypeVar

from msgspec import NODEFAULT, Struct, structs

Acts = Literal["", "before", "after", "with consent", "on the batch"]
"""When an event changes what the reference expects: never; before the target gets it, since a target cannot decline
it; after it, as far as the target's view shows it; after it unless the target refused it; or after it, on the batch."""


class About(Struct, frozen=True):
    """What is known of a kind of event.

    sentence        what happens, for a report: `{field}`, or `{field:noun}` for a number of things
    percent         chance that it is the next event of a drawn trace that uses it; 0 if the grammar draws it by rules
                    of its own, or not at all
    acts            when it changes the reference
    needs           tag of an event without which a target cannot have it
    changes_answer  it changes which tokens a client has
    """

    sentence: str
    percent: int = 0
    acts: Acts = ""
    needs: str = ""
    changes_answer: bool = False


class Defines(Struct, frozen=True):
    """Names the request that the event is about; its first use gives the request its name."""


class Refers(Struct, frozen=True):
    """Names requests that arrived before; drawn among those that run or wait, `parked` sessions included."""

    parked: bool = False


class Shrinks(Struct, frozen=True):
    """A number that a reduction makes smaller, down to `least`."""

    least: int


class Usual(Struct, frozen=True):
    """The value that a reduction tries at once, and that the grammar draws unless the field `Draws`."""

    value: object


class Thins(Struct, frozen=True):
    """A collection that a reduction takes entries from, one by one, down to `least`."""

    least: int = 0


class Draws(Struct, frozen=True):
    """A number that the grammar draws in low..high."""

    low: int
    high: int


class Varies(Struct, frozen=True):
    """A number that the search for a cause changes by each of `by`, to ask whether the failure depends on it."""

    by: tuple[int, ...]


class AtMost(Struct, frozen=True):
    """A number that means nothing beyond a field of the configuration."""

    field: str


class NeedsEvent(Struct, frozen=True):
    """Any value but the default needs a target with this event."""

    tag: str


class NeedsFeature(Struct, frozen=True):
    """Any value but the default has an effect only on a target with this feature."""

    feature: str


class Trait(Struct, frozen=True):
    """Any value but the default is a trait of a trace, by which known bugs can be avoided."""

    words: str


class Says(Struct, frozen=True):
    """What a report adds to the sentence about an event where this field is neither 0 nor empty nor false."""

    words: str


Mark = TypeVar("Mark", bound=Struct)


@cache
def fields_with(kind: type[Struct], mark: type[Mark]) -> tuple[tuple[str, Mark], ...]:
    """Return the fields of a kind of event that have a mark of this type, each with its mark.

    They are in order, but for limits, which may be None and come last: without a batch they mean nothing.
    """
    fields = sorted(structs.fields(kind), key=lambda field: field.default is None)
    found = ((field.name, one) for field in fields for one in getattr(field.type, "__metadata__", ()))
    return tuple((name, one) for name, one in found if isinstance(one, mark))


@cache
def defaults(kind: type[Struct]) -> dict[str, Any]:
    """Return the default of each field of a kind of event that has one."""
    return {
        field.name: field.default if field.default_factory is NODEFAULT else field.default_factory()
        for field in structs.fields(kind)
        if not field.required
    }


def changed(event: Struct, mark: type[Mark]) -> Iterator[tuple[str, Mark]]:
    """Yield the fields of an event with a mark of this type that do not have their default."""
    for name, one in fields_with(type(event), mark):
        if getattr(event, name) != defaults(type(event))[name]:
            yield name, one
