"""The text of a cause is read in parts, whatever is missing."""

import pytest

from hybridfuzz.harness.group.known.cause_text import parse_cause_text

TABLE = "| | |\n| --- | --- |\n| client | wrong tokens |\n| public | #1 (open) |"
TEXT = f"# 7. A state. Or two\n\n{TABLE}\n\nFirst.\n\nSecond.\n"


def test_number_title_fields_and_body() -> None:
    found = parse_cause_text(TEXT)
    assert (found.number, found.title, found.public) == (7, "A state. Or two", "#1 (open)")
    assert dict(found.fields) == {"client": "wrong tokens", "public": "#1 (open)"}
    assert found.body == "First.\n\nSecond.\n"


def test_notes_are_no_part_of_the_body() -> None:
    """Reports told the tokens of other traces and what an earlier patch had done."""
    found = parse_cause_text(TEXT.replace("| public", "| same | #1 |\n| public") + "\n## Notes\n\nOurs.\n")
    assert (found.same, found.body, found.notes) == ("#1", "First.\n\nSecond.\n", "\nOurs.\n")
    assert found.whole == "First.\n\nSecond.\n\n## Notes\n\nOurs.\n"


@pytest.mark.parametrize(("text", "title"), [("", ""), ("# No. 7\n", "No. 7"), ("# A state\n\nFirst.", "A state")])
def test_what_is_missing_is_empty(text: str, title: str) -> None:
    found = parse_cause_text(text)
    assert (found.number, found.title, found.public, found.body) == (0, title, "", "")


def test_causes_with_one_text_have_one_title() -> None:
    """The title of a report began with "5, 6."."""
    assert parse_cause_text("# 5, 6. Beams keep their states\n\nx").title == "Beams keep their states"
    assert parse_cause_text("# 2 and 3. Beams\n\nx").title == "Beams"
    assert parse_cause_text("# 64-bit keys\n\nx").title == "64-bit keys"
