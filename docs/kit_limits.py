"""docs/reference/kits.md: what the kits of each engine cannot do, and what its adapter sets behind the front door, from
the tables `targets/ENGINE/kit_limits.py` and `targets/ENGINE/front_door.py`.

    python docs/kit_limits.py            # prints the tables
    python docs/kit_limits.py --write    # writes them into the page

`tests/test_docs.py` fails when the page shows anything else.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hybridfuzz.targets.base.registry import behind_the_door, engines, kit_limits

PAGE = Path(__file__).resolve().parents[1] / "docs/reference/kits.md"
START, END = "<!-- tables: start (docs/kit_limits.py --write) -->", "<!-- tables: end -->"

INTRODUCTION = """\
A drawn configuration stands for a server, whose command is in each report. Sent through the engine's own parser and
validation (with the sizes of the trace, and a small model in place of the checkpoint), the command gives the
configuration that ran, field by field, but for this list. `python benchmarks/front_door.py --target TARGET` compares a
thousand drawn configurations."""


def tables() -> str:
    """Return a table for each kit of each engine, in Markdown."""
    parts = []
    for engine in engines():
        limits = kit_limits(engine)
        for kit in dict.fromkeys(limit.kit for limit in limits):
            rows = [f"| {limit.feature} | {limit.reason} |" for limit in limits if limit.kit == kit]
            parts.append("\n".join([f"## {engine}: {kit}", "", "| feature | reason given |", "| --- | --- |", *rows]))
    for engine in engines():
        if table := behind_the_door(engine):
            parts.append(f"## {engine}: behind the front door\n\n{INTRODUCTION}")
            rows = [f"| {one.reason} | {', '.join(f'`{field}`' for field in one.fields)} |" for one in table]
            parts.append("\n".join(["| what, and why | fields |", "| --- | --- |", *rows]))
    return "\n\n".join(parts)


def written(page: str) -> str:
    """Return the page with the tables."""
    before, _, rest = page.partition(START)
    return f"{before}{START}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(tables())
