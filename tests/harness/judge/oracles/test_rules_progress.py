"""S6, S8 and M8 on observations made by hand: a turn's end, what is in flight, how long nothing may happen."""

from collections.abc import Sequence
from typing import Any

import pytest
from handmade import context_of, life_of, plan, view_of
from msgspec import structs

from hybridfuzz.harness.judge.oracles.device_order import Order
from hybridfuzz.harness.judge.oracles.liveness import STALL_STEPS_MAX, STALL_STEPS_MAX_BEHIND_COPIES, Liveness
from hybridfuzz.harness.judge.oracles.output import Output
from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.request import Life
from hybridfuzz.reference.tokens import other_token
from hybridfuzz.targets.base.observe import Copied, Delivered, Forward, ForwardRow, Loaded, PlannedRow, Zeroed
from hybridfuzz.targets.base.trace import LATE_STEPS_MAX

LAYOUT = Layout((Group("attention", 8),), 12, 4, "align", True)
TRUTH = life_of("r0", 6).truth
TRUTH.reach(20)


def field_of(violation: Any) -> str:
    return violation.field if violation else ""


@pytest.mark.parametrize(("session", "new", "sampled", "field"), [
    (False, 8, 4, ""), (False, 8, 3, "sampled"), (False, 2, 4, ""), (False, 2, 3, "sampled"), (False, 2, 2, ""),
    (True, 8, 4, ""), (True, 8, 3, "sampled"), (True, 2, 4, ""), (True, 2, 3, "sampled"), (True, 2, 2, ""),
    (True, 2, 1, "sampled"),
])  # fmt: skip
def test_right_drafts_are_accepted_up_to_the_last_token(session: bool, new: int, sampled: int, field: str) -> None:
    """Three right drafts behind the prompt: all of them, or those up to the last token of the request or its turn."""
    life = life_of("r0", 6, new, settled=5, session=session)
    row = ForwardRow("r0", 5, TRUTH.tokens[5:9], 3, TRUTH.tokens[6 : 6 + sampled])
    assert field_of(Output().on_row(context_of(LAYOUT), row, life)) == field


@pytest.mark.parametrize(("position", "tokens", "field"), [
    (5, TRUTH.tokens[5:6], ""), (4, TRUTH.tokens[4:6], "position"), (6, TRUTH.tokens[6:7], "position"),
    (5, TRUTH.tokens[6:7], "input"),
])  # fmt: skip
def test_a_row_goes_on_where_its_request_is(position: int, tokens: Sequence[int], field: str) -> None:
    """Judged for a row that samples nothing, too."""
    row = ForwardRow("r0", position, tokens, 0, ())
    assert field_of(Output().on_row(context_of(LAYOUT), row, life_of("r0", 6, settled=5))) == field


@pytest.mark.parametrize(("least", "place", "field"), [(4, 4, ""), (4, 3, "sampled"), (3, 4, "sampled")])
def test_stop_tokens_may_be_held_back_behind_an_answer_that_must_have_all_its_tokens(
    least: int, place: int, field: str
) -> None:
    """Nothing counts there, and how long an engine holds them back depends on what it counts."""
    life = Life("r0", (("a", 6),), 4, stop_at=2, min_tokens=least)
    life.settled = 6 + place - 1
    life.truth.reach(6 + place + 1)
    other = other_token(life.truth.tokens[6 + place])
    row = ForwardRow("r0", life.settled, life.truth.tokens[life.settled : life.settled + 1], 0, (other,))
    assert field_of(Output().on_row(context_of(LAYOUT), row, life)) == field


def test_log_probabilities_of_a_prompt_are_those_of_its_tokens() -> None:
    """From the second token on: nothing is known of the first. Those of a request that its client ended are skipped."""
    context, oracle = context_of(LAYOUT, r0=life_of("r0", 6, 4)), Output()
    context.reference.withdrawn.add("gone")
    right, shifted = TRUTH.tokens[1:6], TRUTH.tokens[:5]
    assert oracle.on_delivered(context, Delivered(0, (), (), scored=[("gone", (9,)), ("r0", right)])) is None
    for wrong in (shifted, right[:4], [*right, 0]):
        violation = oracle.on_delivered(context, Delivered(0, (), (), scored=[("r0", wrong)]))
        assert field_of(violation) == "prompt-logprobs"
    assert field_of(oracle.on_delivered(context, Delivered(0, (), (), scored=[("r9", right)]))) == "after-end"


