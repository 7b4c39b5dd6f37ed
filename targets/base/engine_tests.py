"""Tests in the style of an engine's own test tree: what `hybridfuzz repro --kind pytest` writes.

An engine's `repro` module may offer `write_test(trace, script, name) -> EngineTest`. A script that prepares its process
before it imports the engine becomes two modules: the test, whose scenario runs in a new process, and what it uses.
It may also offer `write_unit_test(trace, script, about, name, run, run_fixed) -> EngineTest`: a test of the part of the
engine that is wrong, without the rest, or TargetError where that part alone does not show the failure.
"""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from .repro import Script

NOTE = "  # "
"""Begins a comment behind code: above it, if the line is too long."""
ENGINE = "{}_engine"
"""Module with the machinery of a test."""


Python = Callable[[str], str]
"""Runs a program in an engine's process, where hybridfuzz can be imported, and returns its output."""


class EngineTest(Struct, frozen=True):
    """A test for an engine's own tree.

    files    path in the tree -> text; the test itself comes first
    run      arguments of the engine's Python that run it there
    promise  what it prints when it fails as expected, "" for what its script prints
    part     the part of the engine that it is a test of, "" for all that its script needs
    """

    files: Mapping[str, str]
    run: Sequence[str]
    promise: str = ""
    part: str = ""

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
            yield from _broken(line, before, width)


def _broken(line: str, before: str, width: int) -> Iterator[str]:
    """Yield a statement whose call, collection or import is spread over lines, and what is too long in that, too;
    another line as it is."""
    code = line.lstrip()
    before += line[: len(line) - len(code)]
    # An argument of a call that is spread already: with its comma it would be read as a tuple.
    whole, code = code, code.removesuffix(",")
    tail = whole[len(code) :]
    try:
        node = ast.parse(code).body[0]
    except SyntaxError:  # a part of a longer statement
        yield before + whole
        return
    if isinstance(node, ast.ImportFrom):
        yield f"{before}{code.partition(' import ')[0]} import ("
        yield from (f"{before}    {one.name}," for one in node.names)
        yield f"{before})"
        return
    value = getattr(node, "value", None)
    if isinstance(node, ast.Assert) and isinstance(node.test, ast.Compare):
        value = node.test.comparators[-1]
    if isinstance(value, ast.expr):
        yield from _spread(code, value, code[: value.col_offset], tail, before, width)
    else:
        yield before + whole


def _spread(code: str, node: ast.expr, head: str, tail: str, before: str, width: int) -> Iterator[str]:
    """Yield an expression of `code` between `head` and `tail`, its parts on lines of their own if it is too long."""
    whole = f"{before}{head}{ast.get_source_segment(code, node)}{tail}"
    opening, parts, closing = _parts(code, node)
    if len(whole) <= width or not parts:
        yield whole
        return
    yield before + head + opening
    if all(isinstance(part, ast.Constant) and isinstance(part.value, int) and not name for name, part in parts):
        numbers = " ".join(f"{ast.get_source_segment(code, part)}," for _, part in parts)
        yield from textwrap.wrap(numbers, width, initial_indent=f"{before}    ", subsequent_indent=f"{before}    ")
    else:
        for name, part in parts:
            yield from _spread(code, part, name, ",", f"{before}    ", width)
    yield before + closing + tail


def _parts(code: str, node: ast.expr) -> tuple[str, list[tuple[str, ast.expr]], str]:
    """Return what opens an expression, its parts with what stands before each, and what closes it."""
    match node:
        case ast.Call():
            named = [(f"{one.arg}=" if one.arg else "**", one.value) for one in node.keywords]
            function = ast.get_source_segment(code, node.func)
            return f"{function}(", [*(("", one) for one in node.args), *named], ")"
        case ast.List():
            return "[", [("", one) for one in node.elts], "]"
        case ast.Tuple():
            return "(", [("", one) for one in node.elts], ")"
        case ast.Dict():
            keys = [ast.get_source_segment(code, one) if one else "" for one in node.keys]
            return "{", [(f"{key}: " if key else "**", one) for key, one in zip(keys, node.values, strict=True)], "}"
        case _:
            return "", [], ""


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
