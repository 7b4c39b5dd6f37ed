"""Calls are made again and their answers told; a test ends where the answers of a fixed scheduler differ."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from hybridfuzz.targets.vllm.scheduler_test.calls import (
    EXPRESSIONS,
    OTHER,
    PRINTED,
    SCHEDULE,
    UPDATE,
    WAITING,
    answers,
    repeat,
)
from hybridfuzz.targets.vllm.scheduler_test.writing import End, Recorded, first_difference, without_a_fix

TOKENS = "step0.num_scheduled_tokens"


def recorded(*calls: tuple[str, list[tuple[str, str]]], raised: str = "") -> Recorded:
    """Return calls with their answers."""
    return Recorded({}, [(kind, "step0", ["pass"], found) for kind, found in calls], raised, [])


def fixed(*found: list[list[str]], raised: str = "") -> dict[str, Any]:
    """Return what a fixed scheduler answers."""
    return {"answers": list(found), "raised": raised}


def test_the_answers_of_every_call_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    scheduler = SimpleNamespace(requests={"r0": 1}, schedule=lambda: SimpleNamespace(num_scheduled_tokens={"r0": 3}))
    calls = [[SCHEDULE, "step0", ["step0 = scheduler.schedule()"], []], [OTHER, "", ["scheduler.requests.clear()"], []]]
    repeat(calls, {"scheduler": scheduler})
    told = json.loads(capsys.readouterr().out.removeprefix(PRINTED))
    assert told == {"answers": [[[TOKENS, "{'r0': 3}"], [WAITING, "['r0']"]], []], "raised": ""}


def test_an_exception_ends_the_calls_and_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    repeat([[OTHER, "", ["1 / 0"], []], [OTHER, "", ["pass"], []]], {"scheduler": None})
    assert json.loads(capsys.readouterr().out.removeprefix(PRINTED)) == {"answers": [], "raised": "ZeroDivisionError"}


def test_what_a_release_does_not_have_is_no_answer() -> None:
    assert list(answers(SCHEDULE, "step0", {"scheduler": None, "step0": object()}, set())) == []


def test_the_first_difference_ends_a_test() -> None:
    calls = recorded((SCHEDULE, [(TOKENS, "{'r0': 8}")]), (UPDATE, [("outputs", "1")]))
    end = first_difference(calls, fixed([[TOKENS, "{'r0': 4}"]], [["outputs", "2"]]))
    assert end == End(0, TOKENS, "{'r0': 8}", "{'r0': 4}")


def test_which_requests_are_left_is_no_answer() -> None:
    calls = recorded((SCHEDULE, [(TOKENS, "{}"), (WAITING, "['r0']")]))
    assert first_difference(calls, fixed([[TOKENS, "{}"], [WAITING, "[]"]])) is None


def test_no_answer_names_blocks() -> None:
    """A right fix may take other blocks than the patch."""
    assert not any("block" in expression for expressions in EXPRESSIONS.values() for expression in expressions)


def test_a_call_that_raises_ends_a_test_where_the_fixed_scheduler_does_not_raise() -> None:
    calls = recorded((OTHER, []), (SCHEDULE, []), raised="AssertionError")
    assert first_difference(calls, fixed([], [])) == End(1, "", "AssertionError")
    assert first_difference(calls, fixed([], raised="AssertionError")) is None


def test_without_a_fix_only_an_exception_and_a_stall_are_wrong() -> None:
    waiting = [(TOKENS, "{}"), (WAITING, "['r0']")]
    assert without_a_fix(recorded((SCHEDULE, waiting))) == End(0, TOKENS, "assert {}")
    assert without_a_fix(recorded((SCHEDULE, [(TOKENS, "{'r0': 1}"), (WAITING, "['r0']")]))) is None
    assert without_a_fix(recorded((SCHEDULE, [(TOKENS, "{}"), (WAITING, "[]")]))) is None
    assert without_a_fix(recorded((UPDATE, []), raised="KeyError")) == End(0, "", "KeyError")
