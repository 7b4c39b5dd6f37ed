"""An explanation names the rule, tells the history of the block, and where expected and observed diverge."""

import re
import time
from pathlib import Path

import pytest
from cli_process import Cli
from msgspec import structs
from support import CLEAN, arrive, drawn, make_trace, steps

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.judge.oracles import ORACLES, contract
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.record.history import History, Mark, Moment, RequestStep
from hybridfuzz.harness.record.recorder import record_history
from hybridfuzz.harness.tell.explain import FIRST_SHOWN, LAST_SHOWN, explain, subject_blocks
from hybridfuzz.harness.tell.terminal import finding_text
from hybridfuzz.harness.tell.timeline import BLOCKS_MAX, MOMENTS_MAX, build_timeline, plain_text
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import Group

CORPUS = Path(__file__).parents[3] / "corpus"
FILES = sorted(path.name for path in CORPUS.glob("*.json"))
LIVED = History(
    num_blocks=8,
    groups=(("mamba", 16), ("attention", 16)),
    null_block=0,
    moments=(
        Moment(0, "step", "step", (3,)),
        Moment(1, "dummy_run", "dummy_run", (5,)),
        Moment(2, "step", "step", (6,)),
    ),
    marks=(
        Mark(0, 3, 7, "alloc", "r1", 0, 0),
        Mark(0, 3, 7, "write", "r1", 0, 0, "state@16 of document a"),
        Mark(0, 3, 7, "hash", group=0, content="state@16 of document a"),
        Mark(0, 3, 7, "release", "r1", 0, 0),
        Mark(0, 3, 7, "free"),
        Mark(1, 5, 7, "dead write", "dummy row 2", 0, 0, "content that matches no known prefix"),
        Mark(2, 6, 7, "hit", "r3", 0, 0),
        Mark(2, 6, 7, "read", "r3", 0, 0, "what dummy row 2 wrote in step 5"),
        Mark(2, 6, 7, "violation", "r3", 0),
    ),
    request_steps=(RequestStep(2, 6, "r3", 16, 4, 0, True, 16),),
    violation=Violation("S2", "temporal", "S2: r3 goes on from nothing", "state@16", "", 6, 2, "step", "r3", 0, "", 7),
    wanted="state@16 of document a",
)  # fmt: skip


def test_the_story_of_a_block() -> None:
    explanation = explain(LIVED)
    assert explanation is not None
    assert explanation.rule.startswith("S2 resume: The first step after an admission")
    one, two, three = explanation.story
    assert "block 7 is free, still published as state@16 of document a" in one
    assert two.startswith(
        "Step 5, a dummy run: dummy row 2 writes content that matches no known prefix into block 7, which is free"
    )
    assert "r3 is admitted with a hit of 16 tokens" in three
    assert "r3 reads what dummy row 2 wrote in step 5 from block 7" in three
    assert explanation.apart.endswith(
        "That block held state@16 of document a (column 0) after step 3; step 5 then overwrote it."
    )


def test_the_timeline_of_a_block() -> None:
    lines = plain_text(build_timeline(LIVED)).splitlines()
    assert re.split(r"\s{2,}", lines[0]) == ["block", "s3", "dummy run s5", "s6"]
    assert re.split(r"\s{2,}", lines[1]) == ["7", "# awkf", "# x", "r3 hr!"]


@pytest.mark.parametrize("name", FILES)
def test_every_trace_of_the_corpus(name: str) -> None:
    slug = name.partition("--")[0]
    outcome, history = record_history(load_factory(f"hybrid:{slug}"), load_trace(CORPUS / name))
    violation, explanation = outcome.violation, explain(history)
    assert violation is not None
    assert explanation is not None
    # A crash in the first step has nothing to tell: no step was executed.
    assert explanation.story or (violation.oracle == "CRASH" and not any(one.steps for one in history.moments))
    assert explanation.rule == contract(violation.oracle, violation.field)
    assert violation.message.partition(": ")[2] in explanation.apart
    if violation.block >= 0:
        assert any(f"block {violation.block}" in sentence for sentence in explanation.story)
    assert not re.search(r"\d{12}", explanation.text()), "a digest is no name"
    assert "What must hold" in finding_text(history)


def test_every_oracle_has_a_rule() -> None:
    for oracle in {name for one in ORACLES for name in one.ids()}:
        assert re.match(rf"{oracle} [\w ]+: .{{30,}}\.\)?$", contract(oracle)), contract(oracle)


