"""Copies definitions of this package into scripts: those that are asked for, and all that they use.

What is copied must need vLLM, torch and the standard library only. Names in `STAND_INS` are left out: a script has
its own, or they occur in annotations only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from posixpath import dirname, normpath
from typing import NamedTuple

STAND_INS = frozenset({"Bounds", "Columns", "Recorder"})


class Part(NamedTuple):
    """Copied text of one file, and the imports that it needs, one to a line."""

    imports: Sequence[str]
    text: str


class _File(NamedTuple):
    """A file's lines, its definitions by name, and what it imports by name: an import line, or (file, name) of ours."""

    lines: Sequence[str]
    definitions: Mapping[str, ast.stmt]
    imported: Mapping[str, str | tuple[str, str]]


def whole(name: str) -> Part:
    """Return a whole file but for its docstring and its imports."""
    file = _read(name)
    imports = [one for one in file.imported.values() if isinstance(one, str)]
    last = max(node.end_lineno or 0 for node in _tree(name).body[1:] if isinstance(node, ast.Import | ast.ImportFrom))
    return Part(list(dict.fromkeys(imports)), "\n".join(file.lines[last:]).strip("\n"))


def definitions(*wanted: tuple[str, str]) -> list[Part]:
    """Return (file, name) definitions and all that they use, one part for each file, the used files first."""
    needed: dict[str, list[str]] = {}
    imports: dict[str, dict[str, None]] = {}
    order: list[str] = []

    def need(name: str, definition: str) -> None:
        found = needed.setdefault(name, [])
        if definition in found:
            return
        found.append(definition)
        file = _read(name)
        for used in _names(file.definitions[definition]):
            if used in STAND_INS:
                continue
            if used in file.definitions:
                need(name, used)
            elif used in file.imported:
                source = file.imported[used]
                if isinstance(source, str):
                    imports.setdefault(name, {})[source] = None
                else:
                    need(*source)
        if name not in order:
            order.append(name)

    for one in wanted:
        need(*one)
    return [Part(list(imports.get(name, {})), _text(name, needed[name])) for name in order]


def import_block(parts: Sequence[Part]) -> list[str]:
    """Return the imports of all parts, a line for each module."""
    modules: dict[str, set[str]] = {}
    for line in sorted({line for part in parts for line in part.imports}):
        head, _, name = line.partition(" import ") if line.startswith("from ") else (line, "", "")
        modules.setdefault(head, set()).update([name] if name else [])
    ordered = sorted(modules.items(), key=lambda one: (one[0].startswith("from "), one[0]))
    return [f"{head} import {', '.join(sorted(names))}" if names else head for head, names in ordered]


def _text(name: str, needed: Sequence[str]) -> str:
    file, parts = _read(name), []
    for one, node in file.definitions.items():
        if one in needed:
            decorated = getattr(node, "decorator_list", None) or [node]
            parts.append("\n".join(file.lines[decorated[0].lineno - 1 : node.end_lineno]))
    return "\n\n\n".join(parts)


def _names(node: ast.stmt) -> Iterator[str]:
    return (one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))


@cache
def _tree(name: str) -> ast.Module:
    return ast.parse((files(__package__) / name).read_text(encoding="utf-8"))


@cache
def _read(name: str) -> _File:
    lines = (files(__package__) / name).read_text(encoding="utf-8").splitlines()
    found: dict[str, ast.stmt] = {}
    imported: dict[str, str | tuple[str, str]] = {}
    for node in _tree(name).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                found[target.id] = node
        elif isinstance(node, ast.Import):
            imported |= {(one.asname or one.name): ast.unparse(ast.Import([one])) for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module != "__future__":
            for one in node.names:
                bound = one.asname or one.name
                if node.level:
                    folder = normpath("/".join([dirname(name) or ".", *[".."] * (node.level - 1)]))
                    imported[bound] = (normpath(f"{folder}/{(node.module or '').replace('.', '/')}.py"), one.name)
                else:
                    imported[bound] = ast.unparse(ast.ImportFrom(node.module, [one], 0))
    return _File(lines, found, imported)
