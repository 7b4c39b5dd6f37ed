"""The coverage of an engine's cache modules for a terminal: a table, and the functions that never ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from ...units import plural
from .report import CoverageReport, FunctionCoverage, ModuleCoverage


def report_text(report: CoverageReport) -> Iterator[Text]:
    """Yield the table, the names of functions that never ran, and names of the scope that this version lacks."""
    modules = [module for module in report.modules if module.statements]
    everything = ModuleCoverage("total", [function for module in modules for function in module.functions])
    width = max((len(module.module) for module in modules), default=0)
    yield Text(f"\nStatements of cache modules that {report.traces:,} traces reached", "bold")
    yield Text(f"{'':{width}}  {'reached':>7} {'of':>6} {'%':>6}  functions that never ran", "dim")
    for module in [*modules, everything]:
        never = f"{len(module.never)} of {len(module.functions)}"
        numbers = f"{module.reached:>7} {module.statements:>6} {module.percent:>6.1f}"
        yield Text(f"{module.module:{width}}  {numbers}  {never}")
    for module in modules:
        if module.never:
            yield Text.assemble((f"never ran in {module.module}: ", "bold"), names(module.never))
    functions = [one for one in report.excluded if not one.branch]
    if functions:
        yield Text(f"{len(functions)} functions do not count: excluded, or Triton kernels")
    if number := len(report.excluded) - len(functions):
        yield Text(f"not counted in other functions: {plural(number, 'branch')}")
    if report.missing:
        yield Text(f"modules that this version does not have: {', '.join(report.missing)}", "yellow")
    if report.unknown:
        yield Text(f"excluded, but not in this version: {', '.join(report.unknown)}", "yellow")


def names(functions: Sequence[FunctionCoverage]) -> str:
    """Return the names of functions with their numbers of statements, in the order of the file."""
    return ", ".join(f"{function.name} ({function.statements})" for function in functions)
