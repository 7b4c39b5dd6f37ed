"""The import graph in docs/explanation/architecture.md: drawn from the floors and imports that the tests check.

    python docs/architecture_graph.py            # prints the drawing
    python docs/architecture_graph.py --write    # writes it into the page

`FLOORS` of tests/test_architecture.py gives the rooms and their order, grimp the imports. A room's line names the
rooms that it imports directly; `tests/test_docs.py` fails when the page shows anything else.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/explanation/architecture.md"
START, END = "<!-- graph: start (docs/architecture_graph.py --write) -->", "<!-- graph: end -->"
TITLES = {
    "": "The whole project",
    "harness": "Inside `harness/`",
    "targets.hybrid": "Inside `targets/hybrid/`",
}
WIDTH = 110

sys.path.insert(0, str(ROOT / "tests"))

from test_architecture import FLOORS, floor_of, imports  # noqa: E402


def arrows(house: str) -> dict[str, set[str]]:
    """Room -> the rooms of the same house that its modules import."""
    found: dict[str, set[str]] = {room: set() for floor in FLOORS[house] for room in floor.split(" | ")}
    for importer, imported in imports():
        above, below = floor_of(importer, house), floor_of(imported, house)
        if above and below and above != below:
            found[above[1]].add(below[1])
    return found


def diagram(house: str) -> str:
    """One line for each room, the highest floor first: `floor  room ──► rooms that it imports`."""
    targets = arrows(house)
    order = [room for floor in FLOORS[house] for room in floor.split(" | ")]
    width = max(len(room.lstrip("/")) for room in order)
    lines = []
    for number, floor in zip(range(len(FLOORS[house]), 0, -1), FLOORS[house], strict=True):
        for room in floor.split(" | "):
            below = ", ".join(one.lstrip("/") for one in order if one in targets[room])
            head = f"{number:2}  {room.lstrip('/'):{width}}"
            text = f"{head}  ──► {below}" if below else head.rstrip()
            lines += textwrap.wrap(text, WIDTH, subsequent_indent=" " * (len(head) + 6), break_on_hyphens=False)
    return "\n".join(lines)


def drawing() -> str:
    """All houses, in Markdown."""
    parts = [f"### {title}\n\n```text\n{diagram(house)}\n```" for house, title in TITLES.items()]
    return "\n\n".join(parts)


def written(page: str) -> str:
    """The page with the drawing between its markers. ValueError where a marker is missing."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"{PAGE} has no markers")
    return f"{before}{START}\n\n{drawing()}\n\n{END}{after}"


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(drawing())
