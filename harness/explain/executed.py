"""Records which lines of the engine's own code a run executes, and from which line each was reached.

Pairs of lines (arcs) rather than lines: a loop that is left early and a condition on one line differ in arcs, not in
lines. Of a returned value only its kind counts (None, False, True, zero, another number): a function may decide wrongly
on the same lines. Only functions of the packages in `Capabilities.engine` count, and only while an event is applied:
opening an engine is left out. A run takes about three times as long.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from msgspec import Struct

RETURN = -1


class Executed(Struct, frozen=True, array_like=True):
    """One function that was executed.

    arcs  (line before, line, order): 0 before the first line of a call; line numbers are those of the file; `order`
          counts the arcs of the run by their first execution. A line before of -1 is a return: `line` is then a code
          of the value (`_kind`).
    """

    file: str
    function: str
    arcs: tuple[tuple[int, int, int], ...]


def source_roots(packages: Iterable[str]) -> tuple[str, ...]:
    """Return the folders of packages, each with a final separator; those that cannot be found are left out."""
    roots = []
    for package in packages:
        spec = find_spec(package)
        roots += [f"{Path(each)}{os.sep}" for each in (spec.submodule_search_locations or ())] if spec else []
    return tuple(roots)


class LineTracer:
    """Traces this thread between `start` and `stop`; several spans add up."""

    def __init__(self, packages: Iterable[str]) -> None:
        self._roots = source_roots(packages)
        self._arcs: dict[CodeType, dict[tuple[int, int], int] | None] = {}
        """None for a function of other code."""
        self._count = 0

    def start(self) -> None:
        """Begin to record."""
        sys.settrace(self._called)

    def stop(self) -> None:
        """Pause."""
        sys.settrace(None)

    def _called(self, frame: FrameType, what: str, argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if code not in self._arcs:
            self._arcs[code] = {} if code.co_filename.startswith(self._roots) else None
        known = self._arcs[code]
        if known is None:
            return None
        arcs, before = known, 0

        def executed(frame: FrameType, what: str, argument: object) -> Callable[..., Any]:
            nonlocal before
            if what == "line":
                arc = (before, frame.f_lineno)
                before = frame.f_lineno
                if arc not in arcs:
                    self._count += 1
                    arcs[arc] = self._count
            elif what == "return" and (kind := _kind(argument)) and (RETURN, kind) not in arcs:
                self._count += 1
                arcs[RETURN, kind] = self._count
            return executed

        return executed

    def executed(self) -> tuple[Executed, ...]:
        """Return what was recorded; file names are relative to the folder that holds the package."""
        return tuple(
            Executed(
                self._relative(code.co_filename), code.co_qualname, tuple((*arc, order) for arc, order in arcs.items())
            )
            for code, arcs in self._arcs.items()
            if arcs
        )

    def _relative(self, file: str) -> str:
        root = next((root for root in self._roots if file.startswith(root)), "")
        return Path(file).relative_to(Path(root).parent).as_posix() if root else file


def _kind(value: object) -> int:
    """Return the class of a returned value; 0 for all values that are not told apart."""
    if value is None:
        return 1
    if isinstance(value, bool):
        return 3 if value else 2
    if isinstance(value, int):
        return 4 if value == 0 else 5
    return 0
