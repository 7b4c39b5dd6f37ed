"""What `repro` prints."""

import re
from pathlib import Path

import pytest
from cli_process import Cli
from msgspec import structs

from hybridfuzz.harness.draw.trace_files import load_trace, save_trace
from hybridfuzz.harness.face.commands.repro import Reproduced, again, by_cause
from hybridfuzz.harness.group.known.cause_text import CauseText
from hybridfuzz.harness.record.recorder import record_history
from hybridfuzz.harness.tell.bug_report import ReproCase, report, shown_as
from hybridfuzz.harness.tell.related import RelatedEntry
from hybridfuzz.harness.tell.reproduce import name_of_test
from hybridfuzz.harness.tell.script import ScriptVerdict
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.registry import describe, load_factory
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


def test_findings_of_one_cause_share_a_report() -> None:
    """A defect with two packaged traces made two reports; the second one repeated the first."""

    def made(name: str, cause: str, promised: bool = True) -> Reproduced:
        entry = RelatedEntry(name, "", cause=CauseText(cause, {}, "")) if cause else None
        verdict = ScriptVerdict(promised, 1, 0.1, "")
        case = structs.replace(case_of("accepted-count-zero"), related=entry, verdict=verdict)
        return Reproduced(Path(name), case.trace, None, case, "", Path(name))

    a, other, again, unknown, second = (made("a", "A", promised=False), made("b", "B"), made("c", "A"),
                                        made("d", ""), made("e", ""))  # fmt: skip
    assert by_cause([a, other, again, unknown, second]) == [[again, a], [other], [unknown], [second]]


def case_of(slug: str) -> ReproCase:
    [path] = CORPUS.glob(f"{slug}--*.json")
    trace, spec = load_trace(path), f"hybrid:{slug}"
    outcome, history = record_history(load_factory(spec), trace)
    assert outcome.violation
    return ReproCase(spec, Launch("python", {}), describe(spec, trace), trace, history, outcome.violation)


def test_another_finding_of_the_cause_is_a_line() -> None:
    first, second = case_of("accepted-count-zero"), case_of("finished-row-not-cleared")
    told = shown_as([first, second, second])
    assert told == ["A padding or dummy row writes into cache memory in a data-parallel dummy run"]
    assert f"**The same defect shows also as**, in other runs with other requests:\n\n* {told[0]}\n" in report(
        structs.replace(first, shown_as=told)
    )
    assert shown_as([first, first]) == []


def test_each_finding_of_a_campaigns_folder_gets_a_folder(hybridfuzz: Cli, tmp_path: Path) -> None:
    """Each was a command of its own, and each compared its failure with the known bugs anew."""
    target = ("--target", "hybrid:finished-row-not-cleared")
    hybridfuzz("fuzz", *target, "--traces", "12", "--seed", "1", "--no-canary", "-o", "night")
    found = {path.stem for path in (tmp_path / "night" / "findings").glob("*.json")}
    ran = hybridfuzz("repro", "night", *target, "-o", "out", "--json")
    assert ran.status == 0 and found
    assert {Path(one["folder"]).name for one in ran.json["reports"]} == found
    shared = {Path(one["folder"]).name for one in ran.json["reports"] if "reported_in" in one}
    assert all((tmp_path / "out" / name / "REPORT.md").exists() == (name not in shared) for name in found)
    empty = hybridfuzz("repro", "out", *target, "-o", "other")
    assert empty.status == 2 and "no campaign's folder" in empty.err
