"""The import graph in docs/explanation/architecture.md: drawn from the layers and imports that the tests check.

    python docs/architecture_graph.py            # prints the drawings, those inside further packages too
    python docs/architecture_graph.py --write    # writes the first two into the page

`LAYERS` of tests/test_architecture.py gives the packages and their order, grimp the imports. A package's line names the
packages that it imports directly; `tests/test_docs.py` fails when the page shows anything else.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/explanation/architecture.md"
START, END = "<!-- graph: start (docs/architecture_graph.py --write) -->", "<!-- graph: end -->"
TITLES = {"": "The whole project", "harness": "Inside `harness/`, with `reports/`"}
"""The trees that the page shows."""
WIDTH = 110

sys.path.insert(0, str(ROOT / "tests"))

from test_architecture import LAYERS, imports, layer_of  # noqa: E402


def arrows(tree: str) -> dict[str, set[str]]:
    """Package -> the packages of the same tree that its modules import."""
    found: dict[str, set[str]] = {package: set() for layer in LAYERS[tree] for package in layer.split(" | ")}
    for importer, imported in imports():
        above, below = layer_of(importer, tree), layer_of(imported, tree)
        if above and below and above != below:
            found[above[1]].add(below[1])
    return found


def diagram(tree: str) -> str:
    """One line for each package, the highest layer first: `layer  package ──► packages that it imports`."""
    targets = arrows(tree)
    order = [package for layer in LAYERS[tree] for package in layer.split(" | ")]
    width = max(len(package.lstrip("/")) for package in order)
    lines = []
    for number, layer in zip(range(len(LAYERS[tree]), 0, -1), LAYERS[tree], strict=True):
        for package in layer.split(" | "):
            below = ", ".join(one.lstrip("/") for one in order if one in targets[package])
            head = f"{number:2}  {package.lstrip('/'):{width}}"
            text = f"{head}  ──► {below}" if below else head.rstrip()
            lines += textwrap.wrap(text, WIDTH, subsequent_indent=" " * (len(head) + 6), break_on_hyphens=False)
    return "\n".join(lines)


def drawing(titles: Mapping[str, str] = TITLES) -> str:
    """Return the drawings of trees, in Markdown."""
    parts = [f"### {title}\n\n```text\n{diagram(tree)}\n```" for tree, title in titles.items()]
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
        print(drawing({tree: TITLES.get(tree) or f"Inside `{tree.replace('.', '/')}/`" for tree in LAYERS}))
