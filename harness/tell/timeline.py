"""The timeline of blocks: a row for each block, a column for each moment; a cell has the block's holder and its marks.

Only part is shown, so that it stays readable: the violation's blocks and the end of the run first. What is left out is
counted. Renderers: `text_rows` here, SVG in `reports`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from ..record.history import History, Mark, What
from .clauses import Blocks
from .explain import subject_blocks

BLOCKS_MAX, MOMENTS_MAX = 20, 28
LETTERS: dict[What, str] = {
    "violation": "!",
    "dead write": "x",
    "hit": "h",
    "hash": "k",
    "drop": "d",
    "zero": "z",
    "copy": "c",
    "load": "l",
    "alloc": "a",
    "write": "w",
    "read": "r",
    "free": "f",
}
"""Marks that are shown."""
FREE, FREE_KEYED = "·", "#"
LEGEND = {
    "a": "allocated",
    "w": "written",
    "r": "read",
    "k": "key published",
    "d": "key dropped",
    "h": "prefix hit",
    "z": "zeroed",
    "c": "copied to",
    "l": "loaded from outside the pool",
    "f": "freed",
    "x": "written by a padding or dummy row",
    "!": "violation",
    FREE: "free",
    FREE_KEYED: "free but still published",
}


class Cell(Struct, frozen=True):
    """One block after one moment."""

    holders: tuple[str, ...]
    key: str
    marks: tuple[Mark, ...]

    @property
    def letters(self) -> str:
        """The letters of its marks, in order."""
        return "".join(dict.fromkeys(LETTERS[mark.what] for mark in self.marks))


class Timeline(Struct, frozen=True):
    """The grid. `columns` are labels; `cells[row][column]`; `hidden_...` count what is left out."""

    blocks: tuple[int, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    owners: tuple[str, ...]
    hidden_blocks: int = 0
    hidden_moments: int = 0


def build_timeline(history: History) -> Timeline:
    """Return the grid of a history; empty if no block was touched."""
    touched = Counter(mark.block for mark in history.marks)
    busy = sorted({mark.moment for mark in history.marks} | {turn.moment for turn in history.request_steps})
    subjects = subject_blocks(history, history.violation) if history.violation else []
    chosen = [*subjects, *(block for block, _ in touched.most_common() if block not in subjects)][:BLOCKS_MAX]
    blocks, moments = sorted(set(chosen) & touched.keys()), busy[-MOMENTS_MAX:]
    by_moment: dict[int, list[Mark]] = {}
    for mark in history.marks:
        by_moment.setdefault(mark.moment, []).append(mark)
    status, rows = Blocks(history), {block: list[Cell]() for block in blocks}
    for moment in busy:
        marks = by_moment.get(moment, [])
        for mark in marks:
            status.take(mark)
        if moment >= moments[0]:
            for block in blocks:
                rows[block].append(_cell(status, block, marks))
    owners = dict.fromkeys(mark.who for mark in history.marks if mark.what in ("alloc", "hit"))
    return Timeline(
        tuple(blocks),
        tuple(_label(history, moment) for moment in moments),
        tuple(tuple(row) for row in rows.values()),
        tuple(owners),
        len(touched) - len(blocks),
        len(busy) - len(moments),
    )


def _cell(status: Blocks, block: int, marks: Sequence[Mark]) -> Cell:
    now = status.of(block)
    here = tuple(mark for mark in marks if mark.block == block and mark.what in LETTERS)
    return Cell(tuple(now.holders), now.key, here)


def _label(history: History, index: int) -> str:
    moment = history.moments[index]
    steps = "+".join(f"s{step}" for step in moment.steps)
    return steps if moment.kind == "step" and steps else f"{moment.label} {steps}".strip().replace("_", " ")


def text_rows(timeline: Timeline) -> list[list[str]]:
    """Return the grid as words, header first: "r0 aw" is held by r0, allocated and written."""
    rows = [["block", *timeline.columns]]
    for block, cells in zip(timeline.blocks, timeline.cells, strict=True):
        rows.append([str(block), *(cell_text(cell) for cell in cells)])
    return rows


def cell_text(cell: Cell) -> str:
    """Return the holder (for a free block a dot, or # if it is still published) and the letters."""
    held = "+".join(cell.holders) or (FREE_KEYED if cell.key else FREE)
    return f"{held} {cell.letters}".strip()


def plain_text(timeline: Timeline) -> str:
    """Return the grid for a file."""
    if not timeline.blocks:
        return ""
    rows = text_rows(timeline)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, *notes(timeline)])


def notes(timeline: Timeline) -> list[str]:
    """Return the legend of the symbols that occur, and the counts of what is not shown."""
    cells = [cell for row in timeline.cells for cell in row]
    symbols = {letter for cell in cells for letter in cell.letters}
    symbols |= {FREE_KEYED if cell.key else FREE for cell in cells if not cell.holders}
    lines = [", ".join(f"{symbol} {meaning}" for symbol, meaning in LEGEND.items() if symbol in symbols)]
    if timeline.hidden_blocks or timeline.hidden_moments:
        lines.append(f"not shown: {timeline.hidden_blocks} blocks, {timeline.hidden_moments} earlier moments")
    return lines
