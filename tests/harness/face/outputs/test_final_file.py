"""A file that is written at the end: whether it can be is tried at the start, and nothing else is touched."""

from pathlib import Path

import pytest

from hybridfuzz.harness.face.outputs.final_file import FinalFile
from hybridfuzz.harness.face.outputs.handler import CampaignInfo
from hybridfuzz.harness.group.findings.finding_store import OutputError

INFO = CampaignInfo(target="hybrid", version="", seed=1, out=Path("out"))


def test_the_trial_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / ".junit.xml.probe").symlink_to(tmp_path / "victim")
    before = sorted(tmp_path.iterdir())
    FinalFile("--junit", tmp_path / "junit.xml", lambda summary: b"").start(INFO)
    assert (tmp_path / "victim").read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["missing/junit.xml", "x" * 250])
def test_a_place_that_cannot_be_written_to(tmp_path: Path, name: str) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        FinalFile("--junit", tmp_path / name, lambda summary: b"").start(INFO)
