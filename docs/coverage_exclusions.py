"""The modules, excluded functions and branches in docs/reference/coverage.md, from each engine's `coverage.toml`.

    python docs/coverage_exclusions.py            # prints the lists
    python docs/coverage_exclusions.py --write    # writes them into the page

`tests/test_docs.py` fails when the page shows anything else.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from hybridfuzz.targets.base.coverage_scope import Exclusion
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import coverage_scope, engines

PAGE = Path(__file__).resolve().parent / "reference/coverage.md"
START, END = "<!-- excluded: start (docs/coverage_exclusions.py --write) -->", "<!-- excluded: end -->"


def lists() -> Iterator[str]:
    """Yield the lines of all engines."""
    for engine in engines():
        yield f"\n### {engine}\n"
        try:
            scope = coverage_scope(engine)
        except TargetError:
            yield "It declares no modules: there is no Python code whose lines could be counted.\n"
            continue
        modules = f"Modules: {', '.join(f'`{module}`' for module in scope.modules)}."
        yield textwrap.fill(modules, 120, break_long_words=False, break_on_hyphens=False) + "\n"
        if not scope.excluded:
            yield "No function is excluded.\n"
            continue
        yield "| module | functions | reason |"
        yield "| --- | --- | --- |"
        for exclusion in scope.excluded:
            for module in dict.fromkeys(pattern.partition("::")[0] for pattern in exclusion.functions):
                names = [
                    name for file, _, name in (one.partition("::") for one in exclusion.functions) if file == module
                ]
                yield f"| `{module}` | {', '.join(f'`{name}`' for name in names)} | {exclusion.reason} |"
        yield ""
        if any(exclusion.branches for exclusion in scope.excluded):
            yield "| module | branches | reason |"
            yield "| --- | --- | --- |"
        for exclusion in scope.excluded:
            for module in dict.fromkeys(function.partition("::")[0] for function in exclusion.branches):
                yield f"| `{module}` | {', '.join(branches(exclusion, module))} | {exclusion.reason} |"
        yield ""


def branches(exclusion: Exclusion, module: str) -> Iterator[str]:
    """Yield the excluded branches of a module's functions."""
    for function, names in exclusion.branches.items():
        file, _, name = function.partition("::")
        if file == module:
            parts = ", ".join(f"`{branch}`" for branch in names).replace("|", "\\|")
            yield f"{name}: {parts}"


def written(page: str) -> str:
    """Return the page with the lists in their place."""
    before, rest = page.split(START)
    _, after = rest.split(END)
    return "\n".join([before + START, *lists(), END]) + after


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(*lists(), sep="\n")
