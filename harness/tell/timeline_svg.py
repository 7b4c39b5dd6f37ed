"""The lives of blocks as SVG: rows are blocks, columns are moments, bars are owners, chips are marks.

Colours are classes (`timeline.css`), so that one drawing serves light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files

from ..markup import Markup, join, tag
from ..record.history import History, Mark
from .clauses import Blocks, clause
from .timeline import LETTERS, Cell, Timeline, build_timeline

LEFT, TOP, ROW, CHIP = 52, 44, 40, 15
COLUMN_MIN, COLUMN_MAX, CHARACTER = 64, 150, 6.6
OWNER_COLOURS = 8
CHIPS_MAX = 7


def timeline_svg(history: History) -> Markup:
    """Return the drawing; empty if no block was used."""
    timeline = build_timeline(history)
    if not timeline.blocks:
        return Markup()
    widths = [_width(timeline, column) for column in range(len(timeline.columns))]
    starts = [LEFT + sum(widths[:index]) for index in range(len(widths) + 1)]
    size = starts[-1] + 8, TOP + ROW * len(timeline.blocks) + 6
    words = _words(history)
    rows = [
        _row(block, cells, starts, TOP + ROW * index, timeline, words)
        for index, (block, cells) in enumerate(zip(timeline.blocks, timeline.cells, strict=True))
    ]
    about = f"Lives of {len(timeline.blocks)} blocks over {len(timeline.columns)} moments"
    return tag(
        "svg", tag("title", about), *_heads(timeline, starts, size[1]), *rows,
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {size[0]:.0f} {size[1]}", width=f"{size[0]:.0f}",
        height=size[1], class_="timeline", role="img", aria_label=about,
    )  # fmt: skip


def stylesheet() -> str:
    """Return the colours of a drawing, for the page that holds it."""
    return (files(__package__) / "timeline.css").read_text(encoding="utf-8")


def standalone(svg: Markup) -> Markup:
    """Return a drawing with its own style, for a separate file."""
    style = tag("style", Markup(stylesheet()))
    head, end, rest = svg.partition(">")
    return Markup(f"{head}{end}{style}{rest}")


def _width(timeline: Timeline, column: int) -> float:
    chips = max(min(len(row[column].letters), CHIPS_MAX) for row in timeline.cells) * (CHIP + 1) + 14
    label = max(len(word) for word in _two_lines(timeline.columns[column])) * CHARACTER + 10
    return max(COLUMN_MIN, min(max(chips, label), COLUMN_MAX))


def _two_lines(label: str) -> tuple[str, str]:
    """Split a label like "dummy run s1+s2" into words and steps."""
    words, _, steps = label.rpartition(" ")
    return (words, steps) if steps.startswith("s") and steps[1:2].isdigit() else (label, "")


def _heads(timeline: Timeline, starts: Sequence[float], bottom: int) -> Iterator[Markup]:
    yield tag("text", "block", x=8, y=TOP - 8, class_="tl-dim")
    for index, label in enumerate(timeline.columns):
        words, steps = _two_lines(label)
        x = starts[index] + 6
        yield tag("line", x1=starts[index], y1=TOP - 32, x2=starts[index], y2=bottom - 6, class_="tl-rule")
        yield tag("text", words, x=f"{x:.0f}", y=TOP - 21, class_="tl-dim")
        yield tag("text", steps, x=f"{x:.0f}", y=TOP - 8, class_="tl-head")


def _row(
    block: int, cells: Sequence[Cell], starts: Sequence[float], y: int, timeline: Timeline, words: dict[Mark, str]
) -> Markup:
    parts: list[Markup | None] = [tag("text", block, x=8, y=y + 25, class_="tl-block")]
    first = 0
    for index in range(1, len(cells) + 1):
        if index == len(cells) or _look(cells[index]) != _look(cells[first]):
            parts.append(_bar(cells[first], starts[first], starts[index], y, timeline))
            first = index
    for index, cell in enumerate(cells):
        if "!" in cell.letters:
            width = f"{starts[index + 1] - starts[index] - 2:.0f}"
            parts.append(
                tag("rect", x=f"{starts[index] + 1:.0f}", y=y + 2, width=width, height=ROW - 4, rx=6, class_="tl-bad")
            )
        if cell.marks:
            parts.append(_chips(cell, starts[index] + 6, y, words))
    return tag("g", *parts)


def _look(cell: Cell) -> tuple[tuple[str, ...], str]:
    return cell.holders, cell.key


def _bar(cell: Cell, left: float, right: float, y: int, timeline: Timeline) -> Markup | None:
    """Return the bar of the owner; dashed where the block is free and can still be hit."""
    if not cell.holders and not cell.key:
        return None
    owner = cell.holders[0] if cell.holders else ""
    colour = f"tl-o{timeline.owners.index(owner) % OWNER_COLOURS}" if owner in timeline.owners else "tl-loose"
    label = "+".join(cell.holders) or "reachable"
    return tag(
        "g",
        tag("rect", x=f"{left + 2:.0f}", y=y + 3, width=f"{right - left - 4:.0f}", height=ROW - 6, rx=5, class_=colour),
        tag("text", label[: int((right - left - 8) / CHARACTER)], x=f"{left + 7:.0f}", y=y + 14, class_="tl-owner"),
        tag("title", f"{label}{f', published as {cell.key}' if cell.key else ''}"),
    )


def _chips(cell: Cell, x: float, y: int, words: dict[Mark, str]) -> Markup:
    """Return a chip for each kind of mark, with the marks as its tooltip."""
    chips = []
    names = {letter: what for what, letter in LETTERS.items()}
    for index, letter in enumerate(cell.letters[-CHIPS_MAX:]):
        left = x + index * (CHIP + 1)
        words_of_marks = "; ".join(
            dict.fromkeys(words.get(mark, "") for mark in cell.marks if LETTERS[mark.what] == letter)
        )
        chips.append(
            tag(
                "g",
                tag("rect", x=f"{left:.0f}", y=y + 19, width=CHIP, height=CHIP, rx=3, class_="tl-chip"),
                tag("text", letter, x=f"{left + CHIP / 2:.1f}", y=y + 30, text_anchor="middle"),
                tag("title", words_of_marks or names[letter]),
                class_=f"tl-{names[letter].replace(' ', '-')}",
            )
        )
    return join(*chips)


def _words(history: History) -> dict[Mark, str]:
    """Return every mark as a clause."""
    blocks = Blocks(history)
    return {mark: clause(mark, blocks.take(mark), history) for mark in history.marks}
