"""Answers of a run to the end: right on the correct target for every trace, wrong where a client sees the bug."""

from pathlib import Path

import pytest
from msgspec import structs
from support import CLEAN, arrive, make_trace, steps

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.record.answers import Answer, Answers, _answers, collect_answers
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import Abort, Arrive, Fork, Resume, Trace

CORPUS = Path(__file__).parents[3] / "corpus"


def answers_of(slug: str) -> tuple[Answer, ...]:
    [path] = CORPUS.glob(f"{slug}--*.json")
    return collect_answers(load_factory(f"hybrid:{slug}"), load_trace(path)).rows


@pytest.mark.parametrize("index", range(40))
def test_every_answer_of_the_correct_target_is_right(index: int) -> None:
    trace = draw_trace(CLEAN.capabilities, 11, index, {}, CLEAN.supports)
    wrong = [one for one in collect_answers(CLEAN, trace).rows if one.wrong_from >= 0 or one.end not in ("", "aborted")]
    assert not wrong


def test_a_wrong_state_shows_as_wrong_tokens() -> None:
    wrong = [one for one in answers_of("accepted-count-zero") if one.wrong_from >= 0]
    assert wrong
    assert not wrong[0].is_right


def test_a_wrong_cache_entry_shows_when_the_prompt_is_sent_again() -> None:
    """No answer of the trace itself is wrong: it ends where the entry is published."""
    answers = answers_of("split-on-wrong-grid")
    assert all(one.wrong_from < 0 for one in answers if not one.again)
    assert any(one.wrong_from == 0 for one in answers if one.again)


def test_prompts_are_sent_again_after_the_trace() -> None:
    trace = make_trace(arrive("r0", 9, new=3), *steps(2), arrive("r1", 9, new=3))
    names = [(one.request, one.again) for one in collect_answers(CLEAN, trace).rows]
    assert names == [("r0", False), ("r1", False), ("r0-again", True)], "an equal prompt is sent once"


def test_an_exception_ends_the_run() -> None:
    answers = _answers(load_factory("python:fake_targets:RAISES"), make_trace(arrive("r0", 3, new=20), *steps(6))).rows
    assert [(one.request, one.again) for one in answers] == [("r0", False)]
    assert answers[0].end not in ("", "aborted", "not finished")


def test_what_was_never_sent_is_no_answer() -> None:
    """A request behind the event that raised had no row, or one of a turn that all went well with."""
    trace = make_trace(arrive("r0", 3, new=20), *steps(6), arrive("r1", 3))
    found = _answers(load_factory("python:fake_targets:RAISES"), trace)
    assert [row.request for row in found.rows] == ["r0"] and found.unsent == ("r1",)
    assert _answers(CLEAN, trace).unsent == ()
    early = make_trace(Arrive("r0", (("a", 3),), 9, session=True), *steps(1), Resume("r0", (("b", 2),), 1), *steps(1))
    assert _answers(CLEAN, early).unsent == ("r0",), "its session is not idle"


def test_an_aborted_request_is_no_wrong_answer() -> None:
    [first, *_] = _answers(CLEAN, make_trace(arrive("r0", 3, new=9), *steps(3), Abort("r0"))).rows
    assert (first.end, first.wrong_from, first.is_right) == ("aborted", -1, True)


def test_turns_of_a_session_are_answers_of_their_own() -> None:
    first = structs.replace(arrive("r0", 5, new=2), session=True)
    trace = make_trace(first, *steps(4), Resume("r0", (("e", 3),), 2))
    answers = _answers(CLEAN, trace).rows
    assert [(one.prompt, one.is_right) for one in answers] == [(5, True), (10, True)]


def test_what_cannot_be_followed_has_no_answers() -> None:
    assert collect_answers(CLEAN, make_trace(arrive("r0", 3), Fork("r1", "r0"))) == Answers()


def test_a_token_that_is_right_by_chance_does_not_hide_the_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """Corpus trace of vLLM's cause 1: the wrong state yields the expected token, 50."""
    from hybridfuzz.harness.record import answers as module

    runs: list[str] = []

    def run(_: object, trace: Trace) -> Answers:
        [event] = [event for event in trace.events if isinstance(event, Arrive)]
        runs.append(event.prompt[0][0])
        seen = (50,) if runs[-1] == "b" else (9,)
        return Answers((Answer("r0", 1, (50,), seen),))

    monkeypatch.setattr(module, "_answers", run)
    answers = collect_answers(CLEAN, make_trace(arrive("r0", ("b", 1))))
    assert (answers.rows[0].wrong_from, runs) == (0, ["b", "b.2"])
    assert answers.variation == "other prompt tokens, the same lengths"
