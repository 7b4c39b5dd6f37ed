"""Failing traces that nobody has looked into are kept, listed and looked into later."""

import json
from pathlib import Path

from cli_process import MUTANT, Cli
from support import arrive, make_trace, steps

from hybridfuzz.harness.campaign.backlog import EXPLAINED_ENOUGH, KEPT_MAX, PER_SYMPTOM, Backlog
from hybridfuzz.harness.campaign_summary import Waiting
from hybridfuzz.harness.draw.trace_files import load_trace

TRACE = make_trace(arrive("r0", 3), *steps(1))
SYMPTOM = "S3-step-mamba-conv", "relation"


def entry(index: int, seed: int = 1) -> Waiting:
    return Waiting(seed, index, "S3-step-mamba-conv", "S3-step-mamba-conv")


def test_a_kept_trace_is_there_for_the_next_process(tmp_path: Path) -> None:
    backlog = Backlog(tmp_path, ())
    assert backlog.keep(entry(7), SYMPTOM, TRACE)
    again = Backlog(tmp_path, [*backlog.entries(), entry(8)])
    assert again.entries() == [entry(7)], "one whose file is gone is forgotten"
    assert load_trace(again.path(entry(7))).events == TRACE.events
    again.drop(entry(7))
    assert not again.entries() and again.path(entry(7)).exists(), "the state on disk still lists it"
    again.sweep()
    assert not again.path(entry(7)).exists()


def test_traces_without_a_number_do_not_replace_each_other(tmp_path: Path) -> None:
    """All traces of the corpus, and of an earlier campaign, have the number -1."""
    backlog = Backlog(tmp_path, ())
    first, second = (backlog.keep(entry(-1), SYMPTOM, TRACE) for _ in range(2))
    assert first and second and backlog.path(first) != backlog.path(second)
    backlog.drop(first)
    third = backlog.keep(entry(-1), SYMPTOM, TRACE)
    backlog.sweep()
    assert third and backlog.entries() == [second, third]
    assert all(backlog.path(one).exists() for one in (second, third))


def test_no_more_than_a_number_are_kept_of_one_symptom_and_of_all(tmp_path: Path) -> None:
    backlog, kept = Backlog(tmp_path, ()), 0
    for index in range(PER_SYMPTOM + 5):
        assert backlog.seen(SYMPTOM) == index
        kept += backlog.keep(entry(index), SYMPTOM, TRACE) is not None
    assert kept == PER_SYMPTOM
    assert backlog.keep(entry(999), ("S3-step-mamba-conv", "another relation"), TRACE)
    assert backlog.keep(entry(998), SYMPTOM, TRACE, is_familiar=False), "one that looks like none before"
    full = Backlog(tmp_path, [])
    full._waiting = {(1, index): entry(index) for index in range(KEPT_MAX)}
    assert not full.keep(entry(KEPT_MAX), ("S3-step-mamba-conv", "a third one"), TRACE)


def test_of_a_symptom_that_is_known_each_time_ever_fewer_are_looked_into(tmp_path: Path) -> None:
    """All others wait for the next campaign; none does once one of them is new."""
    backlog = Backlog(tmp_path, ())
    for _ in range(EXPLAINED_ENOUGH):
        assert backlog.is_due(SYMPTOM, 9)
        backlog.compared(SYMPTOM, is_known=True)
    assert [seen for seen in range(9, 70) if backlog.is_due(SYMPTOM, seen)] == [16, 32, 64]
    assert backlog.is_due(("S3-step-mamba-conv", "another relation"), 9)
    backlog.compared(SYMPTOM, is_known=False)
    assert backlog.is_due(SYMPTOM, 9)


def test_what_one_night_leaves_the_next_one_looks_into(hybridfuzz: Cli, tmp_path: Path) -> None:
    """With no share at all findings are confirmed while traces run, and nothing else is done."""
    common = ("fuzz", "--target", MUTANT, "--jobs", "1", "--no-canary", "--json", "-o", "out")
    first = hybridfuzz(*common, "--seed", "1", "--time", "2s", "--triage-share", "0%")
    assert first.status == 1
    [finding, *_] = first.json["findings"]
    assert (finding["reproduced"], finding["reduced"]) == (True, False)
    assert first.json["effort"]["reducing"] == first.json["effort"]["identity"] == 0
    waiting = first.json["waiting"]
    assert waiting and {one["seed"] for one in waiting} == {1}
    files = {f"1-{one['index']}.json" for one in waiting}
    assert {file.name for file in (tmp_path / "out" / "waiting").iterdir()} == files
    assert "not looked into for lack of time: " + finding["name"] in first.err
    assert "kept in waiting/" in first.err
    second = hybridfuzz(*common, "--seed", "2", "--traces", "1")
    assert second.json["waiting"] == [] and not list((tmp_path / "out" / "waiting").iterdir())
    assert {one["signature"] for one in first.json["findings"]} <= {
        symptom for one in second.json["findings"] for symptom in one["symptoms"]
    }
    assert all(one["reduced"] for one in second.json["findings"])
    state = json.loads((tmp_path / "out" / "campaign.json").read_text())
    assert state["triage_share"] == 0.3
