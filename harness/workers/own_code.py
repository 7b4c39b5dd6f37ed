"""Detects code of hybridfuzz that a target has replaced in its worker: errors that follow are the target's."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from ..judge.target_exception import is_own

Name = tuple[str, ...]


class OwnCode:
    """The functions and classes of hybridfuzz's modules, as they are when this is made: before a target is loaded."""

    def __init__(self) -> None:
        self._before = dict(_functions())

    def replaced(self) -> list[str]:
        """Return the names of those that are other ones now."""
        now = dict(_functions())
        return [".".join(name) for name, value in self._before.items() if now.get(name) is not value]


def _functions() -> Iterator[tuple[Name, object]]:
    for module, content in list(sys.modules.items()):
        if not is_own(module):
            continue
        for name, value in list(vars(content).items()):
            if callable(value):
                yield (module, name), value
            if isinstance(value, type) and value.__module__ == module:
                yield from (((module, name, member), each) for member, each in vars(value).items())
