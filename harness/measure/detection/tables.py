"""The detection matrix as a table for the terminal, a page of the documentation, and a list of changes."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from .statistics import MutantChange, MutantRow, Spread, overall

COLUMNS = ("mutant", "found", "signatures", "traces", "steps", "CPU s", "events")
DOCUMENT = """\
# Detection matrix

How long the seeded workload needs to find each mutant of `{target}`: every mutant {seeds} times with different seeds,
for at most {budget:g} CPU seconds each, on one core. Numbers are median / worst over the seeds; "never" stands for a
run that found nothing. Events are those of the reduced trace (median). Traces and steps are the same on every
machine; seconds are of {machine}.

Written by `{command}`. {found} of {runs} runs found their mutant, {whole} of {mutants} mutants were found with every
seed.

"""


def number(value: float | None) -> str:
    """Return a number in few characters; "never" for None."""
    if value is None:
        return "never"
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def pair(values: Spread) -> str:
    """Return "median / worst"."""
    return f"{number(values.median)} / {number(values.worst)}"


def cells(row: MutantRow) -> tuple[str, ...]:
    """Return one mutant as text, in the order of `COLUMNS`."""
    signatures = list(row.signatures)
    more = f" +{len(signatures) - 1}" if len(signatures) > 1 else ""
    return (
        row.mutant,
        f"{row.found}/{row.runs}",
        f"{signatures[0]}{more}" if signatures else "",
        pair(row.traces),
        pair(row.steps),
        pair(row.seconds),
        number(row.events) if row.events is not None else "",
    )


def terminal_table(rows: Sequence[MutantRow]) -> Table:
    """Return a table of all mutants, missed ones highlighted."""
    table = Table(box=None, pad_edge=False, title="median / worst over the seeds", title_justify="left")
    for position, name in enumerate(COLUMNS):
        table.add_column(name, justify="left" if position in (0, 2) else "right", no_wrap=True)
    for row in rows:
        style = "" if row.found == row.runs else "yellow" if row.found else "bold red"
        table.add_row(*(Text(cell) for cell in cells(row)), style=style)
    return table


def plain_line(row: MutantRow) -> str:
    """Return the results of one mutant in one line."""
    mutant, found, signature, traces, steps, seconds, events = cells(row)
    if not row.found:
        return f"{mutant}: {found} found"
    reduced = f", {events} events" if events else ""
    return f"{mutant}: {found} found, {signature}, traces {traces}, steps {steps}, CPU s {seconds}{reduced}"


def markdown(rows: Sequence[MutantRow], target: str, budget: float, command: str) -> str:
    """Return the page of the documentation."""
    runs = max((row.runs for row in rows), default=0)
    head = DOCUMENT.format(
        target=target,
        seeds=runs,
        budget=budget,
        machine=f"{platform.machine()}, Python {platform.python_version()}",
        command=command,
        found=sum(row.found for row in rows),
        runs=sum(row.runs for row in rows),
        whole=sum(row.found == row.runs for row in rows),
        mutants=len(rows),
    )
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    for row in rows:
        name, found, _, *rest = cells(row)
        signatures = ", ".join(f"{signature} ({times})" for signature, times in row.signatures.items())
        lines.append("| " + " | ".join([name, found, signatures, *rest]) + " |")
    return head + "\n".join(lines) + "\n"


def change_lines(changes: Sequence[MutantChange]) -> list[str]:
    """Return the lines of a comparison: every mutant that changed, then the totals."""
    counts: Mapping[str, int] = {
        verdict: sum(change.verdict == verdict for change in changes)
        for verdict in ("better", "worse", "same", "new", "gone")
    }
    lines = [
        f"{change.verdict:7}{change.mutant}: found {change.found[0]}/{change.runs[0]} -> "
        f"{change.found[1]}/{change.runs[1]}, traces x{change.traces:.2f}, CPU seconds x{change.seconds:.2f}"
        for change in changes
        if change.verdict != "same"
    ]
    traces, seconds = overall(changes)
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return [*lines, f"{words}; over all mutants traces x{traces:.2f}, CPU seconds x{seconds:.2f} (new / old)"]
