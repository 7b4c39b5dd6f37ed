"""The tables of benchmarks/coverage.md: `python benchmarks/coverage_table.py NAME=DIR [NAME=DIR ...]`.

DIR is the output folder of `hybridfuzz coverage`. Each folder has its own columns; the functions that never ran in the
last one follow.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from hybridfuzz.harness.measure.coverage.report import JSON_FILE, CoverageReport, ModuleCoverage

Reports = Mapping[str, CoverageReport]


def table(reports: Reports) -> Iterator[str]:
    """Yield a row for each module: statements, and the share that each campaign reached."""
    yield f"| module | {' | '.join(f'{name}: reached of | %' for name in reports)} |"
    yield f"| --- |{' ---: | ---: |' * len(reports)}"
    modules = sorted({module.module for report in reports.values() for module in report.modules})
    found = {name: {module.module: module for module in report.modules} for name, report in reports.items()}
    for module in modules:
        cells = [numbers(found[name].get(module)) for name in reports]
        if any(cells):
            yield f"| `{module}` | {' | '.join(cell or ' | ' for cell in cells)} |"
    totals = [
        ModuleCoverage("total", [function for module in report.modules for function in module.functions])
        for report in reports.values()
    ]
    yield f"| total | {' | '.join(map(numbers, totals))} |"


def numbers(module: ModuleCoverage | None) -> str:
    """Return two cells of a row, "" for a module without statements."""
    if module is None or not module.statements:
        return ""
    return f"{module.reached:,} of {module.statements:,} | {module.percent:.1f}"


def never(report: CoverageReport) -> Iterator[str]:
    """Yield the functions that never ran, with their numbers of statements."""
    for module in report.modules:
        if module.never:
            names = ", ".join(f"{function.name} ({function.statements})" for function in module.never)
            yield f"- `{module.module}`: {names}"


def main() -> None:
    """Print both."""
    folders = dict(argument.split("=", 1) for argument in sys.argv[1:])
    reports = {
        name: msgspec.json.decode((Path(folder) / "coverage" / JSON_FILE).read_bytes(), type=CoverageReport)
        for name, folder in folders.items()
    }
    print(*table(reports), sep="\n")
    print(f"\nFunctions that never ran ({list(reports)[-1]}):\n")
    print(*never(list(reports.values())[-1]), sep="\n")


if __name__ == "__main__":
    main()