def test_log_probabilities_of_a_prompt_are_those_that_its_client_wants() -> None:
    """Behind the first two tokens and the next, and no others."""
    life = Life("r0", (("a", 6),), 4, prompt_logprobs=True, logprobs_from=2)
    context, oracle = context_of(LAYOUT, r0=life), Output()
    assert oracle.on_delivered(context, Delivered(0, (), (), scored=[("r0", TRUTH.tokens[3:6])])) is None
    for wrong in (TRUTH.tokens[1:6], TRUTH.tokens[2:6], TRUTH.tokens[4:6]):
        violation = oracle.on_delivered(context, Delivered(0, (), (), scored=[("r0", wrong)]))
        assert field_of(violation) == "prompt-logprobs"


def test_clients_get_each_token_once() -> None:
    """A delivery to a request that its client ended is skipped, and those after it are checked."""
    context, oracle = context_of(LAYOUT, r0=life_of("r0", 6, 4)), Output()
    context.reference.withdrawn.add("gone")
    assert oracle.on_delivered(context, Delivered(0, [("gone", (9,)), ("r0", TRUTH.tokens[6:8])], ())) is None
    assert oracle.exercised == {"S6": 1}
    assert field_of(oracle.on_delivered(context, Delivered(0, [("r0", TRUTH.tokens[7:8])], ()))) == "delivered"
    violation = oracle.on_delivered(context, Delivered(0, [("gone", (9,)), ("r0", (1,))], ()))
    assert field_of(violation) == "delivered"


@pytest.mark.parametrize(("count", "aborted", "field"), [(4, False, ""), (3, False, "length"), (3, True, "")])
def test_an_end_comes_with_the_last_token(count: int, aborted: bool, field: str) -> None:
    """Unless its client aborted it; one that is gone for that reason is skipped, and those after it are checked."""
    life = life_of("r0", 6, 4)
    life.aborted = aborted
    delivered = Delivered(0, [("r0", TRUTH.tokens[6 : 6 + count])], ("gone", "r0"))
    context = context_of(LAYOUT, r0=life)
    context.reference.withdrawn.add("gone")
    assert field_of(Output().on_delivered(context, delivered)) == field


@pytest.mark.parametrize(
    ("step", "block", "field"), [(2, 3, "overtaken"), (2, 4, ""), (2, 5, ""), (1, 3, ""), (0, 3, "")]
)
def test_device_work_waits_for_earlier_steps_that_use_its_block(step: int, block: int, field: str) -> None:
    """Step 1 is in flight and uses block 3; r1, which holds block 4, is not in it; step 2 uses block 5."""
    context = context_of(LAYOUT, r0=life_of("r0", 20), r1=life_of("r1", 20))
    tables = {"r0": ((3,),), "r1": ((4,),)}
    plan(context, PlannedRow("r0", 0, 1, 0, False, 0), step=1, tables=tables)
    plan(context, PlannedRow("r1", 0, 1, 0, False, 0), step=2, tables={**tables, "r1": ((4, 5),)})
    oracle = Order()
    assert field_of(oracle.on_zeroed(context, Zeroed(step, (9, block)))) == field
    assert field_of(oracle.on_copied(context, Copied(step, "r1", 0, 0, 3, 1, block, 0, True, True))) == field
    assert field_of(oracle.on_loaded(context, Loaded(step, "r1", 0, 0, 0, block))) == field
    assert oracle.exercised == {"S8": 4}


@pytest.mark.parametrize(
    ("step", "dummy", "field"), [(1, False, ""), (2, False, "forward"), (2, True, ""), (0, False, "")]
)
def test_forwards_run_in_the_order_of_their_plans(step: int, dummy: bool, field: str) -> None:
    """A dummy run belongs to no planned step."""
    context = context_of(LAYOUT, r0=life_of("r0", 20))
    for planned in (1, 2):
        plan(context, PlannedRow("r0", 0, 1, 0, False, 0), step=planned)
    assert field_of(Order().on_forward(context, Forward(step, (), (), dummy))) == field


