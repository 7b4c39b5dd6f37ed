"""Single marks in words: who holds a block, what a turn did, what happened to a block."""

from typing import Any

import pytest

from hybridfuzz.harness.judge.verdict import Block
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.record.history import History, Mark, Moment, RequestStep, What
from hybridfuzz.harness.tell.clauses import Blocks, Status, clause, step_clause
from hybridfuzz.harness.tell.explain import FIRST_SHOWN, LAST_SHOWN, SUBJECTS_MAX, explain, subject_blocks

HISTORY = History(groups=(("mamba", 16), ("attention", 16)), num_blocks=20, null_block=0)


@pytest.mark.parametrize(("status", "words"), [
    (Status(), ", which is free"),
    (Status(key="state@8 of r0"), ", which is free and is published as state@8 of r0"),
    (Status({"r0": None}), ", which belongs to r0"),
    (Status({"r0": None, "r1": None}, "state@8 of r0"),
     ", which belongs to r0 and r1 and is published as state@8 of r0"),
])  # fmt: skip
def test_a_status_in_words(status: Status, words: str) -> None:
    assert status.describe() == words


def test_blocks_are_followed_through_the_marks() -> None:
    """Holders come and go, a key is published and dropped; only states have a content of the whole block."""
    blocks = Blocks(HISTORY)

    def take(what: What, who: str = "", content: str = "", group: int = 0) -> Status:
        return blocks.take(Mark(0, 0, 7, what, who, group, 0, content))

    assert list(take("alloc", "r0").holders) == ["r0"]
    assert take("write", "r0", "state@8").content == "state@8"
    assert take("dead write", "padding row 1", "state@9").content == "state@9"
    assert take("write", "r0", "KV of position 3", group=1).content == "state@9"
    assert take("read", "r0", "state@4").content == "state@9"
    assert list(take("hit", "r1").holders) == ["r0", "r1"]
    assert take("hash", content="state@8").key == "state@8"
    assert list(take("release", "r0").holders) == ["r1"]
    assert list(take("release", "nobody").holders) == ["r1"]
    assert take("drop", content="state@8").key == ""
    assert blocks.of(7) is take("free")
    assert blocks.of(8) == Status()


