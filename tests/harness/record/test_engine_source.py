"""Which lines count: statements inside functions, named by their first lines as coverage.py names them."""

import ast
from pathlib import Path
from textwrap import dedent

import coverage

from hybridfuzz.harness.record.engine_source import branches, files_of, functions, is_kernel, statement_of

ROOT = Path(__file__).parents[3]
SOURCE = dedent(
    """\
    import os

    X = max(
        1, 2)

    class A:
        y = 1

        @property
        def f(self, default=len("ab")):
            "Docstring."
            if (self.y
                    and X):
                return g(
                    1,
                    2)
            def inner():
                return 3
            try:
                inner()
            except (ValueError,
                    KeyError):
                pass
            match X:
                case 1:
                    return 1
            return [a
                    for a in range(3)]
    """
)


def test_lines_inside_functions_are_those_of_their_innermost_statement() -> None:
    lines = SOURCE.splitlines()
    found = {lines[line - 1].strip(): lines[first - 1].strip() for line, first in statement_of(SOURCE).items()}
    assert found["and X):"] == "if (self.y"
    assert found["2)"] == "return g("
    assert found["return 3"] == "return 3"
    assert found["KeyError):"] == "except (ValueError,"
    assert found["case 1:"] == "case 1:"
    assert found["for a in range(3)]"] == "return [a"


def test_lines_that_run_at_import_do_not_count() -> None:
    lines = SOURCE.splitlines()
    counted = {lines[line - 1].strip() for line in statement_of(SOURCE)}
    assert counted.isdisjoint({"import os", "1, 2)", "class A:", "y = 1", "@property"})
    assert not [line for line in counted if line.startswith("def f")]
    assert "def inner():" in counted, "a nested function is defined when the outer one runs"


def test_statements_are_those_of_coverage() -> None:
    """On all of our own modules: no first line that coverage.py does not know as a statement of a function."""
    tool = coverage.Coverage(data_file=None, config_file=False)
    tool.get_data()
    for file in sorted((ROOT / "harness").rglob("*.py"))[::4]:
        source = file.read_text(encoding="utf-8")
        _, statements, excluded, _, _ = tool.analysis2(str(file))
        known = {*statements, *excluded}
        documented = {
            node.body[0].lineno
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node, clean=False) is not None
        }
        documented |= {
            node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Global | ast.Nonlocal)
        }
        firsts = set(statement_of(source).values()) - documented
        assert firsts <= known, file


def test_functions_have_qualified_names() -> None:
    assert [name for name, _ in functions(ast.parse(SOURCE))] == ["A.f", "A.f.inner"]


def test_a_kernel_is_known_by_its_decorator() -> None:
    tree = ast.parse("@triton.jit\ndef k(): pass\n@triton.jit(do_not_specialize=['a'])\ndef l(): pass\ndef f(): pass")
    assert [is_kernel(function) for _, function in functions(tree)] == [True, True, False]


def test_modules_are_found_without_importing_them() -> None:
    found = files_of(["hybridfuzz/targets/hybrid/host/*.py", "no_such_package/*.py", "json/decoder.py"])
    assert found["hybridfuzz/targets/hybrid/host/scheduler.py"] == ROOT / "targets/hybrid/host/scheduler.py"
    assert "json/decoder.py" in found
    assert not [name for name in found if name.startswith("no_such_package")]


def test_branches_are_named_by_the_lines_that_lead_to_them() -> None:
    """A nested function is not a part of the branch's function; `after` needs a branch that leaves its block."""
    source = dedent(
        """\
        def f(a):
            if a == "x":
                return 1
            if (a
                    is None):
                b = 1
            elif a:
                b = 2
            else:
                b = 3
            for c in a:
                def inner():
                    if c:
                        return 4
                if c:
                    continue
                b = 5
            try:
                b = 6
            except ValueError as e:
                b = 7
            match a:
                case 1 | 2:
                    b = 8
                case _:
                    b = 9
            return b
        """
    )
    [(_, function), _] = functions(ast.parse(source))
    lines = source.splitlines()
    found = {name: " ".join(lines[line - 1].strip() for line in span) for name, span in branches(function)}
    end = found.pop("after if a == 'x'")
    assert end.startswith("if (a is None):") and end.endswith("return b")
    assert found.pop("for c in a").endswith("b = 5")
    assert found == {
        "if a == 'x'": "return 1",
        "if a is None": "b = 1",
        "else of if a is None": "elif a: b = 2 else: b = 3",
        "if a": "b = 2",
        "else of if a": "b = 3",
        "if c": "continue",
        "after if c": "b = 5",
        "try": "b = 6",
        "except ValueError as e": "except ValueError as e: b = 7",
        "case 1 | 2": "case 1 | 2: b = 8",
        "case _": "case _: b = 9",
    }
