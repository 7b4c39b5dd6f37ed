"""Modules, functions and statements of Python source: which lines count.

Statements inside functions count; those that run at import (module and class bodies, `def` lines of functions that are
not nested, default values) do not, whether they ran or not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def files_of(modules: Iterable[str]) -> dict[str, Path]:
    """Return the files that patterns of modules (`Scope.modules`) name here: name below the import folder -> file.

    Nothing is imported but the packages above one that has no folder of its own.
    """
    found: dict[str, Path] = {}
    for pattern in modules:
        for folder, inner in _folders(pattern):
            for path in sorted(folder.glob(inner)):
                found.setdefault(f"{pattern.removesuffix(inner)}{path.relative_to(folder).as_posix()}", path.resolve())
    return found


def _folders(pattern: str) -> Iterator[tuple[Path, str]]:
    """Yield each folder of the pattern's package, and the rest of the pattern."""
    parts = pattern.split("/")
    for depth in range(1, len(parts)):
        spec = find_spec(".".join(parts[:depth]))
        if spec is None:
            return
        folders = [Path(place) for place in spec.submodule_search_locations or () if Path(place).is_dir()]
        if folders:
            yield from ((folder, "/".join(parts[depth:])) for folder in folders)
            return


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Yield each function with its name as in tracebacks of coverage.py: `Class.method`, `outer.inner`."""
    for node in ast.iter_child_nodes(tree):
        name = f"{prefix}{node.name}" if isinstance(node, Function | ast.ClassDef) else ""
        if isinstance(node, Function):
            yield name, node
        yield from functions(node, f"{name}." if name else prefix)


def is_kernel(function: Function) -> bool:
    """Return True for a Triton kernel, which Python does not execute line by line."""
    return any("triton.jit" in ast.unparse(decorator) for decorator in function.decorator_list)


def body_lines(function: Function) -> range:
    """Return the lines of a function's body."""
    return range(function.body[0].lineno, (function.body[-1].end_lineno or 0) + 1)


def branches(function: Function) -> Iterator[tuple[str, range]]:
    """Yield each branch of a function, nested functions left out: its name, and its lines.

    The name is the line that leads to the branch as `ast.unparse` writes it, without the colon: `if a is None`,
    `except ValueError`, `case 1`, `for one in many`. The lines are those behind it, and those of an `except` or a
    `case` itself, which runs only if the ones before did not fit. `else of if a is None` has what follows if not,
    further conditions included; so has `after if a is None` where the branch leaves the block and has no `else`. A
    branch on the line that leads to it takes that line along. Loops, `with` and `try` have branches, too.
    """
    for node, rest in _inside(function):
        body, other = getattr(node, "body", None), getattr(node, "orelse", None)
        if not isinstance(node, ast.stmt | ast.ExceptHandler | ast.match_case) or not body:
            continue
        head = ast.unparse(node).strip().splitlines()[0].removesuffix(":")
        yield head, _lines([node.pattern if isinstance(node, ast.match_case) else node, *body][_runs(node) :])
        if other:
            yield f"else of {head}", _lines(other)
        elif rest and isinstance(node, ast.If) and isinstance(body[-1], LEAVES):
            yield f"after {head}", _lines(rest)


def _runs(node: ast.AST) -> int:
    """Return 1 for a line that runs whether or not its branch does, else 0."""
    return 0 if isinstance(node, ast.ExceptHandler | ast.match_case) else 1


def _inside(node: ast.AST) -> Iterator[tuple[ast.AST, list[ast.stmt]]]:
    """Yield what a node contains, nested functions left out, each with the statements behind it in its block."""
    blocks = [block for _, block in ast.iter_fields(node) if isinstance(block, list)]
    for block in blocks:
        for index, child in enumerate(block):
            if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case) and not isinstance(child, INNER):
                yield child, block[index + 1 :]
                yield from _inside(child)


def _lines(nodes: Sequence[ast.stmt | ast.ExceptHandler | ast.pattern]) -> range:
    return range(nodes[0].lineno, (nodes[-1].end_lineno or nodes[-1].lineno) + 1)


def statement_of(source: str) -> dict[int, int]:
    """Return, for each line inside a function, the first line of the innermost statement that it belongs to."""
    found: dict[int, int] = {}
    for _, function in functions(ast.parse(source)):
        for statement in function.body:
            _add(statement, found)
    return found


def _add(node: ast.AST, found: dict[int, int]) -> None:
    """Add a statement, then those in it, which replace it on their lines."""
    if isinstance(node, ast.stmt | ast.ExceptHandler):
        first, last = node.lineno, node.end_lineno or node.lineno
    elif isinstance(node, ast.match_case):
        first, last = node.pattern.lineno, node.body[-1].end_lineno or node.pattern.lineno
    else:
        return
    decorators = [decorator.lineno for decorator in getattr(node, "decorator_list", ())]
    found.update(dict.fromkeys(range(min([first, *decorators]), last + 1), min([first, *decorators])))
    for child in ast.iter_child_nodes(node):
        _add(child, found)
