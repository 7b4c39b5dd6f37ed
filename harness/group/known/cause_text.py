"""The text of a cause: `# 7. A state ...`, a table of fields, how it comes about, and behind the heading `## Notes`
what a report to the engine leaves out: how it was found, our patch, the tokens of our traces."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from ...draw.trace_files import read_regular

TEXT_BYTES_MAX = 1 << 20
NOTES = "\n## Notes\n"
NUMBERS = re.compile(r"^\d+(?:(?:, | and )\d+)*\. ")


class CauseText(Struct, frozen=True):
    """A text in its parts. `heading` has the number, if there is one; `fields` are the rows of the first table."""

    heading: str
    fields: Mapping[str, str]
    body: str
    notes: str = ""

    @property
    def number(self) -> int:
        """The number in its release's table, 0 without one."""
        number, dot, _ = self.heading.partition(". ")
        return int(number) if dot and number.isdecimal() else 0

    @property
    def title(self) -> str:
        """The cause in a phrase: without its number, or the numbers of causes with one text."""
        return NUMBERS.sub("", self.heading)

    @property
    def whole(self) -> str:
        """The body and the notes."""
        return f"{self.body.rstrip()}\n{NOTES}{self.notes}" if self.notes else self.body

    @property
    def public(self) -> str:
        """What is known in public, "" if the text does not say."""
        return self.fields.get("public", "")

    @property
    def same(self) -> str:
        """The public report of this very defect, "#57580", "" without one: a report of ours is a comment there."""
        return self.fields.get("same", "")


def read_cause_text(path: Path) -> CauseText:
    """Return the text in a file. Raises TraceError if it cannot be read."""
    return parse_cause_text(read_regular(path, TEXT_BYTES_MAX, "a text").decode("utf-8", "replace"))


def parse_cause_text(text: str) -> CauseText:
    """Return the parts of a text; what is missing is empty."""
    heading, table, body = [*text.split("\n\n", 2), "", ""][:3]
    fields = dict(re.findall(r"^\| (\w+) \| (.*) \|$", table, re.MULTILINE))
    body, _, notes = body.partition(NOTES)
    return CauseText(heading.partition("\n")[0].removeprefix("# "), fields, body, notes)
