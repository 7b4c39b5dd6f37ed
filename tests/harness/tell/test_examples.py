"""docs/example_reports.py writes reports that can be handed over: of one issue's size, and of no machine's folders."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "docs"))
from example_reports import EXAMPLES, write


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "hybrid" else (pytest.mark.engine, pytest.mark.exhaustive))
        for name in EXAMPLES
    ],
)
def test_an_example_names_no_folder_of_a_machine(tmp_path: Path, name: str) -> None:
    write(name, tmp_path / "REPORT.md")
    text = (tmp_path / "REPORT.md").read_text(encoding="utf-8")
    assert "## " in text and len(text) < 65_536
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|Users)/", text)
