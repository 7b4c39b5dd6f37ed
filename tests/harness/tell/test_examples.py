"""The reports in docs/examples are what `hybridfuzz repro` writes today, apart from versions, times and places."""

import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "docs/examples"
sys.path.insert(0, str(FOLDER))
from write import EXAMPLES, write  # noqa: E402

MACHINE = (
    (r"reproduces the failure (within a second|after \d+ s)", "reproduces the failure after a while"),
    (r"^\* (Python|.*, x86|.*, aarch).*$", "* this machine"),
    (r"^Found by hybridfuzz \S+", "Found by hybridfuzz"),
    (r"\(tolerance [\d.]+\)", "(tolerance)"),  # measured: it depends on the CPU's instructions
    (r"```console\n\$ python repro\.py\n.*?```", "the script's output"),
)
"""What differs between two machines."""


def comparable(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    for pattern, instead in MACHINE:
        text = re.sub(pattern, instead, text, flags=re.MULTILINE | re.DOTALL if "console" in pattern else re.MULTILINE)
    return text


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "hybrid" else (pytest.mark.engine, pytest.mark.xdist_group("engine")))
        for name in EXAMPLES
    ],
)
def test_an_example_is_current(tmp_path: Path, name: str) -> None:
    write(name, tmp_path / "REPORT.md")
    assert comparable(tmp_path / "REPORT.md") == comparable(FOLDER / f"{name}.md"), "run docs/examples/write.py"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_names_no_folder_of_a_machine(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert len(text) < 65_536
    assert not re.search(r"(?<![\w.])/(home|root|tmp|work|Users)/", text)
