"""Where a wrong value came from: the row that wrote what was found, and the row that wrote what was wanted."""

from hybridfuzz.harness.group.causes.facts import facts_of
from hybridfuzz.harness.group.causes.origins import origins_of
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.record.activity import Activity, ActivityRow
from hybridfuzz.harness.record.history import History, Mark, What
from hybridfuzz.targets.base.trace import Arrive, Config, Group, Trace

CONFIG = Config(groups=(Group("mamba", 4),), num_blocks=16, num_speculative_tokens=3)
TRACE = Trace(CONFIG, (Arrive("r0", (("a", 7),), 8),))
PROMPT, SEVERAL, ONE = (
    ActivityRow("r0", *numbers) for numbers in ((0, 7, 0, True, 0), (7, 2, 0, False, 0), (9, 1, 0, False, 0))
)
STEPS = tuple(Activity(step, step, (row,), order=("r0",)) for step, row in enumerate((PROMPT, SEVERAL, ONE)))
WRONG = Violation("S3", "temporal", "wrong", step=2, event_kind="step", request="r0", group=0, block=1)


def mark(step: int, block: int, what: What, content: str = "", column: int = 0, who: str = "r0") -> Mark:
    return Mark(step, step, block, what, who, 0, column, content)


def history(*marks: Mark, wanted: str = "state@9 of r0") -> History:
    return History(16, (("mamba", 4),), marks=marks, violation=WRONG, wanted=wanted)


READ = mark(2, 1, "read", "state@8 of r0")


def test_the_rows_that_wrote_the_found_and_the_wanted_state() -> None:
    """Two known tokens that ran as drafts: a state for each, and the next step reads the first."""
    seen = origins_of(
        TRACE, STEPS, history(mark(1, 1, "write", "state@8 of r0"), mark(1, 2, "write", "state@9 of r0"), READ), WRONG
    )
    assert {"own resumes", "own stores nothing", "found write by own", "found in the step before"} <= set(seen)
    assert {"wanted in another block", "wanted by recomputes output", "wanted by stores several"} <= set(seen)
    assert "found by no drafts" in seen and "wanted overwritten" not in seen


def test_a_lost_and_a_missing_state_differ() -> None:
    written = mark(1, 1, "write", "state@9 of r0")
    lost = origins_of(TRACE, STEPS, history(written, mark(1, 1, "zero"), READ), WRONG)
    assert {"found zeroed", "wanted overwritten", "wanted by stores once"} <= set(lost)
    assert "wanted never written" in origins_of(TRACE, STEPS, history(mark(1, 1, "zero"), READ), WRONG)
    assert "found never written" in origins_of(TRACE, STEPS, history(READ), WRONG)


def test_what_follows_the_read_is_no_origin() -> None:
    late = mark(2, 1, "write", "state@10 of r0")
    assert "found never written" in origins_of(TRACE, STEPS, history(READ, late), WRONG)
    assert "own stores once" in origins_of(TRACE, STEPS, history(READ, late), WRONG)


def test_another_row_and_one_outside_the_table() -> None:
    foreign = mark(1, 1, "dead write", who="padding row 1")
    seen = origins_of(TRACE, STEPS, history(foreign, mark(2, 1, "read", column=-1), wanted=""), WRONG)
    assert {"found dead write by dead row", "own reads outside its table"} <= set(seen)
    assert not any(fact.startswith("wanted") for fact in seen)


def test_a_request_that_starts_again_was_preempted() -> None:
    """A reset preempts as a scheduler does, and is not in the list of preempted requests."""
    again = ActivityRow("r0", 0, 7, 0, True, 0)
    steps = tuple(Activity(step, step, (row,), order=("r0",)) for step, row in enumerate((PROMPT, again, SEVERAL)))
    assert "own now was preempted" in facts_of(TRACE, steps, WRONG)
    assert "own now was preempted" not in facts_of(TRACE, STEPS, WRONG)
