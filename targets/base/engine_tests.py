"""Tests in the style of an engine's own test tree: what `hybridfuzz repro --kind pytest` writes.

An engine's `repro` module may offer `write_test(trace, script, name) -> EngineTest`. A script that prepares its process
before it imports the engine becomes two modules: the test, whose scenario runs in a new process, and what it uses.
"""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from .repro import Script

NOTE = "  # "
"""Begins a comment behind code: above it, if the line is too long."""
ENGINE = "{}_engine"
"""Module with the machinery of a test."""


class EngineTest(Struct, frozen=True):
    """A test for an engine's own tree.

    files  path in the tree -> text; the test itself comes first
    run    arguments of the engine's Python that run it there
    """

    files: Mapping[str, str]
    run: Sequence[str]

    @property
    def path(self) -> str:
        """The test itself."""
        return next(iter(self.files))


def docstring(script: Script, width: int) -> str:
    """Return the paragraphs of a script's docstring that are about the failure."""
    text = (ast.get_docstring(ast.parse(script.text)) or "").partition("\n\n")[0]
    return "\n".join(textwrap.wrap(text, width)).replace("\\", "\\\\")


def scenario(script: Script, module: str, width: int) -> str:
    """Return the function `scenario` with a script's body; `module` has its machinery."""
    shared = ", ".join(_shared(script))
    body = [f"from {module} import {shared}", "", *script.body]
    return "\n".join(["def scenario() -> None:", *indented(body, 4, width)])


def indented(body: Sequence[str], indent: int, width: int) -> Iterator[str]:
    """Yield lines of a function's body as formatters of code write them."""
    before = " " * indent
    for line in double_quoted("\n".join(body)).split("\n"):
        if len(line) + indent <= width:
            yield f"{before}{line}".rstrip()
        elif (code := line.lstrip()).startswith("#"):
            start = before + line[: -len(code)]
            yield from textwrap.wrap(code, width, initial_indent=start, subsequent_indent=f"{start}# ")
        elif (parts := line.partition(NOTE))[1]:
            yield from indented([line[: len(line) - len(code)] + f"# {parts[2]}", parts[0]], indent, width)
        else:
            yield from _broken(line, before)


def _broken(line: str, before: str) -> Iterator[str]:
    """Yield a call or an import, one argument or name to a line; another line as it is."""
    code = line.lstrip()
    before += line[: len(line) - len(code)]
    try:
        node = ast.parse(code).body[0]
    except SyntaxError:  # a part of a longer statement
        node = ast.Pass()
    call = getattr(node, "value", None)
    if isinstance(call, ast.Call):
        given = [ast.get_source_segment(code, one) for one in [*call.args, *call.keywords]]
        head = code[: call.func.end_col_offset]
    elif isinstance(node, ast.ImportFrom):
        given, head = [one.name for one in node.names], f"{code.partition(' import ')[0]} import "
    else:
        yield before + code
        return
    yield f"{before}{head}("
    yield from (f"{before}    {one}," for one in given)
    yield f"{before})"


def double_quoted(text: str) -> str:
    """Return code whose plain strings stand in double quotes."""
    lines = text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(text + "\n").readline):
        if token.type == tokenize.STRING and re.fullmatch(r"'[^'\"\\]*'", token.string):
            row, (first, last) = token.start[0] - 1, (token.start[1], token.end[1] - 1)
            line = lines[row]
            lines[row] = f'{line[:first]}"{line[first + 1 : last]}"{line[last + 1 :]}'
    return "\n".join(lines)


def _shared(script: Script) -> list[str]:
    """Return the names that a script's body has from its machinery."""
    defined = set()
    for node in ast.parse(script.machinery).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            defined.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            defined |= {alias.asname or alias.name for alias in node.names}
    used = {node.id for node in ast.walk(ast.parse("\n".join(script.body))) if isinstance(node, ast.Name)}
    return sorted(defined & used)


RUN_SCENARIO = """\
# A new process: its engine runs on the CPU, whatever this one has imported.
with ProcessPoolExecutor(1, get_context("spawn")) as pool:
    pool.submit(scenario).result()
"""


def class_name(name: str) -> str:
    """Return a test class's name for the name of a test."""
    return "Test" + "".join(part.capitalize() for part in name.split("_"))
