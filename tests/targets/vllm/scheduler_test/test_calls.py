"""Calls are made again and their answers told; a test ends where the answers of a fixed scheduler differ."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from hybridfuzz.targets.vllm.scheduler_test.calls import OTHER, PRINTED, SCHEDULE, UPDATE, answers, repeat
from hybridfuzz.targets.vllm.scheduler_test.writing import End, Recorded, first_difference, without_a_fix

TOKENS, BLOCKS = "step0.num_scheduled_tokens", "step0.new_block_ids_to_zero"
REQUESTS = "sorted(scheduler.requests)"


def recorded(*calls: tuple[str, list[tuple[int, str, str]]], raised: str = "") -> Recorded:
    """Return calls with their answers."""
    return Recorded({}, [(kind, "step0", ["pass"], found) for kind, found in calls], raised, [])


def fixed(*found: list[list[Any]], raised: str = "") -> dict[str, Any]:
    """Return what a fixed scheduler answers."""
    return {"answers": list(found), "raised": raised}


def test_the_answers_of_every_call_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = SimpleNamespace(requests={"r0": 1}, schedule=lambda: SimpleNamespace(num_scheduled_tokens={"r0": 3}))
    calls = [[SCHEDULE, "step0", ["step0 = scheduler.schedule()"], []], [OTHER, "", ["scheduler.requests.clear()"], []]]
    repeat(calls, {"scheduler": scheduler})
    told = json.loads(capsys.readouterr().out.removeprefix(PRINTED))
    assert [0, TOKENS, "{'r0': 3}"] in told["answers"][0]
    assert [2, REQUESTS, "['r0']"] in told["answers"][0]
    assert [2, REQUESTS, "[]"] in told["answers"][1]
    assert told["raised"] == ""


def test_an_exception_ends_the_calls_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    repeat([[OTHER, "", ["1 / 0"], []], [OTHER, "", ["pass"], []]], {"scheduler": None})
    assert json.loads(capsys.readouterr().out.removeprefix(PRINTED)) == {"answers": [], "raised": "ZeroDivisionError"}


def test_what_a_release_does_not_have_is_no_answer() -> None:
    assert list(answers(SCHEDULE, "step0", {"scheduler": None, "step0": object()}, set())) == []


def test_the_first_difference_in_tokens_comes_before_one_in_blocks() -> None:
    calls = recorded((SCHEDULE, [(1, BLOCKS, "[1]")]), (SCHEDULE, [(0, TOKENS, "{'r0': 8}")]))
    end = first_difference(calls, fixed([[1, BLOCKS, "[2]"]], [[0, TOKENS, "{'r0': 4}"]]))
    assert end == End(1, TOKENS, "{'r0': 4}", "{'r0': 8}")


def test_behind_a_difference_in_tokens_nothing_is_compared() -> None:
    calls = recorded((SCHEDULE, [(0, TOKENS, "{'r0': 8}")]), (OTHER, [(0, "other", "1")]))
    end = first_difference(calls, fixed([[0, TOKENS, "{'r0': 4}"]], [[0, "other", "2"]]))
    assert end is not None
    assert end.call == 0


def test_a_difference_that_only_the_inside_shows_ends_a_test_if_there_is_no_other() -> None:
    calls = recorded((SCHEDULE, [(0, TOKENS, "{}"), (2, REQUESTS, "['r0']")]))
    assert first_difference(calls, fixed([[0, TOKENS, "{}"], [2, REQUESTS, "[]"]])) == End(0, REQUESTS, "[]", "['r0']")


def test_equal_answers_end_no_test() -> None:
    calls = recorded((SCHEDULE, [(0, TOKENS, "{}")]))
    assert first_difference(calls, fixed([[0, TOKENS, "{}"]])) is None


def test_a_call_that_raises_ends_a_test_where_the_fixed_scheduler_does_not_raise() -> None:
    calls = recorded((OTHER, []), (SCHEDULE, []), raised="AssertionError")
    assert first_difference(calls, fixed([], [])) == End(1, "", "", "AssertionError")
    assert first_difference(calls, fixed([], raised="AssertionError")) is None


def test_without_a_fix_only_an_exception_and_a_stall_are_wrong() -> None:
    waiting: list[tuple[int, str, str]] = [(0, TOKENS, "{}"), (2, REQUESTS, "['r0']")]
    assert without_a_fix(recorded((SCHEDULE, waiting))) == End(0, TOKENS, "", "assert {}")
    assert without_a_fix(recorded((SCHEDULE, [(0, TOKENS, "{'r0': 1}"), (2, REQUESTS, "['r0']")]))) is None
    assert without_a_fix(recorded((SCHEDULE, [(0, TOKENS, "{}"), (2, REQUESTS, "[]")]))) is None
    assert without_a_fix(recorded((UPDATE, []), raised="KeyError")) == End(0, "", "", "KeyError")
