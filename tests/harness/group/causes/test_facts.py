"""Facts are about the violating step and the one before that ran the victim, or any request if there is no victim."""

from hybridfuzz.harness.group.causes.facts import facts_of
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.record.activity import Activity, ActivityRow
from hybridfuzz.targets.base.trace import Arrive, Config, Group, Trace

TRACE = Trace(Config(8, (Group("mamba", 4),)), (Arrive("r0", (("a", 3),), 8),))
PROMPT = Activity(0, 1, (ActivityRow("r0", 0, 3, 0, True, 0),), order=("r0",))
DECODE = Activity(1, 2, (ActivityRow("r0", 3, 1, 0, False, 0),), order=("r0",))
DUMMY = Violation("M4", "dead-write", "wrong", step=9, event_kind="dummy_run")


def empty(step: int) -> Activity:
    return Activity(step, step + 1)


def test_a_dummy_run_has_the_facts_of_each_request_that_ended() -> None:
    """Only the step before was looked at. A known bug of rows that ended as prompts therefore had no such fact in its
    condition, since one of its traces has a decode after the prompt, and swallowed a new bug of rows that decoded."""
    other = Activity(1, 2, (ActivityRow("r1", 3, 1, 0, False, 0),), order=("r1",))
    seen = facts_of(TRACE, (PROMPT, other, empty(2)), DUMMY)
    assert {"own before prompt", "own before decode"} <= set(seen)
    assert "own before prompt" not in facts_of(TRACE, (PROMPT, DECODE, empty(2)), DUMMY)


def test_a_dummy_run_after_several_empty_steps_has_the_facts_of_the_last_row() -> None:
    one = facts_of(TRACE, (PROMPT, empty(1)), DUMMY)
    two = facts_of(TRACE, (PROMPT, empty(1), empty(2)), DUMMY)
    assert {fact for fact in one if fact.startswith("own")} == {fact for fact in two if fact.startswith("own")}
    assert "own before prompt" in two
    other = facts_of(TRACE, (PROMPT, DECODE, empty(2), empty(3)), DUMMY)
    assert "own before decode" in other and "own before prompt" not in other