def test_a_rule_that_begins_with_an_article_keeps_its_space() -> None:
    assert ": A written block has one writer" in contract("M5")


def test_nothing_to_explain() -> None:
    history = record_history(CLEAN, drawn(5, 4))[1]
    assert explain(history) is None
    assert finding_text(history) == ""
    timeline = build_timeline(history)
    assert len(timeline.blocks) <= BLOCKS_MAX
    assert len(timeline.columns) <= MOMENTS_MAX
    assert timeline.hidden_blocks > 0
    assert {len(row) for row in timeline.cells} == {len(timeline.columns)}


def test_a_lost_process_has_its_message_only() -> None:
    explanation = explain(History(violation=Violation("HANG", "time-limit", "HANG: the target hung in event 3 (step)")))
    assert explanation is not None
    assert explanation.story == ()
    assert "hung in event 3" in explanation.text()


def test_a_long_story_is_cut() -> None:
    count = 60
    moments = tuple(Moment(index, "step", "step", (index,)) for index in range(count))
    marks = tuple(Mark(index, index, 1, "zero") for index in range(count))
    violation = Violation("M1", "free", "M1: block 1 is lost", block=1)
    explanation = explain(History(4, (("mamba", 8),), 0, moments, marks, (), violation))
    assert explanation is not None
    assert len(explanation.story) == FIRST_SHOWN + LAST_SHOWN + 1
    assert f"({count - FIRST_SHOWN - LAST_SHOWN} more steps.)" in explanation.story


def test_replay_explains_one_trace(hybridfuzz: Cli) -> None:
    mutant = "hybrid:all-mode-partial-block"
    [file] = CORPUS.glob("all-mode-partial-block--*.json")
    ran = hybridfuzz("replay", file, "--target", mutant)
    assert ran.status == 1
    assert "What must hold: S1" in ran.out
    assert re.search(r"^1 +r0 aw +# krf!$", ran.out, re.MULTILINE)
    assert "What must hold" not in hybridfuzz("replay", file, "--target", mutant, "--no-explain").out
    [result] = hybridfuzz("replay", file, "--target", mutant, "--json").json["results"]
    assert result["explanation"]["story"]


def test_findings_are_explained(hybridfuzz: Cli, tmp_path: Path) -> None:
    ran = hybridfuzz("fuzz", "--target", "hybrid:null-as-state-slot", "--seed", "1", "--traces", "2", "-o", "out")
    assert ran.status == 1
    for text in (tmp_path / "out" / "findings").glob("*.txt"):
        assert "What must hold: M4" in text.read_text()
        assert text.with_suffix(".history").exists()


def test_a_number_with_thousands_of_digits_is_no_block() -> None:
    """A history may be a stranger's: int() raises ValueError for such text."""
    assert LIVED.violation
    violation = structs.replace(LIVED.violation, expected=f"block {'9' * 5_000}")
    assert subject_blocks(structs.replace(LIVED, violation=violation), violation) == [7]


def test_a_long_wait_is_explained_in_one_pass() -> None:
    """For each idle step all marks were counted again: half a megabyte of history took seconds."""
    long = 20_000
    violation = Violation("M8", "stall", "M8: r1 waits", "", "", 6, 2, "step", "r1")
    history = structs.replace(
        LIVED,
        moments=tuple(Moment(each, "step", "step", (each,), ("r1",), {"block": 3}) for each in range(long)),
        marks=tuple(Mark(each, each, 7, "alloc" if each % 2 else "release", "r1") for each in range(long)),
        request_steps=(),
        violation=violation,
        wanted="",
    )
    began = time.process_time()
    explanation = explain(history)
    assert time.process_time() - began < 10
    assert explanation
    assert any("Step 19999: nothing is scheduled; r1 waits" in sentence for sentence in explanation.story)


def test_a_windowed_read_is_told_at_its_own_columns() -> None:
    """Attention with a window starts at the first column that it needs."""
    groups = (Group("mamba", 8), Group("attention", 4), Group("attention", 4, window=8))
    trace = make_trace(arrive("r0", 30), *steps(3), groups=groups)
    reads = [mark for mark in record_history(CLEAN, trace)[1].marks if mark.what == "read" and mark.group == 2]
    first = next(mark for mark in reads if mark.step == 1)
    assert (first.column, first.content) == (4, "KV of positions 16 to 19 of r0")
