"""Which changed lines of an engine ran, in words: for a terminal, and as Markdown for the page of a pull request."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ..campaign_summary import Changed, ChangedLine
from ..quoting import markdown_code, markdown_text
from ..units import plural

FILES_SHOWN = 10
RANGES_SHOWN = 12
"""Of one file."""
NEVER_SHOWN = 8


def changed_title(changed: Changed) -> str:
    """Return the sentence about all changed lines."""
    since = f"changed since {changed.since}"
    if not changed.lines:
        return f"{since}: no line in a function of the engine{_besides(changed)}"
    ran = f"{changed.ran} of {plural(len(changed.lines), 'changed line')} ran in {plural(changed.traces, 'trace')}"
    never = [f"{file}:{lines}" for file, ranges in _by_file(changed) for lines, traces in ranges if not traces]
    more = ", ..." if len(never) > NEVER_SHOWN else ""
    return f"{since}: {ran}{_besides(changed)}" + (f"; never: {', '.join(never[:NEVER_SHOWN])}{more}" if never else "")


def changed_lines_text(changed: Changed) -> list[str]:
    """Return how many traces ran the lines: one line of text for each file."""
    files = list(_by_file(changed))
    shown = [f"{file}: {_counts(ranges)}" for file, ranges in files[:FILES_SHOWN]]
    return [*shown, *([f"and {plural(len(files) - FILES_SHOWN, 'more file')}"] if len(files) > FILES_SHOWN else [])]


def changed_markdown(changed: Changed) -> str:
    """Return a section with the sentence and a table."""
    lines = ["### Changed lines", "", markdown_text(changed_title(changed))]
    if changed.lines:
        lines += ["", "| file | lines, and how many traces ran them |", "| --- | --- |"]
        for file, ranges in list(_by_file(changed))[:FILES_SHOWN]:
            lines.append(f"| {markdown_code(file).replace('|', '&#124;')} | {markdown_text(_counts(ranges))} |")
    return "\n".join(lines)


def _besides(changed: Changed) -> str:
    if not changed.unrecorded:
        return ""
    return f" (not counted, as run at import, compiled or replaced by a fix: {plural(changed.unrecorded, 'line')})"


def _counts(ranges: list[tuple[str, int]]) -> str:
    parts = [f"{lines} in {plural(traces, 'trace')}" if traces else f"{lines} never" for lines, traces in ranges]
    return ", ".join(parts[:RANGES_SHOWN]) + (", ..." if len(parts) > RANGES_SHOWN else "")


def _by_file(changed: Changed) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Yield (file, [(lines such as "12-14", traces)]): neighbours among the changed lines with one count are one."""
    for file, lines in groupby(changed.lines, key=lambda line: line.file):
        yield file, [(_span(list(same)), traces) for traces, same in groupby(lines, key=lambda line: line.traces)]


def _span(lines: list[ChangedLine]) -> str:
    first, last = lines[0].line, lines[-1].line
    return str(first) if first == last else f"{first}-{last}"