@pytest.mark.parametrize("queue", ["waiting", "running"])
def test_progress_within_a_bounded_number_of_steps(queue: str) -> None:
    """Nine steps without a row while a request could run. Any row, the end of a request, and any moment
    without requests resets it."""
    context = context_of(LAYOUT, r0=life_of("r0", 20))
    oracle, unfinished = Liveness(), view_of(LAYOUT, **{queue: ("r0",)})

    def idle(steps: int) -> str:
        """Return the verdict after the last of `steps` steps; there must be none before it."""
        fields = []
        for _ in range(steps):
            assert oracle.on_planned(context, plan(context)) is None
            fields.append(field_of(oracle.on_view(context, unfinished)))
        assert not any(fields[:-1])
        return fields[-1]

    assert idle(STALL_STEPS_MAX) == ""
    oracle.on_planned(context, plan(context, PlannedRow("r0", 0, 1, 0, False, 0), step=1))
    assert idle(STALL_STEPS_MAX) == ""
    assert oracle.on_view(context, view_of(LAYOUT)) is None
    for ended in (Delivered(1, (), ("r1",)), Delivered(1, (), (), ("r1",))):
        assert oracle.on_delivered(context, ended) is None
        assert idle(STALL_STEPS_MAX) == ""
    assert oracle.on_delivered(context, Delivered(1, (("r0", (5,)),), ())) is None, "of a step that ran before"
    assert idle(1) == "stall"
    assert oracle.exercised == {"M8": 4 * STALL_STEPS_MAX + 2}


def test_progress_behind_copies_that_hold_blocks() -> None:
    """While copies hold blocks, more steps may pass without a row; once nothing holds any, no more than otherwise."""
    context = context_of(LAYOUT, r0=life_of("r0", 20))
    unfinished = view_of(LAYOUT, waiting=("r0",), pins={3: 1})
    copying = view_of(LAYOUT, waiting=("r0",), pins={3: 1}, copying=True)
    oracle = Liveness()
    for _ in range(STALL_STEPS_MAX_BEHIND_COPIES):
        assert oracle.on_planned(context, plan(context)) is None
        assert oracle.on_view(context, copying) is None
    assert field_of(oracle.on_view(context, unfinished)) == "stall"
    assert oracle.on_planned(context, plan(context)) is None
    assert field_of(oracle.on_view(context, copying)) == "stall"


def test_progress_counts_from_the_last_reset() -> None:
    """An engine may be paused in it, and what a request waits for may have to be loaded again. Twelve events of vLLM
    0.33.0 with OffloadingConnector and a tier of files (seed 1, trace 204): three resets in nine steps."""
    context = context_of(LAYOUT, r0=life_of("r0", 20))
    unfinished = view_of(LAYOUT, waiting=("r0",))
    oracle = Liveness()
    for kind in ("step", "reset_prefix_cache", "step"):
        context.event_kind = kind
        for _ in range(STALL_STEPS_MAX):
            assert kind == "reset_prefix_cache" or oracle.on_planned(context, plan(context)) is None
            assert oracle.on_view(context, unfinished) is None, "an engine may plan nothing in a reset"
    assert oracle.on_planned(context, plan(context)) is None
    assert field_of(oracle.on_view(context, unfinished)) == "stall"


def test_at_the_end_only_aborted_requests_may_be_left() -> None:
    """An engine may have needed one more step for them; an unfinished request listed after one is lost."""
    aborted = life_of("r0", 20)
    aborted.aborted = True
    assert Liveness().on_idle(context_of(LAYOUT, r0=aborted), view_of(LAYOUT)) is None
    violation = Liveness().on_idle(context_of(LAYOUT, r0=aborted, r1=life_of("r1", 20)), view_of(LAYOUT))
    assert violation is not None
    assert (violation.field, violation.request) == ("lost", "r1")


def test_an_aborted_request_gets_the_tokens_of_few_steps() -> None:
    """One step may be in flight at the abort, and one more ends the request; others go on as they are."""
    aborted = life_of("r0", 20)
    aborted.aborted = True
    context, oracle = context_of(LAYOUT, r0=aborted, r1=life_of("r1", 20)), Liveness()
    both = Delivered(1, (("r0", (5,)), ("r1", (5,))), ())
    for _ in range(LATE_STEPS_MAX):
        assert oracle.on_delivered(context, both) is None
    assert oracle.on_delivered(context, Delivered(1, (("r0", ()), ("r1", (5,))), ())) is None
    violation = oracle.on_delivered(context, both)
    assert violation is not None
    assert (violation.field, violation.request) == ("aborted", "r0")


