"""Counts by module and function for the lines that a campaign reached.

    OUT/coverage/coverage.json    the counts (`CoverageReport`)
    OUT/coverage/coverage.lcov    for editors and code-review pages
    OUT/coverage/html/index.html  the source with the lines that were not reached

coverage.py decides what a statement is and writes LCOV and HTML, in a process of its own with the interpreter of the
target (`analysis`). Statements in functions count, except those of

    Triton kernels                they run compiled, unless the adapter reports their lines
    abstract methods, overloads   never called themselves; also `raise NotImplementedError` and `# pragma: no cover`
    excluded functions, branches  listed with a reason in the target's `coverage.toml`
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from ....targets.base.coverage_scope import Scope
from ...record.reached_lines import COVERAGE_FOLDER, SavedLines

JSON_FILE, LCOV_FILE, HTML_FOLDER = "coverage.json", "coverage.lcov", "html"
ANALYSIS = "hybridfuzz.harness.measure.coverage.analysis"


class ReportError(Exception):
    """The process that writes the report failed. The message is the end of its standard error."""


class FunctionCoverage(Struct, frozen=True):
    """One function: its qualified name, first line, and numbers of statements."""

    name: str
    line: int
    statements: int
    reached: int


class ModuleCoverage(Struct, frozen=True):
    """One module, named by its path below the import folder."""

    module: str
    functions: Sequence[FunctionCoverage]

    @property
    def statements(self) -> int:
        """Number of statements that count."""
        return sum(function.statements for function in self.functions)

    @property
    def reached(self) -> int:
        """Number of those that a trace executed."""
        return sum(function.reached for function in self.functions)

    @property
    def percent(self) -> float:
        """Share of statements that were reached; 100 for a module without any."""
        return 100.0 * self.reached / self.statements if self.statements else 100.0

    @property
    def never(self) -> Sequence[FunctionCoverage]:
        """Functions that never ran."""
        return [function for function in self.functions if not function.reached]


class ExcludedFunction(Struct, frozen=True):
    """A function, as MODULE::QUALIFIED.NAME, that does not count, or whose branch does not, "" for all of it."""

    function: str
    reason: str
    branch: str = ""


class CoverageReport(Struct, frozen=True):
    """The content of coverage.json.

    traces    traces that ran while lines were recorded
    missing   modules that the target declares and this version does not have
    unknown   excluded functions and branches that this version does not have
    """

    target: str
    version: str
    seed: int
    traces: int
    modules: Sequence[ModuleCoverage]
    excluded: Sequence[ExcludedFunction] = ()
    missing: Sequence[str] = ()
    unknown: Sequence[str] = ()

    def below(self, percent: float) -> Sequence[ModuleCoverage]:
        """Return the modules of which less than this share was reached."""
        return [module for module in self.modules if module.percent < percent]


class Task(Struct, frozen=True):
    """What the process that writes the report gets on standard input."""

    saved: SavedLines
    scope: Scope
    folder: str


def write_report(out: Path, saved: SavedLines, scope: Scope, python: str, env: Mapping[str, str]) -> CoverageReport:
    """Write the files of a report below the folder `out` and return the counts.

    `python` and `env` can import the engine's packages and coverage.py. Raises ReportError.
    """
    task = Task(saved, scope, str((out / COVERAGE_FOLDER).absolute()))
    ran = subprocess.run(
        [python, "-m", ANALYSIS], input=msgspec.json.encode(task), env=dict(env), capture_output=True, check=False
    )
    if ran.returncode:
        raise ReportError(ran.stderr.decode(errors="replace")[-4000:])
    return msgspec.json.decode(ran.stdout, type=CoverageReport)
