"""The canary: it sings where the alarm works, and its silence is said aloud."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cli_process import Cli
from support import CLEAN

from hybridfuzz.harness.campaign import canary
from hybridfuzz.harness.campaign.campaign import Campaign, Settings
from hybridfuzz.harness.campaign.canary import CanaryRun, applying, canaries, known_traces, share
from hybridfuzz.harness.campaign_events import CampaignEnded, CanaryDone
from hybridfuzz.harness.campaign_summary import Canary, Summary
from hybridfuzz.harness.face.commands import fuzz
from hybridfuzz.harness.face.outputs.console import canary_line, verdict
from hybridfuzz.harness.measure.detection.matrix import mutants_of
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.registry import prepare

LAUNCH = prepare("hybrid", print)
QUICK = "hybrid:null-as-state-slot"
DRAFTS_ONLY = "hybrid:all-spec-table-width"
DEAF = "python:fake_targets:NOISY"
"""A "mutant" without a bug: what any mutant is to an alarm that does not work."""


@pytest.fixture(autouse=True)
def fakes_are_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)


def sing(*specs: str, overrides: Mapping[str, object] | None = None, seconds: float = 0.5) -> Canary:
    return CanaryRun(LAUNCH, 1, dict(overrides or {}), seconds).run(specs)


def campaign(tmp_path: Path, *specs: str, **changes: Any) -> Summary:
    settings = Settings(
        target="hybrid", launch=LAUNCH, seed=1, out=tmp_path, canaries=specs, **{"traces": 60, **changes}
    )
    records = list(Campaign(settings).run())
    assert sum(isinstance(record, CanaryDone) for record in records) == bool(specs)
    last = records[-1]
    assert isinstance(last, CampaignEnded)
    return last.summary


def test_a_planted_bug_is_found_and_no_finding(tmp_path: Path) -> None:
    summary = campaign(tmp_path, QUICK, traces=200)
    assert summary.canary
    assert summary.canary.found
    assert summary.canary.slug == "null-as-state-slot"
    assert summary.canary.signature
    assert summary.findings == []
    assert not summary.blind
    assert fuzz.status(summary) == 0


def test_a_silent_canary_makes_the_campaign_blind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "SECONDS_MAX", 0.5)
    summary = campaign(tmp_path, *[DEAF] * 9)
    assert summary.canary
    assert summary.canary.state == "silent"
    assert summary.canary.silent == ["NOISY"] * 3, "at most three tries"
    assert summary.canary.seconds >= 1.5
    assert summary.blind
    assert fuzz.status(summary) == 3
    assert "blind" in verdict(summary).plain
    assert "clean" not in verdict(summary).plain
    assert "NOISY" in canary_line(summary.canary)


def test_a_mutant_that_is_silent_is_named_even_if_the_next_one_is_found() -> None:
    result = sing(DEAF, QUICK)
    assert (result.found, result.slug, result.silent) == (True, "null-as-state-slot", ["NOISY"])
    assert "not detected: NOISY" in canary_line(result)


def test_with_overrides_only_what_is_within_reach_is_planted() -> None:
    result = sing(DRAFTS_ONLY, QUICK, overrides={"num_speculative_tokens": "0"})
    assert (result.state, result.slug, result.silent) == ("found", "null-as-state-slot", [])
    nothing = sing(DRAFTS_ONLY, overrides={"num_speculative_tokens": "0"})
    assert nothing.state == "none"
    assert "no bug was planted" in canary_line(nothing)


def test_overrides_of_other_engines_are_left_out() -> None:
    assert applying({"runner": "v1", "async_depth": "0"}, CLEAN.capabilities) == {"async_depth": "0"}


def test_overrides_that_no_trace_fits_leave_none() -> None:
    assert sing(QUICK, overrides={"num_blocks": "2"}).state == "none"


def test_stopped_before_it_was_found_is_not_blind() -> None:
    canary_run = CanaryRun(LAUNCH, 1, {}, 60.0)
    canary_run.stop()
    assert canary_run.run([QUICK]).state == "unfinished"


def test_the_seed_decides_which_one_is_planted() -> None:
    assert canaries(1) == canaries(1)
    assert set(canaries(1)) == {f"hybrid:{slug}" for slug in mutants_of("hybrid")}
    assert len({canaries(seed)[0] for seed in range(30)}) > 1


def test_its_share_is_a_few_per_cent_but_some_seconds() -> None:
    assert share(1.0) == 5.0
    assert share(600.0) == 30.0
    assert share(86400.0) == share(None) == 60.0


@pytest.mark.parametrize("slug", sorted(mutants_of("hybrid")))
def test_every_mutant_has_a_known_trace(slug: str) -> None:
    assert list(known_traces(slug))


def test_a_known_trace_is_no_proof_where_the_bug_is_not() -> None:
    with WorkerClient("hybrid", LAUNCH) as worker:
        worker.start()
        assert not canary.shows(worker, "null-as-state-slot", {})


def test_command_line(hybridfuzz: Cli) -> None:
    """A campaign against a mutant plants one, too; --no-canary does not."""
    words = ["fuzz", "--target", QUICK, "--seed", "1", "--traces", "4", "--reduce", "1s", "--json"]
    ran = hybridfuzz(*words)
    assert ran.status == 1
    assert ran.json["canary"]["found"]
    assert {"slug", "found", "traces", "seconds"} <= ran.json["canary"].keys()
    assert "self-test passed: planted bug " in ran.err
    assert hybridfuzz(*words, "--no-canary").json["canary"] is None
