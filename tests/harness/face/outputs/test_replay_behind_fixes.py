"""What a campaign ran behind, its findings are run again behind: the same command wherever one is printed."""

import io
import json
import shlex
from pathlib import Path

import pytest
from msgspec import structs

from hybridfuzz.harness.campaign_events import CampaignEnded, CampaignStarted
from hybridfuzz.harness.campaign_summary import Finding, Summary
from hybridfuzz.harness.face.outputs.console import Console, Terminal
from hybridfuzz.harness.face.outputs.junit import junit_file
from hybridfuzz.harness.face.outputs.sarif import sarif_file
from hybridfuzz.harness.group.findings.finding_store import FINDINGS_FOLDER, STATE_FILE, FindingStore, fixes_options
from hybridfuzz.harness.library import fuzz
from hybridfuzz.reports.data import load_folder
from hybridfuzz.reports.page import render

MUTANT = "hybrid:hit-before-commit"
FINDING = Finding("M1-step-free", "M1", "m", 1, 1, 3, f"out/{FINDINGS_FOLDER}/M1-step-free.json", 0)
SUMMARY = Summary("hybrid", "", 1, {}, "time", 10, 100, 1.0, [FINDING], {}, {}, [], [])


def printed(summary: Summary, folder: Path) -> dict[str, str]:
    """Return what each output says of a campaign's end."""
    screen = Console(Terminal(file=(out := io.StringIO()), width=400))
    started = CampaignStarted("hybrid", "", 1, 1, "out", [], earlier_target="hybrid")
    screen.handle_event(started)
    screen.handle_event(CampaignEnded(summary))
    FindingStore(folder, summary.target).save_state(summary)
    return {
        "console": out.getvalue(),
        "junit": junit_file(summary).decode(),
        "sarif": json.dumps(json.loads(sarif_file(summary))),
        "page": render(load_folder(folder)),
    }


@pytest.mark.parametrize("fixes", [[], ["builtin"], ["builtin", "mine"]])
def test_every_output_prints_the_same_command(tmp_path: Path, fixes: list[str]) -> None:
    said = printed(structs.replace(SUMMARY, asked=[*fixes_options(fixes), "--no-canary"]), tmp_path)
    command = shlex.join(["hybridfuzz", "replay", FINDING.trace, "--target", "hybrid", *fixes_options(fixes)])
    for name, text in said.items():
        assert command in text, name
        assert f"{command} --" not in text, f"{name}: options of a campaign only"


def test_earlier_findings_are_run_as_their_own_campaign_ran_them() -> None:
    """A folder may hold findings of another target, behind other fixes than those of now."""
    screen = Console(Terminal(file=(out := io.StringIO()), width=400))
    earlier = {"earlier_target": "other", "earlier_asked": ["--fixes", "theirs"]}
    screen.handle_event(CampaignStarted("hybrid", "", 1, 1, "out", [FINDING], **earlier))
    assert f"hybridfuzz replay {FINDING.trace} --target other --fixes theirs\n" in out.getvalue()


def test_a_campaign_from_python_says_so_too(tmp_path: Path) -> None:
    (tmp_path / "fixes").mkdir()
    acknowledged = '[[known]]\nsignature = "M4-*"\nreason = "seen before"\ntarget = "hybrid*"\n'
    (tmp_path / "fixes" / "known.toml").write_text(acknowledged)
    *_, ended = fuzz(MUTANT, tmp_path / "out", traces=12, seed=2, fixes=[str(tmp_path / "fixes")])
    assert isinstance(ended, CampaignEnded) and ended.summary.findings
    assert ended.summary.asked == ["--fixes", str(tmp_path / "fixes")]
    text = Path(ended.summary.findings[0].trace).with_suffix(".txt").read_text()
    assert f"--fixes {tmp_path / 'fixes'}" in text and (tmp_path / "out" / STATE_FILE).exists()
