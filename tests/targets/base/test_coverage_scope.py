"""`coverage.toml`: each engine's is valid, and one that is not says what is wrong."""

from fnmatch import fnmatch
from pathlib import Path

import pytest

from hybridfuzz.targets.base.coverage_scope import Exclusion, Scope, read_scope
from hybridfuzz.targets.base.registry import coverage_scope, engines
from hybridfuzz.targets.base.trace import TraceError

BINARY = {"llamacpp"}
"""Engines without lines of Python."""


@pytest.mark.parametrize("engine", sorted({*engines()} - BINARY))
def test_an_engine_declares_its_modules(engine: str) -> None:
    """Sorted, without repetition; an excluded function is in a declared module and excluded once."""
    scope = coverage_scope(engine)
    assert list(scope.modules) == sorted(set(scope.modules))
    patterns = [pattern for pattern, _ in scope.patterns()]
    assert len(patterns) == len(set(patterns))
    for exclusion in scope.excluded:
        assert list(exclusion.functions) == sorted(exclusion.functions)
        for pattern in exclusion.functions:
            assert any(fnmatch(pattern.partition("::")[0], module) for module in scope.modules)
        assert list(exclusion.branches) == sorted(exclusion.branches)
    branches = [(function, branch) for function, branch, _ in scope.branches()]
    assert len(branches) == len(set(branches))
    for function, _ in branches:
        assert any(fnmatch(function.partition("::")[0], module) for module in scope.modules)
        assert not scope.reason(function), "all of it is excluded"


def test_the_first_pattern_that_fits_gives_the_reason() -> None:
    scope = Scope(("a.py",), (Exclusion("one", ("a.py::A.f",)), Exclusion("two", ("a.py::A.*",))))
    assert [scope.reason(f"a.py::{name}") for name in ("A.f", "A.g", "B.f")] == ["one", "two", ""]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modules = []", "modules is empty"),
        ("module = ['a.py']", "unknown field"),
        ("modules = 3", "Expected `array`"),
        ("modules = ['a.py'", "coverage.toml: "),
        ("modules = ['a.py']\n[[excluded]]\nreason = 'x'\nfunctions = ['a.py']", "expected MODULE.py::QUALIFIED.NAME"),
        (
            "modules = ['a.py']\n[[excluded]]\nreason = 'x'\n[excluded.branches]\n'a.py' = ['if a']",
            "expected MODULE.py::QUALIFIED.NAME",
        ),
        (
            "modules = ['a.py']\n[[excluded]]\nreason = 'x'\n[excluded.branches]\n'a.py::f' = [' ']",
            "expected the names of branches",
        ),
        ("modules = ['a.py']\n[[excluded]]\nreason = ' '\nfunctions = ['a.py::f']", "with a reason"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "coverage.toml"
    path.write_text(text)
    with pytest.raises(TraceError) as raised:
        read_scope(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
