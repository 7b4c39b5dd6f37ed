"""Helpers to wrap and replace functions of vLLM."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...base.renamed import put

_signature = functools.cache(inspect.signature)


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return a function's parameters by name; those of a bound method include `self`."""
    return _signature(getattr(function, "__func__", function)).parameters


class Arguments(dict[str, Any]):
    """The arguments of a call by the names of the parameters. One that the function does not have (any more) is an
    AttributeError: it shows that the adapter does not fit."""

    def __init__(
        self, function: Callable[..., Any], names: Sequence[str], given: Sequence[Any], more: Mapping[str, Any]
    ):
        super().__init__({**dict(zip(names, given, strict=False)), **more})
        self._function = function

    def __missing__(self, name: str) -> Any:
        raise AttributeError(f"{self._function.__qualname__} has no parameter {name!r}", name=name, obj=self._function)


@contextlib.contextmanager
def replaced(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace attributes while the block runs: (object, name, value) each."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        put(owner, name, value)
    try:
        yield
    finally:
        for owner, name, value in before:
            put(owner, name, value)
