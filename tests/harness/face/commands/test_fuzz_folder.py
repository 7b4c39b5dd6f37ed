"""A campaign reads what is in its folder when nobody else can change it any more."""

import argparse
import json
from pathlib import Path

import msgspec
import pytest

from hybridfuzz.harness.campaign.resume import exclusive
from hybridfuzz.harness.campaign.shared_state import Settings
from hybridfuzz.harness.campaign_summary import Summary
from hybridfuzz.harness.cli import build_parser
from hybridfuzz.harness.face.commands import common, fuzz
from hybridfuzz.harness.group.findings.finding_store import OutputError
from hybridfuzz.targets.base.launch import Launch


def test_a_campaign_that_ends_meanwhile_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its state was read before the environment was made, which may take minutes, and the folder taken after that."""
    out = tmp_path / "out"
    out.mkdir()
    running = Summary("hybrid", "", 7, {}, None, 10, 100, 1.0, [], {}, {}, [], [])
    (out / "campaign.json").write_bytes(msgspec.json.encode(running))
    launch, began = common.launch_target("hybrid"), list[Settings]()

    def launch_slowly(target: str) -> Launch:
        state = json.loads((out / "campaign.json").read_text())
        (out / "campaign.json").write_text(json.dumps({**state, "exit_reason": "traces", "traces": 20}))
        return launch

    def begin(options: argparse.Namespace, settings: Settings, *more: object) -> int:
        with pytest.raises(OutputError, match="another campaign is at work"), exclusive(out):
            pass
        began.append(settings)
        return 0

    monkeypatch.setattr(common, "launch_target", launch_slowly)
    monkeypatch.setattr(fuzz, "run_campaign", begin)
    fuzz.run(build_parser("fuzz").parse_args(["fuzz", "--target", "hybrid", "--traces", "1", "-o", str(out)]))
    [settings] = began
    assert settings.earlier is None
    assert settings.last and settings.last.traces == 20
