"""Proof that the harness is tested: one line of it broken at a time, until a test says so.

The tests are collected once. For each break a fork of that process exchanges the code of the broken function and runs
them, those that fit the file first, up to the first failure (or hang). Not broken: messages, default values, whatever
is in no function. What is left is printed, to be judged: no difference at all, a short cut, or a rule without a test.
"""

from __future__ import annotations

import argparse
import ast
import gc
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
REFERENCE = ("layout", "ledger", "model", "pool", "prefix_cache", "request", "tokens")
ORACLES = ("base", "cache", "memory", "pool", "output", "device_order", "liveness", "state", "tables")
FILES = (
    *(f"reference/{name}.py" for name in REFERENCE),
    *(f"harness/judge/oracles/{name}.py" for name in ORACLES),
    *(f"harness/record/{name}.py" for name in ("clauses", "explain")),
    *(f"harness/judge/{name}.py" for name in ("lockstep", "ledger_updates")),
    *(f"harness/draw/{name}.py" for name in ("reduce", "violation")),
)
TESTS = [
    "tests/reference",
    "tests/harness/judge/oracles",
    "tests/harness/judge",
    "tests/harness/record",
    "tests/harness/draw",
]
TESTS += ["tests/targets/hybrid", "tests/test_corpus.py"]
SECONDS_MAX = 300
OPPOSITE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Add: ast.Sub, ast.Sub: ast.Add,
}  # fmt: skip
CALLS = {"max": "min", "min": "max", "any": "all", "all": "any"}


class Break(NamedTuple):
    """`old`, at `start` (bytes) of the file, becomes `new`."""

    file: str
    line: int
    start: int
    old: str
    new: str


def changes(node: ast.AST) -> Iterator[tuple[Any, str]]:
    """Which parts of a node become what."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.comprehension(ifs=[test]):
            yield from ((test, "True"), (test, "False"))
        case ast.Compare(left, [op], [right]) if type(op) in OPPOSITE:
            yield node, ast.unparse(ast.Compare(left, [OPPOSITE[type(op)]()], [right]))
        case ast.BoolOp(op, values):
            for index in range(len(values)):
                rest = values[:index] + values[index + 1 :]
                yield node, ast.unparse(ast.BoolOp(op, rest) if len(rest) > 1 else rest[0])
        case ast.BinOp(left, op, right) if type(op) in OPPOSITE:
            yield node, ast.unparse(ast.BinOp(left, OPPOSITE[type(op)](), right))
        case ast.Call(ast.Name(name) as function) if name in CALLS:
            yield function, CALLS[name]
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.Continue() | ast.Break():
            yield node, "break" if isinstance(node, ast.Continue) else "continue"
        case ast.Return(ast.Call() | ast.BoolOp() | ast.IfExp()):
            yield node, "return None"


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but text, assertions and parameters."""
    if not isinstance(node, ast.JoinedStr | ast.Assert | ast.arguments):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from walk(child)


def breaks_of(file: str) -> Iterator[Break]:
    """All of a file."""
    text = (ROOT / file).read_bytes()
    lines = [0]
    for line in text.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    for node in walk(ast.parse(text)):
        for part, new in changes(node):
            start, stop = lines[part.lineno - 1] + part.col_offset, lines[part.end_lineno - 1] + part.end_col_offset
            old = text[start:stop].decode()
            same_lines = new + "\n" * old.count("\n")
            yield Break(file, part.lineno, start, old, f"({same_lines})" if isinstance(part, ast.expr) else same_lines)


def codes(text: bytes | CodeType, path: str = "") -> Iterator[tuple[tuple[str, int], CodeType]]:
    """Code of the functions and methods of a file, by name and line."""
    for code in (compile(text, path, "exec") if isinstance(text, bytes) else text).co_consts:
        if isinstance(code, CodeType):
            yield (code.co_qualname, code.co_firstlineno), code
            yield from codes(code)


class Breaker:
    """Instead of running the collected tests once, runs them on each break."""

    def __init__(self, breaks: list[Break]) -> None:
        self.breaks = breaks
        self.failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        loaded = [one for one in gc.get_objects() if isinstance(one, FunctionType)]
        counts: dict[str, Counter[str]] = {}
        for one in self.breaks:
            child = os.fork()
            if not child:
                signal.alarm(SECONDS_MAX)
                os._exit(self.caught(one, loaded, session))
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            verdict = {0: "left", 3: "skipped"}.get(status, "caught")
            counts.setdefault(one.file, Counter())[verdict] += 1
            if verdict == "left":
                print(f"{one.file}:{one.line}: {one.old!r} -> {one.new!r}", flush=True)
        print(*(f"{file}: {dict(count)}" for file, count in counts.items()), sep="\n")
        return True

    def caught(self, one: Break, loaded: list[FunctionType], session: pytest.Session) -> int:
        """In a fork: 1 if a test fails, 0 if none does, 3 if the break is of no function's code."""
        text, module = (ROOT / one.file).read_bytes(), sys.modules[f"hybridfuzz.{one.file[:-3].replace('/', '.')}"]
        path, stop = str(module.__file__), one.start + len(one.old.encode())
        try:
            before = dict(codes(text, path))
            after = dict(codes(text[: one.start] + one.new.encode() + text[stop:], path))
            for function in loaded:
                name = function.__code__.co_qualname, function.__code__.co_firstlineno
                if function.__module__ == module.__name__ and before.get(name) != after.get(name):
                    function.__code__ = after[name]
        except (SyntaxError, ValueError):  # a default, a closure
            return 3
        fitting = Path(one.file).stem
        items = sorted(session.items, key=lambda item: (fitting not in item.nodeid, "silence" in item.nodeid))
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return 1
        return 0


def main() -> None:
    """Run a share of the breaks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=0.1, help="of all breaks (which take hours)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", nargs="+", default=TESTS, metavar="PATH")
    parser.add_argument("files", nargs="*", default=FILES, metavar="FILE")
    arguments = parser.parse_args()
    breaks = [one for file in arguments.files for one in breaks_of(file)]
    chosen = random.Random(arguments.seed).sample(breaks, round(len(breaks) * arguments.share))
    print(f"{len(chosen)} of {len(breaks)} breaks", flush=True)
    os.chdir(ROOT)
    plugin = Breaker(sorted(chosen, key=lambda one: (one.file, one.start)))
    sys.exit(
        pytest.main(
            ["-p", "no:terminal", "-p", "no:xdist", "-p", "no:cacheprovider", *arguments.tests], plugins=[plugin]
        )
    )


if __name__ == "__main__":
    main()
