"""Watched lines: those that run, in files that are imported after they are watched; all else is as it was."""

import importlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from hybridfuzz.harness.record.watched_lines import WatchedLines
from hybridfuzz.targets.base.translated_lines import TRANSLATED

SOURCE = '''"""A module."""
from __future__ import annotations


def route(kind: str, *numbers: int) -> object:
    """Return something."""
    told = (
        "a",
        kind,
    )
    if kind == "loop":
        for number in numbers: total = number
        else:
            total = -1
        return total
    elif kind == "raise":
        try:
            raise ValueError(told)
        except ValueError:
            return "caught"
        finally:
            text = ()
    match numbers:
        case [1]:
            return "one"
        case _:
            pass
    @staticmethod
    def nested() -> str:
        return "nested"
    return nested()


def fails() -> None:
    raise KeyError("here")


class Pool:
    def take(self) -> int:
        return 1


class triton:
    jit = staticmethod(lambda function: function)


@triton.jit
def kernel(x):
    return x + 0
'''
LINES = SOURCE.splitlines()


def number(words: str) -> int:
    [found] = [number for number, line in enumerate(LINES, 1) if line.strip().startswith(words)]
    return found


EVERY = {words: number(words) for words in (
    "told = (", 'if kind == "loop"', "for number", "total = -1", "return total", 'elif kind == "raise"', "try:",
    "raise ValueError", "except ValueError", 'return "caught"', "text = ()", "match", "case [1]", 'return "one"',
    "case _", "pass", "@staticmethod", 'return "nested"', "return nested()", "raise KeyError", "return 1",
    "return x + 0",
)}  # fmt: skip


class Watching:
    """A module of its own, imported while all of its lines are watched."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.py"
        self.path.write_text(SOURCE)
        self.lines = WatchedLines({str(self.path): sorted(EVERY.values())})
        self.lines.watch()
        self.module: ModuleType = importlib.import_module(name)

    def ran(self) -> set[str]:
        found = self.lines.ran()
        assert set(found) <= {str(self.path)}
        return {words for words, line in EVERY.items() if line in found.get(str(self.path), ())}


@pytest.fixture
def watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watching]:
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield Watching(tmp_path, "watched_engine")
    sys.meta_path[:] = before
    sys.modules.pop("watched_engine")


@pytest.mark.parametrize(
    ("arguments", "result", "ran"),
    [
        (("loop", 5), -1, ("for number", "total = -1", "return total")),
        (("loop",), -1, ("for number", "total = -1", "return total")),
        (
            ("raise",),
            "caught",
            ('elif kind == "raise"', "try:", "raise ValueError", "except ValueError", 'return "caught"', "text = ()"),
        ),
        (("one", 1), "one", ('elif kind == "raise"', "match", "case [1]", 'return "one"')),
        (
            ("other", 2),
            "nested",
            ('elif kind == "raise"', "match", "case _", "pass", "@staticmethod", 'return "nested"', "return nested()"),
        ),
    ],
)
def test_what_runs_is_recorded_and_does_the_same(
    watching: Watching, arguments: tuple[object, ...], result: object, ran: tuple[str, ...]
) -> None:
    """Each time anew, also a line that ran before; imports and definitions are none of it."""
    for _ in range(2):
        watching.lines.clear()
        assert watching.module.route(*arguments) == result
        assert watching.ran() == {"told = (", 'if kind == "loop"', *ran}
    watching.lines.clear()
    assert watching.ran() == set()


def test_tracebacks_name_the_lines_of_the_source(watching: Watching) -> None:
    with pytest.raises(KeyError) as raised:
        watching.module.fails()
    frame = traceback.extract_tb(raised.tb)[-1]
    assert (frame.filename, frame.lineno) == (str(watching.path), EVERY["raise KeyError"])
    assert watching.module.route.__doc__ == "Return something."
    assert watching.module.__doc__ == "A module."
    assert watching.module.route.__annotations__["kind"] == "str", "the file's own future"
    assert watching.module.Pool().take() == 1


def test_other_modules_are_loaded_as_ever(watching: Watching, tmp_path: Path) -> None:
    (tmp_path / "another_engine.py").write_text(SOURCE)
    spec = importlib.import_module("another_engine").__spec__
    assert type(spec.loader).__name__ == "SourceFileLoader"
    sys.modules.pop("another_engine")


def test_a_file_that_is_imported_through_a_link_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout's view is a folder of links."""
    (tmp_path / "checkout").mkdir()
    (tmp_path / "view").mkdir()
    path = tmp_path / "checkout/linked_engine.py"
    path.write_text("def f():\n    return 1\n")
    (tmp_path / "view/linked_engine.py").symlink_to(path)
    monkeypatch.syspath_prepend(tmp_path / "view")
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    lines = WatchedLines({str(path): [2]})
    lines.watch()
    importlib.import_module("linked_engine").f()
    sys.modules.pop("linked_engine")
    assert lines.ran() == {str(path): [2]}


def test_lines_of_a_translation_count(watching: Watching) -> None:
    """The interpreter of kernels reports them."""
    watching.lines.clear()
    TRANSLATED.add((str(watching.path), EVERY["return 1"]))
    TRANSLATED.add((str(watching.path), 1))
    assert watching.module.kernel(3) == 3, "what compiles it reads the source"
    assert watching.ran() == {"return 1"}


def test_without_lines_nothing_is_watched() -> None:
    before = list(sys.meta_path)
    lines = WatchedLines({})
    lines.watch()
    assert sys.meta_path == before
    assert lines.ran() == {}
