"""Records which lines of the engine's own code a run executes, from which line each was reached, and which kinds of
values its functions hold when they return.

Pairs of lines (arcs) rather than lines: a loop that is left early and a condition on one line differ in arcs, not in
lines. Of a returned value only its kind counts (None, False, True, zero, another number): a function may decide wrongly
on the same lines. Only functions of the packages in `Capabilities.engine` count, and only while an event is applied:
opening an engine is left out. A run takes about three times as long.

Of a call's values the kinds (`kinds`) of its local variables and its result are recorded, and the relations between all
its numbers. Kinds of arguments are left out: they are those of the caller.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sized
from importlib.util import find_spec
from inspect import CO_VARARGS, CO_VARKEYWORDS
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from msgspec import Struct

from .kinds import kind, number, plain, relations

RETURN = -1


class Executed(Struct, frozen=True, array_like=True):
    """One function that was executed.

    arcs  (line before, line, order): 0 before the first line of a call; line numbers are those of the file; `order`
          counts the arcs of the run by their first execution. A line before of -1 is a return: `line` is then a code
          of the value (`_kind`).
    values  "name: kind" of local variables and of "return", and "name < name" of numbers and lengths ("#name"), each
            of some call
    """

    file: str
    function: str
    arcs: tuple[tuple[int, int, int], ...]
    values: tuple[str, ...] = ()


def source_roots(packages: Iterable[str]) -> tuple[str, ...]:
    """Return the folders of packages, each with a final separator, and the files of single modules.

    What cannot be found is left out.
    """
    roots: list[str] = []
    for spec in filter(None, map(find_spec, packages)):
        if spec.submodule_search_locations is not None:
            roots += [f"{Path(each)}{os.sep}" for each in spec.submodule_search_locations]
        elif spec.origin:
            roots.append(spec.origin)
    return tuple(roots)


class _Function:
    """One function of the engine's code: its arcs in the order of their first execution, and its values."""

    def __init__(self, code: CodeType) -> None:
        self.arcs: dict[tuple[int, int], int] = {}
        self.values: set[str] = set()
        self._named = not code.co_name.startswith("<")  # no comprehension or lambda
        arguments = code.co_argcount + code.co_kwonlyargcount
        arguments += bool(code.co_flags & CO_VARARGS) + bool(code.co_flags & CO_VARKEYWORDS)
        self._given = {*code.co_varnames[:arguments], *code.co_freevars}

    def take(self, values: Mapping[str, object], returned: object) -> None:
        """Record the values of a call that ends."""
        if not self._named:
            return
        numbers: dict[str, int] = {}
        for name, value in (*values.items(), ("return", returned)):
            if name not in self._given:
                self.values.add(f"{name}: {kind(value)}")
            if (size := number(value)) is not None:
                numbers[f"#{name}" if isinstance(value, Sized) else name] = size
        self.values |= relations(numbers)


class LineTracer:
    """Traces this thread between `start` and `stop`; several spans add up."""

    def __init__(self, packages: Iterable[str]) -> None:
        self._roots = source_roots(packages)
        self._functions: dict[CodeType, _Function | None] = {}
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
        if code not in self._functions:
            self._functions[code] = _Function(code) if code.co_filename.startswith(self._roots) else None
        function = self._functions[code]
        if function is None:
            return None
        arcs, before, take = function.arcs, 0, function.take

        def executed(frame: FrameType, what: str, argument: object) -> Callable[..., Any]:
            nonlocal before
            if what == "line":
                arc = (before, frame.f_lineno)
                before = frame.f_lineno
                if arc not in arcs:
                    self._count += 1
                    arcs[arc] = self._count
            elif what == "return":
                take(frame.f_locals, argument)
                if (returned := _kind(argument)) and (RETURN, returned) not in arcs:
                    self._count += 1
                    arcs[RETURN, returned] = self._count
            return executed

        return executed

    def executed(self) -> tuple[Executed, ...]:
        """Return what was recorded; file names are relative to the folder that holds the package."""
        return tuple(
            Executed(
                self._relative(code.co_filename),
                code.co_qualname,
                tuple((*arc, order) for arc, order in function.arcs.items()),
                tuple(sorted(function.values)),
            )
            for code, function in self._functions.items()
            if function and function.arcs
        )

    def _relative(self, file: str) -> str:
        root = next((root for root in self._roots if file.startswith(root)), "")
        return Path(file).relative_to(Path(root).parent).as_posix() if root else file


def _kind(value: object) -> int:
    """Return the class of a returned value; 0 for all values that are not told apart."""
    value = plain(value)
    if value is None:
        return 1
    if isinstance(value, bool):
        return 3 if value else 2
    if isinstance(value, int):
        return 4 if value == 0 else 5
    return 0
