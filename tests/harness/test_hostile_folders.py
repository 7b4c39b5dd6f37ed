"""Commands on a campaign's folder that somebody else has written to: one line, no waiting, nothing lost."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from cli_process import MUTANT, Cli, command_line_in, environment_in

CAMPAIGN = ["fuzz", "--target", MUTANT, "--jobs", "1", "--reduce", "1s", "--no-canary", "-o", "out"]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a campaign with findings."""
    folder = tmp_path_factory.mktemp("campaign")
    ran = command_line_in(folder, environment_in(folder))(*CAMPAIGN, "--seed", "1", "--traces", "8")
    assert ran.status == 1, ran.err
    return folder / "out"


@pytest.fixture
def out(campaign: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(campaign, tmp_path / "out")


def found(folder: Path) -> set[str]:
    state: dict[str, Any] = json.loads((folder / "campaign.json").read_text())
    return {one["name"] for one in state["findings"]}


@pytest.mark.parametrize("data", [b'{"evidence": "\xff"}', b"[" * 300_000, None])
def test_evidence_that_cannot_be_read(hybridfuzz: Cli, out: Path, data: bytes | None) -> None:
    """An internal error in `fuzz` and `repro`."""
    name = sorted(found(out))[0]
    file = out / "findings" / f"{name}.evidence"
    file.unlink(missing_ok=True)
    if data is None:
        os.mkfifo(file)
    else:
        file.write_bytes(data)
    ran = hybridfuzz("repro", out / "findings" / f"{name}.json", "--target", MUTANT, "-o", "report")
    assert ran.status == 0, ran.err
    assert f"warning: {file}: " in ran.err
    ran = hybridfuzz(*CAMPAIGN, "--seed", "1", "--traces", "8")
    assert ran.status == 1, ran.err
    [line] = [line for line in ran.out.splitlines() if "it will be written again" in line]
    assert f"{name}.evidence: " in line
    assert (out / "findings" / f"{name}.json").exists()
