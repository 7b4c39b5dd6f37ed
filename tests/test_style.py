"""The size of files and functions, and which folder may import which."""

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("harness", "reference", "targets", "reports")
FILE_LINES = 300
FUNCTION_LINES = 50

# The longer ones that there are, as {"harness/x.py": lines, "harness/x.py::function": lines}.
# A ratchet: an entry is the exact size, so it only ever goes down, and goes away.
LONGER: dict[str, int] = {}


def sources(*folders: str) -> Iterator[tuple[str, str]]:
    """The path (from the root) and the text of every Python file below the folders."""
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = file.relative_to(ROOT).as_posix()
            if not path.startswith("reports/out/"):
                yield path, file.read_text(encoding="utf-8")


def sizes(path: str, text: str) -> Iterator[tuple[str, int, int]]:
    """Name, lines and limit of a file and of each function in it."""
    yield path, len(text.splitlines()), FILE_LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield f"{path}::{node.name}", lines, FUNCTION_LINES


def imports(path: str, text: str) -> Iterator[str]:
    """Absolute dotted names of what a file imports; `from . import x` gives hybridfuzz.FOLDER.x."""
    package = ["hybridfuzz", *Path(path).parent.parts]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = [*base, *filter(None, [node.module])]
            yield from (".".join([*module, alias.name]) for alias in node.names)


def imported(folder: str) -> set[tuple[str, str]]:
    """All (path, imported name) of a folder."""
    return {(path, name) for path, text in sources(folder) for name in imports(path, text)}


def within(name: str, packages: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def test_files_and_functions_are_short() -> None:
    long = {
        name: lines for path, text in sources(*FOLDERS) for name, lines, limit in sizes(path, text) if lines > limit
    }
    assert long == LONGER


def test_reference_needs_only_numpy() -> None:
    allowed = ("hybridfuzz.reference", "numpy", *sys.stdlib_module_names)
    assert not {use for use in imported("reference") if not within(use[1], allowed)}


def test_targets_never_import_the_harness() -> None:
    assert not {use for use in imported("targets") if within(use[1], ["hybridfuzz.harness"])}


def test_harness_knows_targets_only_by_protocol_and_registry() -> None:
    folders = {path.name for path in (ROOT / "targets").iterdir() if path.is_dir()}
    concrete = [f"hybridfuzz.targets.{name}" for name in folders - {"base"}]
    assert not {use for use in imported("harness") if within(use[1], concrete)}


@pytest.mark.parametrize(
    ("statement", "name"),
    [
        ("import numpy.linalg as la", "numpy.linalg"),
        ("from hybridfuzz.targets import vllm", "hybridfuzz.targets.vllm"),
        ("from . import pool", "hybridfuzz.reference.sub.pool"),
        ("from .pool import Pool", "hybridfuzz.reference.sub.pool.Pool"),
        ("from ..tags import tag", "hybridfuzz.reference.tags.tag"),
        ("from ...targets import vllm", "hybridfuzz.targets.vllm"),
        ("def f():\n    from ...harness import cli", "hybridfuzz.harness.cli"),
    ],
)
def test_imports_are_made_absolute(statement: str, name: str) -> None:
    assert list(imports("reference/sub/file.py", statement)) == [name]
