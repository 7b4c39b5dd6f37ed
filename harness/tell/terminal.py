"""Prints an explanation and its timeline; on a terminal each owner has a colour."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ..record.history import History
from ..units import plural
from .explain import Explanation, explain
from .timeline import Cell, Timeline, build_timeline, cell_text, notes, plain_text

STYLES = ("cyan", "magenta", "green", "blue", "yellow", "bright_cyan", "bright_magenta", "bright_green")
INDENT = "  "


def finding_text(history: History, lines_max: int | None = None) -> str:
    """Return explanation and timeline for a file; "" for a run without a violation. With a limit the timeline is left
    out where it does not fit, and an explanation that does not fit either ends early."""
    explanation = explain(history)
    if explanation is None:
        return ""
    told, timeline = explanation.text(), plain_text(build_timeline(history))
    whole = "\n\n".join(filter(None, [told, timeline]))
    if lines_max is None or whole.count("\n") < lines_max:
        return whole
    lines = told.splitlines()
    cut = len(lines) - lines_max
    return told if cut <= 0 else "\n".join([*lines[:lines_max], f"({plural(cut, 'more line')}: see replay)"])


def show_history(history: History, console: Console) -> None:
    """Print explanation and timeline; plain text if the console is no terminal."""
    explanation = explain(history)
    if explanation is None:
        return
    for part in _prose(explanation):
        console.print(part, soft_wrap=not console.is_terminal)
    timeline = build_timeline(history)
    if timeline.blocks:
        console.print()
        console.print(grid(timeline) if console.is_terminal else plain_text(timeline), soft_wrap=True, highlight=False)
    if timeline.blocks and console.is_terminal:
        for note in notes(timeline):
            console.print(Text(note, "dim"))


def _prose(explanation: Explanation) -> Iterator[RenderableType]:
    yield Text.assemble((f"{INDENT}What must hold: ", "bold"), explanation.rule)
    for number, sentence in enumerate(explanation.story, 1):
        head, colon, rest = sentence.partition(":")
        yield Text.assemble((f"{INDENT}{number}. {head}{colon}", "bold"), rest)
    yield Text(f"{INDENT}{explanation.apart}", "red")


def grid(timeline: Timeline) -> Table:
    """Return the timeline as a table, one colour for each owner."""
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for label in ("block", *timeline.columns):
        table.add_column(label, no_wrap=True)
    for block, cells in zip(timeline.blocks, timeline.cells, strict=True):
        table.add_row(str(block), *(Text(cell_text(cell), _style(cell, timeline)) for cell in cells))
    return table


def _style(cell: Cell, timeline: Timeline) -> str:
    if "!" in cell.letters:
        return "bold white on red"
    if not cell.holders:
        return "dim"
    return STYLES[timeline.owners.index(cell.holders[0]) % len(STYLES)] if cell.holders[0] in timeline.owners else ""
