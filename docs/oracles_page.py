"""The table in docs/reference/oracles.md: each rule, its subject and its consequence, as the oracles state them.

    python docs/oracles_page.py            # prints the table
    python docs/oracles_page.py --write    # writes it into the page

`tests/test_docs.py` fails when the page shows anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from hybridfuzz.harness.judge.oracles import BEYOND, consequences, rule_of, subject_of, titles

PAGE = Path(__file__).resolve().parents[1] / "docs/reference/oracles.md"
START, END = "<!-- oracles: start (docs/oracles_page.py --write) -->", "<!-- oracles: end -->"


def table() -> Iterator[str]:
    """Yield the rows of the page's table."""
    yield "| oracle | invariant | about | what a client may see |"
    yield "| --- | --- | --- | --- |"
    for oracle, title in sorted(titles().items()):
        yield _row(f"{oracle} {title}", rule_of(oracle), subject_of(oracle), oracle)
    for rule in BEYOND:
        yield _row(f"{rule.id} {rule.title}".rstrip(), rule.text, "", rule.id)


def _row(name: str, text: str, subject: str, oracle: str) -> str:
    seen = " ".join(f"{one.what}. {one.follows}" for one in consequences(oracle)).replace("{content}", "wrong content")
    return f"| {name} | {text} | {subject} | {seen} |"


def written() -> str:
    """Return the page with today's table."""
    text = PAGE.read_text(encoding="utf-8")
    head, tail = text.partition(START)[0], text.partition(END)[2]
    return "\n".join([f"{head}{START}", *table(), f"{END}{tail}"])


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(written(), encoding="utf-8")
    else:
        print("\n".join(table()))
