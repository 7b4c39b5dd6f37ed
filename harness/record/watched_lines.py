"""Records which of some lines of an engine's source run: those of a pull request.

Other code must not pay for it, and a tracer makes it: one in C, such as that of coverage.py, is called for each line
that runs anywhere, and `sys.settrace` for each call. On vLLM both take more time than the traces. So watched files are
compiled with a call before each watched statement, when the engine imports them; whatever reads their source, such as a
compiler of kernels, finds it unchanged, and so do tracebacks: line numbers stay.

`watch` has to be called before the engine is imported. Lines that the adapter runs in a translation of its own
(`targets.base.translated_lines`) count as well.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from os.path import realpath
from pathlib import Path
from types import CodeType, ModuleType

from ...targets.base.translated_lines import TRANSLATED
from .engine_source import functions, is_kernel, statement_of

Watched = Mapping[str, Sequence[int]]
"""First lines of statements by real path."""
HIT = "__hybridfuzz_line_runs__"
"""The name in `builtins` that watched files call."""


class WatchedLines:
    """The lines that were executed since the last `clear`. Watches nothing without any lines."""

    def __init__(self, watched: Watched) -> None:
        self._lines = [(path, line) for path, lines in watched.items() for line in lines]
        self._numbers = {line: number for number, line in enumerate(self._lines)}
        self._hit: set[int] = set()
        self._first: dict[str, dict[int, int]] = {}
        """Line -> first line of its statement, in files with translated lines."""

    @property
    def watched(self) -> bool:
        """Return True if there are any lines."""
        return bool(self._lines)

    def watch(self) -> None:
        """Instrument the watched files when they are imported."""
        if not self._lines:
            return
        setattr(builtins, HIT, self._hit.add)
        sys.meta_path.insert(0, _Finder({path for path, _ in self._lines}, self._numbers))
        for path in {path for path, _ in self._lines}:
            source = Path(path).read_text(encoding="utf-8")
            if any(is_kernel(one) for _, one in functions(ast.parse(source))):
                TRANSLATED.wanted = True
                self._first[path] = statement_of(source)

    def clear(self) -> None:
        """Forget what ran so far."""
        self._hit.clear()
        TRANSLATED.reached.clear()

    def ran(self) -> dict[str, list[int]]:
        """Return the watched lines that ran, by real path."""
        found = {self._lines[number] for number in self._hit}
        for name, line in TRANSLATED.reached if self._first else ():
            path = realpath(name)
            found.add((path, self._first.get(path, {}).get(line, 0)))
        lines: dict[str, list[int]] = {}
        for path, line in sorted(found.intersection(self._numbers)):
            lines.setdefault(path, []).append(line)
        return lines


class _Finder:
    """Finds modules as Python does, and gives watched files a loader of their own."""

    def __init__(self, paths: set[str], numbers: Mapping[tuple[str, int], int]) -> None:
        self._paths = paths
        self._numbers = numbers

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module from a watched file, None for any other."""
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or not spec.origin or realpath(spec.origin) not in self._paths:
            return None
        spec.loader = _Loader(name, spec.origin, self._numbers)
        return spec


class _Loader(SourceFileLoader):
    """Compiles a file with calls before its watched statements, past the cache of compiled files."""

    def __init__(self, name: str, path: str, numbers: Mapping[tuple[str, int], int]) -> None:
        super().__init__(name, path)
        self._numbers = numbers

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the module."""
        path, real = self.get_filename(fullname), realpath(self.path)
        tree = ast.parse(self.get_data(path), path)
        numbers = {line: number for (file, line), number in self._numbers.items() if file == real}
        _Calls(numbers).visit(tree)
        return compile(tree, path, "exec", dont_inherit=True)


class _Calls(ast.NodeTransformer):
    """Puts a call before each watched statement; into the body of an `except` or `case`, which is no statement."""

    def __init__(self, numbers: Mapping[int, int]) -> None:
        self._numbers = numbers

    def visit(self, node: ast.AST) -> ast.AST:
        """Change the lists of statements in a node, innermost first."""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_kernel(node):
            return node  # its compiler reads the source, and translates it
        self.generic_visit(node)
        for field in ("body", "orelse", "finalbody"):
            if isinstance(statements := getattr(node, field, None), list):
                setattr(node, field, [new for one in statements for new in self._called(one)])
        if isinstance(node, ast.ExceptHandler):
            node.body[:0] = self._call(node.lineno, node.body[0])
        elif isinstance(node, ast.match_case):
            node.body[:0] = self._call(node.pattern.lineno, node.body[0])
        return node

    def _called(self, statement: ast.stmt) -> list[ast.stmt]:
        decorators = [decorator.lineno for decorator in getattr(statement, "decorator_list", ())]
        return [*self._call(min([statement.lineno, *decorators]), statement), statement]

    def _call(self, line: int, place: ast.stmt) -> list[ast.stmt]:
        """Return the call for a line, at the place of a statement; nothing for a line that is not watched."""
        if line not in self._numbers:
            return []
        call = ast.Call(ast.Name(HIT, ast.Load()), [ast.Constant(self._numbers[line])], [])
        return [ast.fix_missing_locations(ast.copy_location(ast.Expr(call), place))]
