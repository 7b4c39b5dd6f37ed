"""The page of a GitHub workflow's run."""

import argparse
from pathlib import Path

import pytest

from hybridfuzz.harness.campaign_events import CampaignEnded
from hybridfuzz.harness.campaign_summary import Finding, Seen, Summary
from hybridfuzz.harness.face.outputs.job_summary import make_handler
from hybridfuzz.harness.group.findings.finding_store import OutputError
from hybridfuzz.harness.tell.github_step_summary import VARIABLE

SEEN = Seen(1000, 1, 2000, 20, 10, 12, 9, 40, 14)
FINDING = Finding("M1-x", "M1", "no", 1, 1, 3, "findings/M1-x.json", 4, phrase="<b>wrong</b>")


def summary(*findings: Finding) -> Summary:
    return Summary("hybrid", "", 1, {}, "time", 1000, 9000, 60.0, findings, {}, {}, [], [], seen=SEEN)


def test_it_is_appended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n")
    monkeypatch.setenv(VARIABLE, str(page))
    handler = make_handler(argparse.Namespace())
    assert handler
    handler.handle_event(CampaignEnded(summary(FINDING)))
    text = page.read_text()
    assert text.startswith("before\n## hybridfuzz fuzz: hybrid\n\n1 finding in 1,000 traces")
    assert "with a chance of 1.2 %" in text
    assert "at most 0.48 % of this generator" in text
    assert "<b>" not in text, "what an engine says is text"
    assert text.endswith("\n\n"), "what another step appends is a paragraph of its own"


def test_there_is_none_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert make_handler(argparse.Namespace()) is None


def test_a_page_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none" / "page.md"))
    handler = make_handler(argparse.Namespace())
    assert handler
    with pytest.raises(OutputError, match=r"cannot write to .*page\.md: No such file"):
        handler.handle_event(CampaignEnded(summary()))
