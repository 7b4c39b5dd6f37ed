"""The report: what counts, what is left out and why, and the files that it writes."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from hybridfuzz.harness.measure.coverage.report import CoverageReport, ModuleCoverage, ReportError, write_report
from hybridfuzz.harness.measure.coverage.terminal import report_text
from hybridfuzz.harness.record.reached_lines import SavedLines
from hybridfuzz.targets.base.coverage_scope import Exclusion, Scope

HERE = Path(__file__).parents[3]
MODULE = "toy_cache/engine.py"
LINES = (HERE / "toy_cache" / "engine.py").read_text(encoding="utf-8").splitlines()
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}


def numbers(*texts: str) -> list[int]:
    return [next(i for i, line in enumerate(LINES, 1) if line.strip() == text) for text in texts]


def reported(
    tmp_path: Path, lines: Sequence[int], *excluded: str, modules: Sequence[str] = (MODULE,)
) -> CoverageReport:
    scope = Scope(tuple(modules), (Exclusion("a reason", excluded),) if excluded else ())
    saved = SavedLines("toy", "1.0", 7, 3, {MODULE: lines})
    return write_report(tmp_path, saved, scope, sys.executable, ENVIRONMENT)


def module(report: CoverageReport) -> ModuleCoverage:
    [found] = [one for one in report.modules if one.module == MODULE]
    return found


REACHED = ("if block < 0:", "self.blocks.append(block)", "return True", "self.blocks: list[int] = []")


def test_statements_of_functions_are_counted(tmp_path: Path) -> None:
    """Import-time lines are neither reached nor missing, and an abstract method does not count."""
    report = reported(tmp_path, [*numbers(*REACHED), 1, 5, 8])
    counts = {function.name: (function.reached, function.statements) for function in module(report).functions}
    assert counts == {
        "Cache.__init__": (1, 1),
        "Cache.add": (3, 4),
        "Cache.export": (0, 2),
        "Cache.never": (0, 3),
        "choose": (0, 2),
        "choose.nested": (0, 1),
    }
    assert (module(report).reached, module(report).statements) == (4, 13)
    assert [function.name for function in module(report).never] == [
        "Cache.export",
        "Cache.never",
        "choose",
        "choose.nested",
    ]
    assert report.below(31) == [module(report)]
    assert report.below(30) == []


def test_excluded_functions_are_listed_and_do_not_count(tmp_path: Path) -> None:
    report = reported(tmp_path, numbers(*REACHED), f"{MODULE}::Cache.never", f"{MODULE}::choose*", f"{MODULE}::gone")
    assert module(report).statements == 7
    assert {one.function.partition("::")[2]: one.reason for one in report.excluded} == {
        "Cache.never": "a reason",
        "choose": "a reason",
        "choose.nested": "a reason",
    }
    assert report.unknown == [f"{MODULE}::gone"], "a name that does not exist is reported"


def test_excluded_branches_do_not_count(tmp_path: Path) -> None:
    """Their function does, with the line that leads to them; a branch that it does not have is reported."""
    add = f"{MODULE}::Cache.add"
    scope = Scope((MODULE,), (Exclusion("a reason", branches={add: ("if block < 0", "if gone")}),))
    saved = SavedLines("toy", "1.0", 7, 3, {MODULE: numbers(*REACHED)})
    report = write_report(tmp_path, saved, scope, sys.executable, ENVIRONMENT)
    [function] = [one for one in module(report).functions if one.name == "Cache.add"]
    assert (function.reached, function.statements) == (3, 3), "without the raise, which no trace reached"
    assert [(one.function, one.branch, one.reason) for one in report.excluded] == [(add, "if block < 0", "a reason")]
    assert report.unknown == [f"{add}: if gone"]
    assert "not counted in other functions: 1 branch" in "\n".join(map(str, report_text(report)))


def test_modules_that_do_not_exist_are_reported(tmp_path: Path) -> None:
    report = reported(tmp_path, [], modules=(MODULE, "toy_cache/gone_*.py"))
    assert report.missing == ["toy_cache/gone_*.py"]
    assert [one.module for one in report.modules] == [MODULE]


def test_lcov_and_json_and_html_agree(tmp_path: Path) -> None:
    report = reported(tmp_path, numbers(*REACHED), f"{MODULE}::Cache.never")
    lcov = (tmp_path / "coverage/coverage.lcov").read_text().splitlines()
    assert f"SF:{MODULE}" in lcov
    hits = {int(line[3:].split(",")[0]): int(line.split(",")[1]) for line in lcov if line.startswith("DA:")}
    assert sum(hits.values()) == module(report).reached
    assert len(hits) == module(report).statements
    assert {line for line, hit in hits.items() if hit} == set(numbers(*REACHED))
    names = {line.partition(",")[2]: line for line in lcov if line.startswith("FNDA:")}
    assert names["Cache.add"] == "FNDA:1,Cache.add"
    assert names["Cache.export"] == "FNDA:0,Cache.export"
    assert "Cache.never" not in names
    saved = msgspec.json.decode((tmp_path / "coverage/coverage.json").read_bytes(), type=CoverageReport)
    assert saved == report
    page = (tmp_path / "coverage/html/index.html").read_text()
    assert "toy: lines that 3 traces reached" in page


def test_no_link_is_followed(tmp_path: Path) -> None:
    """The folder may come from somebody else: links there were written through."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    written = [tmp_path / "coverage" / name for name in ("coverage.json", "coverage.lcov", "html/index.html")]
    for path in written:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(victim)
    reported(tmp_path, numbers(*REACHED))
    assert victim.read_text() == "mine"
    assert not any(path.is_symlink() for path in written)


def test_the_terminal_names_functions_that_never_ran(tmp_path: Path) -> None:
    text = "\n".join(str(part) for part in report_text(reported(tmp_path, numbers(*REACHED), f"{MODULE}::gone")))
    assert "total" in text
    assert f"never ran in {MODULE}: Cache.export (2), Cache.never (3), choose (2), choose.nested (1)" in text
    assert f"excluded, but not in this version: {MODULE}::gone" in text


def test_a_report_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "coverage").write_text("a file where the folder should be")
    with pytest.raises(ReportError, match="coverage"):
        reported(tmp_path, [])
