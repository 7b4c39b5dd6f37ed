"""Finds the field of a record or view that is not what the protocol allows.

Oracles trust what a target reports, since checking every field would cost more than the oracles themselves. When one of
them raises, what the event reported is checked here: types of all fields, then groups, layers, rows and names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_type_hints

import msgspec
from msgspec import Struct

from ...reference.layout import Layout
from ...targets.base.observe import (
    Access,
    Delivered,
    Effect,
    Forward,
    Numeric,
    OutOfRange,
    Planned,
    RealForward,
    Record,
    View,
)

_HINTS: dict[type, Mapping[str, Any]] = {}
_NUMBERS_OF_ITS_OWN = (Numeric, RealForward)
"""Records with arrays, which are not plain data."""


class Fault(Struct, frozen=True):
    """The field, as Type.field; what it has; what the protocol allows."""

    field: str
    observed: str
    expected: str


def fault_in_effect(effect: Any, layout: Layout) -> Fault | None:
    """Return the first fault of what `Target.apply` returned."""
    if not isinstance(effect, Effect):
        return Fault("Effect", f"a {type(effect).__name__}", "an Effect with the records of the event")
    try:
        count = len(effect.records)
    except TypeError:
        return Fault("Effect.records", "no sequence", "a sequence of records")
    for index in range(count):  # by index: a recorder notes what is iterated over
        if fault := fault_in_record(effect.records[index], layout):
            return fault
    return None


def fault_in_record(record: Any, layout: Layout) -> Fault | None:
    """Return the first fault of a record."""
    if not isinstance(record, Record):
        return Fault("Record", f"a {type(record).__name__}", "one of the records of targets/base/observe.py")
    if isinstance(record, _NUMBERS_OF_ITS_OWN):
        return None
    return next(_faults(record, layout), None)


def fault_in_view(view: Any, layout: Layout, planned: Sequence[str] = ()) -> Fault | None:
    """Return the first fault of a view; `planned` are requests that must have a table if there is a pool."""
    if not isinstance(view, View):
        return Fault("View", f"a {type(view).__name__}", "a View")
    return next(_faults_of_view(view, layout, planned), None)


def _faults(record: Struct, layout: Layout) -> Iterator[Fault]:
    yield from _wrong_types(record)
    if isinstance(record, Planned):
        yield from _faults_of_view(record.view, layout, [row.name for row in record.rows])
    elif isinstance(record, Forward):
        for access in record.accesses:
            yield from _faults_of_access(access, record, layout)
    elif isinstance(record, Delivered):
        for _, tokens in record.outputs:
            yield from _wrong("Delivered.outputs", tokens, Sequence[int])
    else:
        yield from _bad_place(record, layout)


def _faults_of_access(access: Access, forward: Forward, layout: Layout) -> Iterator[Fault]:
    rows = len(forward.rows)
    if not isinstance(access, OutOfRange) and not 0 <= access.row < rows:
        yield Fault(f"{type(access).__name__}.row", str(access.row), f"0 to {rows - 1}: an index of Forward.rows")
    yield from _bad_place(access, layout)
    lengths = {name: len(getattr(access, name)) for name in ("blocks", "slots", "tags") if hasattr(access, name)}
    if "slots" in lengths and len(set(lengths.values())) > 1:
        yield Fault("SlotWrite.slots", str(lengths), "blocks, slots and tags of the same length")


def _bad_place(record: Struct, layout: Layout) -> Iterator[Fault]:
    """Yield a group that the layout does not have, or a layer that its group does not have."""
    group, layer, name = getattr(record, "group", 0), getattr(record, "layer", 0), type(record).__name__
    if not 0 <= group < len(layout.groups):
        yield Fault(f"{name}.group", str(group), f"0 to {len(layout.groups) - 1}: an index of Layout.groups")
    elif not 0 <= layer < layout.groups[group].layers:
        yield Fault(f"{name}.layer", str(layer), f"0 to {layout.groups[group].layers - 1} in group {group}")


def _faults_of_view(view: View, layout: Layout, planned: Sequence[str]) -> Iterator[Fault]:
    yield from _wrong_types(view)
    if layout.num_blocks:
        if len(view.references) != layout.num_blocks:
            yield Fault("View.references", f"{len(view.references)} counts", f"{layout.num_blocks}: one for each block")
        for name in planned:
            if name not in view.tables:
                yield Fault("View.tables", f"no table of {name}", "a table of each planned request")
        for name, table in view.tables.items():
            if len(table) != len(layout.groups):
                yield Fault(
                    "View.tables", f"{len(table)} rows of columns for {name}", f"{len(layout.groups)}: one per group"
                )
    for block, key in view.published.items():
        if not 0 <= key.group < len(layout.groups):
            yield Fault("View.published", f"group {key.group} for block {block}", "an index of Layout.groups")


def _wrong_types(struct: Struct) -> Iterator[Fault]:
    """Yield fields whose values are not of the declared type; parts that are structs are checked one by one."""
    kind = type(struct)
    hints = _HINTS.get(kind)
    if hints is None:
        hints = _HINTS[kind] = get_type_hints(kind)
    for name in kind.__struct_fields__:
        value, path = getattr(struct, name), f"{kind.__name__}.{name}"
        if name in ("rows", "accesses"):
            yield from _wrong_parts(value, hints[name], path)
        elif name not in ("view", "stored", "sent", "outputs", "published", "labels"):
            yield from _wrong(path, value, hints[name])


def _wrong_parts(values: object, hint: Any, path: str) -> Iterator[Fault]:
    (element,) = get_args(hint)
    allowed = get_args(element) or (element,)
    if not isinstance(values, Sequence):
        yield Fault(path, f"a {type(values).__name__}", "a sequence")
        return
    for value in values:
        if not isinstance(value, allowed):
            yield Fault(path, f"a {type(value).__name__}", " or ".join(one.__name__ for one in allowed))
        else:
            yield from _wrong_types(value)


def _wrong(path: str, value: object, hint: Any) -> Iterator[Fault]:
    try:
        msgspec.convert(msgspec.to_builtins(value, enc_hook=_number), hint)
    except (msgspec.ValidationError, TypeError, NotImplementedError) as error:
        yield Fault(path, f"{value!r:.200}", str(error).removeprefix("Expected "))


def _number(value: object) -> object:
    """Return a foreign number, such as numpy's, as an int."""
    if hasattr(value, "__index__"):
        return value.__index__()
    raise NotImplementedError(f"a {type(value).__name__} is not plain data")