@pytest.mark.parametrize(("turn", "words"), [
    ({"start": 3, "num_tokens": 1}, "is scheduled to compute position 3"),
    ({"start": 3, "num_tokens": 5}, "is scheduled to compute positions 3 to 7"),
    ({"start": 3, "num_tokens": 5, "accepted": 0}, "computes positions 3 to 7"),
    ({"start": 3, "num_tokens": 2, "drafts": 1}, "is scheduled to compute positions 3 to 4, the last a draft"),
    ({"start": 3, "num_tokens": 4, "drafts": 3, "accepted": 3},
     "computes positions 3 to 6, the last 3 of them drafts, 2 accepted"),
    ({"start": 3, "num_tokens": 2, "drafts": 1, "accepted": 0},
     "computes positions 3 to 4, the last a draft, 0 accepted"),
    ({"start": 0, "num_tokens": 5, "admitted": True}, "is admitted to compute positions 0 to 4"),
    ({"start": 8, "num_tokens": 1, "admitted": True, "hit": 8, "accepted": 1},
     "is admitted with a hit of 8 tokens and computes position 8"),
    ({"start": 5, "num_tokens": 1, "admitted": True, "kept": 5},
     "is admitted with 5 tokens kept from its session's last turn to compute position 5"),
])  # fmt: skip
def test_a_turn_in_words(turn: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {"drafts": 0, "admitted": False, "hit": 0, **turn}
    assert step_clause(RequestStep(0, 0, "r0", **given)) == f"r0 {words}"


HELD, FREE = Status({"r0": None}), Status()
KEYED = Status(key="state@8 of a", content="state@8 of a")
STALE = Status(key="state@8 of a", content="state@9 of r1")


@pytest.mark.parametrize(("what", "status", "words"), [
    ("alloc", HELD, "r0 gets block 7 (column 2 of mamba group 0)"),
    ("hit", HELD, "r0 resumes from block 7 (column 2 of mamba group 0)"),
    ("hit", KEYED, "r0 resumes from block 7, state@8 of a (column 2 of mamba group 0)"),
    ("release", HELD, "r0 releases block 7"),
    ("free", FREE, "block 7 is free"),
    ("free", KEYED, "block 7 is free, still published as state@8 of a"),
    ("free", STALE, "block 7 is free, still published as state@8 of a (it holds state@9 of r1)"),
    ("hash", KEYED, "block 7 is published as state@8 of r0"),
    ("hash", STALE, "block 7 is published as state@8 of r0 (it holds state@9 of r1)"),
    ("drop", FREE, "block 7 loses its key (state@8 of r0)"),
    ("zero", FREE, "block 7 is zeroed"),
    ("write", HELD, "r0 writes its own state@8 into block 7"),
    ("write", FREE, "r0 writes its own state@8 into block 7, which is free"),
    ("dead write", Status({"r1": None}), "r0 writes its own state@8 into block 7, which belongs to r1"),
    ("read", HELD, "r0 reads its own state@8 from block 7 (column 2)"),
    ("read", FREE, "r0 reads its own state@8 from block 7 (column 2), which is free"),
    ("load", HELD, "r0's state@8 of r0 is loaded into block 7 from outside the pool"),
    ("copy", HELD, "r0's state@8 of r0 is copied from block 5 to block 7"),
    ("copied", HELD, ""),
    ("violation", HELD, ""),
])  # fmt: skip
def test_a_mark_in_words(what: What, status: Status, words: str) -> None:
    assert clause(Mark(0, 0, 7, what, "r0", 0, 2, "state@8 of r0", 5), status, HISTORY) == words


def test_the_null_block_belongs_to_no_request() -> None:
    """A write there is M5's business; the content of other requests is named, kinds of content with an article."""
    mark = Mark(0, 0, 0, "write", "r0", 0, 2, "state@8 of r1")
    assert clause(mark, FREE, HISTORY) == "r0 writes state@8 of r1 into block 0"
    for content in ("window of state@8", "KV of position 3"):
        assert f"r0 writes the {content} into" in clause(Mark(0, 0, 7, "write", "r0", 0, 2, content), HELD, HISTORY)


def lived(*marks: Mark, request_steps: tuple[RequestStep, ...] = (), wanted: str = "", **violation: Any) -> History:
    """Steps 10, 11, ... of a run that ends in a violation."""
    last = max([mark.moment for mark in marks] + [turn.moment for turn in request_steps], default=0)
    given: dict[str, Any] = {"oracle": "S2", "field": "temporal", "told": "S2: r0 is wrong (step 12)", **violation}
    moments = tuple(Moment(index, "step", "step", (10 + index,)) for index in range(last + 1))
    return History(9, HISTORY.groups, 0, moments, marks, request_steps, Violation(**given), wanted)


def test_the_story_is_about_the_violations_block_and_where_its_content_came_from() -> None:
    """Sources of copies into it, the block that was expected, the last one that holds what is missing."""
    copies = (Mark(0, 10, 7, "copy", "r0", 0, 1, "state", 5), Mark(0, 10, 6, "copy", "r0", 0, 1, "state", 4))
    holding = [Mark(0, 10, block, "write", "r0", 0, 0, "state@8 of r0") for block in (2, 3)]
    history = lived(*copies, *holding, wanted="state@8 of r0", block=7, expected=Block(8))
    assert history.violation
    assert subject_blocks(history, history.violation) == [7, 5, 8, 3]


@pytest.mark.parametrize(("group", "blocks"), [(-1, [1, 2, 3]), (0, [1, 3]), (1, [2])])
def test_without_a_block_it_is_about_those_of_the_request(group: int, blocks: list[int]) -> None:
    marks = (
        Mark(0, 10, 1, "alloc", "r0", 0), Mark(0, 10, 2, "hit", "r0", 1), Mark(0, 10, 3, "alloc", "r0", 0),
        Mark(0, 10, 4, "alloc", "r1", 0), Mark(0, 10, 5, "read", "r0", 0),
    )  # fmt: skip
    history = lived(*marks, request="r0", group=group)
    assert history.violation
    assert subject_blocks(history, history.violation) == blocks


def test_no_story_is_about_too_many_blocks() -> None:
    marks = [Mark(0, 10, block, "alloc", "r0", 0) for block in range(1, 9)]
    assert history_subjects(lived(*marks, request="r0")) == list(range(1, SUBJECTS_MAX + 1))
    copies = [Mark(0, 10, 9, "copy", "r0", 0, 0, "state", block) for block in range(1, 9)]
    assert history_subjects(lived(*copies, block=9)) == [9, *range(1, SUBJECTS_MAX)]


def history_subjects(history: History) -> list[int]:
    assert history.violation
    return subject_blocks(history, history.violation)


def story(history: History) -> tuple[str, ...]:
    explanation = explain(history)
    assert explanation is not None
    return explanation.story


def test_each_step_that_touched_the_block_or_ran_the_request_has_a_sentence() -> None:
    """Reads only in the last one, other blocks and other requests not at all, nothing twice."""
    marks = (
        Mark(0, 10, 7, "alloc", "r0", 0, 0), Mark(0, 10, 8, "alloc", "r0", 0, 1),
        Mark(1, 11, 7, "read", "r0", 0, 0, "state@4 of r0"),
        Mark(2, 12, 7, "zero"), Mark(2, 12, 7, "zero", group=1),
        Mark(3, 13, 7, "read", "r0", 0, 0, "state@4 of r0"),
    )  # fmt: skip
    turns = (RequestStep(1, 11, "r0", 4, 1, 0, False, 0), RequestStep(1, 11, "r1", 6, 1, 0, False, 0))
    assert story(lived(*marks, request_steps=turns, block=7, request="r0")) == (
        "Step 10: r0 gets block 7 (column 0 of mamba group 0).",
        "Step 11: r0 is scheduled to compute position 4.",
        "Step 12: block 7 is zeroed.",
        "Step 13: r0 reads its own state@4 from block 7 (column 0).",
    )


def test_without_a_subject_every_turn_is_told() -> None:
    turns = (RequestStep(0, 10, "r0", 4, 1, 0, False, 0), RequestStep(0, 10, "r1", 6, 1, 0, False, 0))
    assert story(lived(request_steps=turns)) == (
        "Step 10: r0 is scheduled to compute position 4; r1 is scheduled to compute position 6.",
    )
    assert story(lived(request_steps=turns, request="r1")) == ("Step 10: r1 is scheduled to compute position 6.",)
    assert story(lived(request_steps=turns, request="r2")) == ("No step computed a token of r2 or gave it a block.",)


def test_the_null_block_is_introduced_first() -> None:
    history = lived(Mark(0, 10, 0, "write", "r0", 0, 0, "state@4 of r0"), block=0)
    assert story(history) == (
        "The null block, block 0, is a placeholder in tables and holds nothing.",
        "Step 10: r0 writes its own state@4 into block 0.",
    )


@pytest.mark.parametrize("sentences", [FIRST_SHOWN + LAST_SHOWN, FIRST_SHOWN + LAST_SHOWN + 1])
def test_only_a_story_that_is_too_long_is_cut(sentences: int) -> None:
    told = story(lived(*(Mark(index, 10 + index, 7, "zero") for index in range(sentences)), block=7))
    assert len(told) == sentences
    assert ("(1 more step.)" in told) == (sentences > FIRST_SHOWN + LAST_SHOWN)
    assert told[0] == "Step 10: block 7 is zeroed."
    assert told[-1] == f"Step {9 + sentences}: block 7 is zeroed."


WANTED = "state@8 of r0"


def apart(*marks: Mark, **violation: Any) -> str:
    explanation = explain(lived(*marks, wanted=WANTED, **violation))
    assert explanation is not None
    return explanation.apart


def test_where_expected_and_observed_diverge() -> None:
    """What was expected is still there, was overwritten, zeroed or reallocated, or was never written."""
    said = "Expected and observed diverge here: r0 is wrong (step 12). "
    wrote = Mark(0, 10, 7, "write", "r0", 0, 2, WANTED)
    assert apart(Mark(0, 10, 7, "read", "r0", 0, 2, WANTED)) == f"{said}No step wrote {WANTED}."
    assert apart(wrote, block=7) == f"{said}That block held {WANTED} (column 2) after step 10, and still does."
    elsewhere = Mark(1, 11, 8, "zero")
    assert apart(wrote, elsewhere) == f"{said}Block 7 held {WANTED} (column 2) after step 10, and still does."
    for what, fate in (
        ("write", "overwrote"),
        ("dead write", "overwrote"),
        ("zero", "zeroed"),
        ("alloc", "reallocated"),
    ):
        after: Any = Mark(1, 11, 7, what, "r1", 0, 0, "state@3 of r1")
        assert apart(wrote, elsewhere, after).endswith(f"after step 10; step 11 then {fate} it.")
    columnless = Mark(0, 10, 7, "write", "r0", 0, -1, WANTED)
    assert apart(columnless) == f"{said}Block 7 held {WANTED} after step 10, and still does."
    earlier = Mark(0, 10, 7, "zero")
    assert apart(earlier, wrote).endswith("and still does.")


def test_another_kind_of_moment_is_called_by_its_name() -> None:
    moments = (Moment(0, "dummy_run", "dummy_run", (3,)), Moment(1, "reset_prefix_cache", "reset_prefix_cache"))
    marks = (Mark(0, 3, 7, "zero"), Mark(1, 3, 7, "free"))
    violation = Violation("M1", "free", "M1: block 7 is lost", block=7)
    assert story(History(9, HISTORY.groups, 0, moments, marks, (), violation)) == (
        "Step 3, a dummy run: block 7 is zeroed.",
        "Then reset prefix cache: block 7 is free.",
    )


def test_a_signature_has_no_empty_parts() -> None:
    """Oracle, event kind, group kind, field; nothing else makes two failures different."""
    full = Violation("S2", "conv", "m", "e", "o", 3, 4, "step", "r0", 1, "mamba", 7)
    assert full.signature == "S2-step-mamba-conv"
    assert Violation("S2", "conv", "other", event_kind="step", group_kind="mamba").signature == full.signature
    assert Violation("M1", "free", "m", event_kind="abort").signature == "M1-abort-free"
    assert Violation("HANG", "", "m").signature == "HANG"


def test_a_step_without_tokens_has_no_empty_range() -> None:
    """A load was told as "is admitted to compute positions 24 to 23"."""
    load = RequestStep(0, 0, "r0", 24, 0, 0, True, 0, external=24)
    assert step_clause(load) == "r0 is admitted and waits for a load of 24 tokens; nothing of it is computed"
    assert step_clause(RequestStep(0, 0, "r0", 24, 0, 0, False, 0)) == "r0 computes nothing"


def test_a_refused_admission_is_told() -> None:
    """The story ended where the blocks of a failed load were freed."""
    free = [{"block": 8 if step > 1 else 4} for step in range(5)]
    steps = tuple(Moment(step, "step", "step", (step,), ("r0",), free[step]) for step in range(5))
    load = RequestStep(0, 0, "r0", 24, 0, 0, True, 0, external=24)
    marks = (Mark(0, 0, 1, "alloc", "r0", 0, 0), Mark(2, 2, 1, "release", "r0", 0, 0))
    violation = Violation("M8", "stall", "M8: nothing was scheduled", request="r0")
    found = explain(History(9, HISTORY.groups, 0, steps, marks, (load,), violation))
    assert found
    assert found.story[1] == "Step 1: nothing is scheduled; r0 waits and holds 1 block; 4 blocks are free."
    assert found.story[-1] == "Steps 2 to 4: nothing is scheduled; r0 waits and is not admitted; 8 blocks are free."


def test_what_is_free_is_told_of_each_pool() -> None:
    """Of two pools the sum was told: 25 blocks were free, and none of them was of the kind that was needed."""
    free = {"state slot": 1, "attention block": 24}
    step = Moment(0, "step", "step", (0,), ("r0",), free)
    found = explain(History(30, HISTORY.groups, 0, (step,), violation=Violation("M8", "stall", "m", request="r0")))
    told = "Step 0: nothing is scheduled; r0 waits and is not admitted; 1 state slot and 24 attention blocks are free."
    assert found and found.story == (told,)