@pytest.mark.parametrize("waits", [True, False])
def test_only_a_load_for_a_waiting_request_may_overtake(waits: bool) -> None:
    """A load of a step is ordered like the rest of its device work."""
    context = context_of(LAYOUT, r0=life_of("r0", 20), r1=life_of("r1", 20))
    plan(context, PlannedRow("r0", 0, 1, 0, False, 0), step=1, tables={"r0": ((3,),)})
    now = view_of(LAYOUT, {"r1": ((3,),)})
    if waits:
        context.reference.plan_load(2, ("r1", 8, 0), now.tables, now.references, {})
    violation = Order().on_loaded(context, Loaded(2, "r1", 0, 0, 0, 3, slots=8))
    assert field_of(violation) == ("" if waits else "overtaken")


@pytest.mark.parametrize(
    ("breaks_off", "aborted", "field"), [(False, False, "error"), (True, False, ""), (False, True, "")]
)
def test_a_request_ends_with_an_error_only_by_its_load(breaks_off: bool, aborted: bool, field: str) -> None:
    life = life_of("r0", 20)
    life.load_breaks_off, life.aborted = breaks_off, aborted
    context = context_of(LAYOUT, r0=life)
    context.reference.withdrawn.add("r9")
    assert field_of(Output().on_delivered(context, Delivered(0, (), (), ["r0", "r9"]))) == field


@pytest.mark.parametrize(("position", "sampled", "field"), [
    (5, 4, ""), (5, 2, ""), (5, 3, ""), (5, 1, "sampled"),  # the step with the end: all, up to it, up to the foreseen
    (7, 4, ""), (7, 3, ""), (7, 1, ""),                     # the step in flight behind it
])  # fmt: skip
def test_behind_a_stop_token_nothing_counts(position: int, sampled: int, field: str) -> None:
    """Three right drafts. The answer has two tokens, three are foreseen."""
    life = Life("r0", (("a", 6),), 3, stop_at=2)
    life.settled = position
    row = ForwardRow("r0", position, TRUTH.tokens[position:][:4], 3, TRUTH.tokens[position + 1 :][:sampled])
    assert life.answer_length == 2
    assert field_of(Output().on_row(context_of(LAYOUT), row, life)) == field
    wrong = structs.replace(row, sampled=(other_token(row.sampled[0]), *row.sampled[1:]))
    assert field_of(Output().on_row(context_of(LAYOUT), wrong, life)) == "sampled"


@pytest.mark.parametrize(("tokens", "finished", "field"), [
    (2, True, ""), (3, False, "length"), (3, True, "length"), (1, True, "length"), (1, False, ""),
])  # fmt: skip
def test_a_client_gets_nothing_behind_a_stop_token(tokens: int, finished: bool, field: str) -> None:
    context = context_of(LAYOUT, r0=Life("r0", (("a", 6),), 8, stop_at=2))
    delivered = Delivered(0, [("r0", TRUTH.tokens[6 : 6 + tokens])], ["r0"] if finished else ())
    assert field_of(Output().on_delivered(context, delivered)) == field


@pytest.mark.parametrize("position", [5, 6])
@pytest.mark.parametrize("fails", [False, True])
def test_a_step_in_flight_may_be_given_what_a_failing_grammar_s_request_held_back(position: int, fails: bool) -> None:
    """Tokens of its prompt are judged as ever."""
    life = Life("r0", (("a", 6),), 8, grammar_fails=fails)
    life.admit(position)
    row = ForwardRow("r0", position, [other_token(TRUTH.tokens[position])], 0, [])
    found = field_of(Output().on_row(context_of(LAYOUT, r0=life), row, life))
    assert found == ("" if fails and position == 6 else "input")


@pytest.mark.parametrize(("delivered", "field"), [
    (Delivered(0, (), (), ["r0"]), ""), (Delivered(0, [("r0", TRUTH.tokens[6:7])], ()), "uncompiled"),
    (Delivered(0, (), ["r0"]), "uncompiled"), (Delivered(0, (), ()), ""),
])  # fmt: skip
def test_a_request_whose_grammar_does_not_compile_gets_an_error_alone(delivered: Delivered, field: str) -> None:
    life = Life("r0", (("a", 6),), 8, grammar_fails=True)
    assert field_of(Output().on_delivered(context_of(LAYOUT, r0=life), delivered)) == field
    life.aborted = True
    late = structs.replace(delivered, outputs=())
    assert field_of(Output().on_delivered(context_of(LAYOUT, r0=life), late)) == ""
