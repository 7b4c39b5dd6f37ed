"""A campaign's folder may be a stranger's: nothing outside it is written, truncated, moved or removed."""

import os
from pathlib import Path

import pytest
from cli_process import Cli

from hybridfuzz.harness.campaign import campaign, rare_traces, resume
from hybridfuzz.harness.campaign.backlog import Backlog
from hybridfuzz.harness.campaign.resume import exclusive, unfinished
from hybridfuzz.harness.campaign_summary import Summary
from hybridfuzz.harness.group import merge
from hybridfuzz.harness.group.findings.finding_store import FINDINGS_FOLDER, OWN_FOLDERS, OutputError
from hybridfuzz.harness.record.reached_lines import COVERAGE_FOLDER


def test_a_campaign_with_another_workload_is_another_campaign() -> None:
    state = Summary("hybrid", "", 1, {}, None, 9, 9, 1.0, [], {}, {}, [], [], workload={"preempt": "0"})
    assert unfinished(state, "hybrid", "", {}, None, workload={"preempt": "0"})
    assert not unfinished(state, "hybrid", "", {}, None)
    assert not unfinished(state, "hybrid", "", {}, None, workload={"preempt": "1"})


def test_every_folder_that_is_written_to_is_checked(tmp_path: Path) -> None:
    used = {FINDINGS_FOLDER, COVERAGE_FOLDER, campaign.HYPOTHESIS_FOLDER, merge.PARTS_FOLDER, merge.CORPUS_FOLDER}
    used |= {rare_traces.CampaignCorpus(tmp_path).folder.name, Backlog(tmp_path, ()).folder.name}
    assert set(OWN_FOLDERS) == used


def test_one_campaign_at_a_time(tmp_path: Path) -> None:
    for _ in range(2):
        busy = pytest.raises(OutputError, match="another campaign is at work")
        with exclusive(tmp_path / "out"), busy, exclusive(tmp_path / "out"):
            pass


@pytest.mark.parametrize("kind", ["link", "broken link", "fifo", "folder"])
def test_a_lock_that_is_no_regular_file(tmp_path: Path, kind: str) -> None:
    """A link truncated its target; a FIFO was waited for, and SIGTERM did not end that."""
    victim, lock = tmp_path / "victim", tmp_path / "out" / resume.LOCK_FILE
    lock.parent.mkdir()
    if kind == "link":
        victim.write_text("mine")
    if "link" in kind:
        lock.symlink_to(victim)
    elif kind == "fifo":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    with pytest.raises(OutputError, match=r"\.lock is not a regular file; remove it"), exclusive(tmp_path / "out"):
        pass
    assert victim.read_text() == "mine" if kind == "link" else not victim.exists()


@pytest.mark.parametrize("name", [*OWN_FOLDERS, "parts/one/findings", "coverage/html", "hypothesis/key"])
def test_a_folder_that_leads_elsewhere(tmp_path: Path, name: str) -> None:
    link = tmp_path / "out" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path)
    with pytest.raises(OutputError, match=f"{name} is a symbolic link"), exclusive(tmp_path / "out"):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"out"}


def test_the_output_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    with exclusive(tmp_path / "out"):
        assert (tmp_path / "disk" / resume.LOCK_FILE).exists()


@pytest.mark.parametrize("name", ["findings", "corpus"])
def test_fuzz_leaves_what_a_link_leads_to_alone(hybridfuzz: Cli, tmp_path: Path, name: str) -> None:
    """A corpus that is a link: package.json there was renamed, and traces were written beside it."""
    (tmp_path / "out").mkdir()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "package.json").write_text("{}")
    (tmp_path / "out" / name).symlink_to(tmp_path / "project")
    ran = hybridfuzz("fuzz", "--seed", "1", "--traces", "1", "--jobs", "1", "--no-canary", "-o", "out")
    assert ran.status == 2 and f"out/{name} is a symbolic link" in ran.error
    assert [path.name for path in (tmp_path / "project").iterdir()] == ["package.json"]
