"""The process that turns reached lines into a report: reads a `Task`, writes the files, prints a `CoverageReport`.

It runs in the interpreter of the target, with coverage.py; the engine itself is not imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable
from fnmatch import fnmatchcase
from os.path import realpath
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from coverage import Coverage, CoverageData
from coverage.phystokens import source_token_lines
from coverage.plugin import CodeRegion, CoveragePlugin, FileReporter
from coverage.plugin_support import Plugins
from coverage.types import TSourceTokenLines

from ...draw.trace_files import encode_json, write_atomically
from ...record.engine_source import Function, body_lines, branches, files_of, functions, is_kernel
from .report import (
    HTML_FOLDER,
    JSON_FILE,
    LCOV_FILE,
    CoverageReport,
    ExcludedFunction,
    FunctionCoverage,
    ModuleCoverage,
    Task,
)

UNREACHABLE = [r"raise NotImplementedError", r"@(abc\.)?abstractmethod", r"@(typing\.)?overload"]
"""Clauses that do not count, as regular expressions of coverage.py."""


class Module(FileReporter):
    """One module as coverage.py reports it."""

    def __init__(self, name: str, path: Path, task: Task, plain: Coverage) -> None:
        super().__init__(realpath(path))
        self.name = name
        self.excluded: list[ExcludedFunction] = []
        self._regions: list[CodeRegion] = []
        _, statements, left_out, _, _ = plain.analysis2(str(path))
        everything = set(statements) | set(left_out)
        counted: set[int] = set()
        excluded: set[int] = set()
        for qualified, function in functions(ast.parse(self.source())):
            lines = set(body_lines(function))
            for region in self._regions:  # of a nested function, whose lines are its own
                region.lines -= lines
            self._regions.append(CodeRegion("function", qualified, function.lineno, lines))
        for (_, function), region in zip(functions(ast.parse(self.source())), self._regions, strict=True):
            kernel = is_kernel(function) and not task.scope.kernels
            reason = "Triton kernel" if kernel else task.scope.reason(f"{name}::{region.name}")
            if reason:
                self.excluded.append(ExcludedFunction(f"{name}::{region.name}", reason))
                excluded |= region.lines
            else:
                counted |= region.lines
                excluded |= self._branches(function, f"{name}::{region.name}", task)
        self._statements = (set(statements) & counted) - excluded
        self._left_out = everything - self._statements
        self.reached = self._statements & set(task.saved.lines.get(name, ()))

    def _branches(self, function: Function, name: str, task: Task) -> set[int]:
        """Return the lines of a function's branches that do not count, and note these."""
        wanted = {branch: reason for one, branch, reason in task.scope.branches() if one == name}
        found: set[int] = set()
        for branch, lines in branches(function) if wanted else ():
            if branch in wanted:
                found |= set(lines)
                self.excluded.append(ExcludedFunction(name, wanted[branch], branch))
        return found

    def relative_filename(self) -> str:
        return self.name

    def lines(self) -> set[int]:
        return self._statements

    def excluded_lines(self) -> set[int]:
        return self._left_out

    def code_regions(self) -> Iterable[CodeRegion]:
        return self._regions

    def code_region_kinds(self) -> Iterable[tuple[str, str]]:
        return [("function", "functions")]

    def source_token_lines(self) -> TSourceTokenLines:
        return source_token_lines(self.source())

    def coverage(self) -> ModuleCoverage:
        """Return the counts, functions in the order of the file."""
        found = []
        for region in self._regions:
            if statements := self._statements & region.lines:
                reached = len(statements & self.reached)
                found.append(FunctionCoverage(region.name, region.start, len(statements), reached))
        return ModuleCoverage(self.name, found)


class CacheModules(CoveragePlugin):
    """Gives coverage.py our view of the modules."""

    def __init__(self, modules: Iterable[Module]) -> None:
        self.modules = {module.filename: module for module in modules}

    def file_reporter(self, filename: str) -> FileReporter:
        return self.modules[filename]

    def register(self, registry: Plugins) -> None:
        """Add this plugin to a Coverage."""
        registry.add_file_tracer(self)

    def add_to(self, data: CoverageData) -> None:
        """Enter all modules and the lines that were reached."""
        tracer = str(self._coverage_plugin_name)
        data.add_lines({name: module.reached for name, module in self.modules.items()})
        for name in self.modules:
            data.touch_file(name, tracer)


def measured(**options: object) -> Coverage:
    """Return a Coverage without files of its own."""
    made = Coverage(data_file=None, config_file=False, messages=False, **options)  # type: ignore[arg-type]
    usual = made.get_option("report:exclude_lines")
    assert isinstance(usual, list)
    made.set_option("report:exclude_lines", [*usual, *UNREACHABLE])
    return made


def report(task: Task) -> CoverageReport:
    """Write the files of a report and return the counts."""
    scope, saved = task.scope, task.saved
    files = files_of(scope.modules)
    plain = measured()
    plain.get_data()
    modules = [Module(name, path, task, plain) for name, path in sorted(files.items())]
    plugin = CacheModules(modules)
    made = measured(plugins=[plugin.register])
    plugin.add_to(made.get_data())
    folder, title = Path(task.folder), f"{saved.target}: lines that {saved.traces:,} traces reached"
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as temporary:
        pages, lcov = Path(temporary, HTML_FOLDER), Path(temporary, LCOV_FILE)
        made.lcov_report(outfile=str(lcov))
        made.html_report(directory=str(pages), title=title)
        (folder / HTML_FOLDER).mkdir(exist_ok=True)
        for path in (lcov, *pages.iterdir()):  # moved, not written there: that would follow a symbolic link
            path.replace(folder / path.relative_to(temporary))
    names = [f"{module.name}::{region.name}" for module in modules for region in module.code_regions()]
    known = {(one.function, one.branch) for module in modules for one in module.excluded}
    unknown = [pattern for pattern, _ in scope.patterns() if not any(fnmatchcase(name, pattern) for name in names)]
    unknown += [f"{name}: {branch}" for name, branch, _ in scope.branches() if (name, branch) not in known]
    result = CoverageReport(
        target=saved.target,
        version=saved.version,
        seed=saved.seed,
        traces=saved.traces,
        modules=[module.coverage() for module in modules],
        excluded=[function for module in modules for function in module.excluded],
        missing=[pattern for pattern in scope.modules if not any(fnmatchcase(name, pattern) for name in files)],
        unknown=unknown,
    )
    write_atomically(folder / JSON_FILE, encode_json(result))
    return result


if __name__ == "__main__":
    answer = report(msgspec.json.decode(sys.stdin.buffer.read(), type=Task))
    sys.stdout.buffer.write(msgspec.json.encode(answer))
