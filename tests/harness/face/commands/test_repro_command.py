"""What `repro` prints."""

import re
from pathlib import Path

import pytest
from cli_process import Cli
from msgspec import structs

from hybridfuzz.harness.draw.trace_files import load_trace, save_trace
from hybridfuzz.harness.face.commands.repro import again
from hybridfuzz.harness.tell.reproduce import name_of_test
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.trace import Step

CORPUS = Path(__file__).parents[4] / "corpus"


@pytest.mark.parametrize(
    ("tree", "command"),
    [("/a tree", "PYTHONPATH='/a tree' /venv/bin/python out/repro.py"), ("", "/venv/bin/python out/repro.py")],
)
def test_how_to_run_a_script_again_where_its_engine_is(tree: str, command: str) -> None:
    """A maintainer had to look for the environment that hybridfuzz had made."""
    assert again(Launch("/venv/bin/python", {}, tree=tree), Path("out/repro.py")) == command


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Wrong tokens for a one-token prompt (hybrid model, V2)", "wrong_tokens_for_a_one_token_prompt"),
        (
            "The prefix cache publishes blocks that do not hold what the keys of their content name",
            "the_prefix_cache_publishes_blocks_that_do_not_hold_what_the_keys",
        ),
    ],
)
def test_a_test_is_named_for_the_title_of_the_report(title: str, name: str) -> None:
    assert name_of_test(title) == name


def test_a_finding_that_its_campaign_did_not_reduce_is_reduced_first(hybridfuzz: Cli, tmp_path: Path) -> None:
    """Its report told events that did nothing, and a reader could not tell the cause."""
    target = ("--target", "hybrid:finished-row-not-cleared")
    hybridfuzz("fuzz", *target, "--traces", "12", "--seed", "1", "--no-canary", "-o", "out")
    [finding, *_] = sorted((tmp_path / "out" / "findings").glob("*.json"))
    trace = load_trace(finding)
    save_trace(structs.replace(trace, events=(*[Step()] * 4, *trace.events)), finding)
    before = len(load_trace(finding).events)
    state = tmp_path / "out" / "campaign.json"
    state.write_text(re.sub(r'"reduced": *true', '"reduced": false', state.read_text()))
    ran = hybridfuzz("repro", finding, *target, "-o", "reduced")
    after = len(load_trace(tmp_path / "reduced" / "trace.json").events)
    assert ran.status == 0 and after < before
    assert f"reduced from {before} to {after} event" in ran.err
    elsewhere = (tmp_path / "mine.json").write_bytes(finding.read_bytes()) and "mine.json"
    kept = hybridfuzz("repro", elsewhere, *target, "-o", "kept")
    assert "reduced from" not in kept.err and f"nor does it need more than {after} event" in kept.out


def test_a_target_without_tests_of_its_own_style_says_so(hybridfuzz: Cli) -> None:
    [file] = CORPUS.glob("finished-row-not-cleared--*.json")
    target = ("--target", "hybrid:finished-row-not-cleared")
    ran = hybridfuzz("repro", file, *target, "--kind", "pytest", "-o", "out")
    assert (ran.status, "use test_repro.py" in ran.error) == (2, True)


def test_each_finding_of_a_campaigns_folder_gets_a_folder(hybridfuzz: Cli, tmp_path: Path) -> None:
    """Each was a command of its own, and each compared its failure with the known bugs anew."""
    target = ("--target", "hybrid:finished-row-not-cleared")
    hybridfuzz("fuzz", *target, "--traces", "12", "--seed", "1", "--no-canary", "-o", "night")
    found = {path.stem for path in (tmp_path / "night" / "findings").glob("*.json")}
    ran = hybridfuzz("repro", "night", *target, "-o", "out", "--json")
    assert ran.status == 0 and found
    assert {Path(one["folder"]).name for one in ran.json["reports"]} == found
    assert all((tmp_path / "out" / name / "REPORT.md").exists() for name in found)
    empty = hybridfuzz("repro", "out", *target, "-o", "other")
    assert empty.status == 2 and "no campaign's folder" in empty.err
