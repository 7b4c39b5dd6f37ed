"""Values as Python source."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

import msgspec

PLAIN = (bool, int, float, str, bytes, type(None))


class NoSource(TypeError):
    """A value cannot be written down."""


def source(value: Any, imports: set[tuple[str, str]]) -> str:
    """Return an expression for a value, and add the (module, name) that it needs to `imports`. Fields of objects that
    have their defaults are left out. Raises NoSource."""
    if isinstance(value, enum.Enum):
        return f"{_named(type(value), imports)}.{value.name}"
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{source(key, imports)}: {source(one, imports)}' for key, one in value.items())}}}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(source(one, imports) for one in value))}}}" if value else "set()"
    if isinstance(value, list):
        return f"[{', '.join(source(one, imports) for one in value)}]"
    if type(value) is tuple:
        return f"({', '.join(source(one, imports) for one in value)}{',' * (len(value) == 1)})"
    if (type(value).__module__, type(value).__name__) == ("torch", "dtype"):  # our process may have no torch
        imports.add(("torch", ""))
        return repr(value)
    return f"{_named(type(value), imports)}({', '.join(_given(value, imports))})"


def _named(kind: type, imports: set[tuple[str, str]]) -> str:
    imports.add((kind.__module__, kind.__name__))
    return kind.__name__


def _given(value: Any, imports: set[tuple[str, str]]) -> list[str]:
    """Return the arguments with which an object is made."""
    if hasattr(value, "_asdict"):
        return [f"{name}={source(one, imports)}" for name, one in value._asdict().items()]
    if not (dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct)):
        raise NoSource(f"{type(value).__name__} cannot be written down")
    fields = (
        [one for one in dataclasses.fields(value) if one.init]
        if dataclasses.is_dataclass(value)
        else msgspec.structs.fields(value)
    )
    given = [(one.name, getattr(value, one.name), _default(one)) for one in fields]
    return [f"{name}={source(one, imports)}" for name, one, usual in given if not _is_same(one, usual)]


def _default(field: Any) -> Any:
    """Return the default of a field of either kind of class, or a mark of its own kind where there is none."""
    return field.default_factory() if callable(field.default_factory) else field.default


def _is_same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)
