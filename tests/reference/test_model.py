"""Device time: lives and ledger move when a step is entered, not when it is planned."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.model import Reference
from hybridfuzz.reference.prefix_cache import Key

LAYOUT = Layout((Group("mamba", 8), Group("attention", 8)), 20, 4, "align", True)


@pytest.fixture
def reference() -> Reference:
    """Two requests have arrived."""
    made = Reference(LAYOUT)
    made.arrive("r0", [("a", 20)], 4)
    made.arrive("r1", [("a", 20)], 4)
    return made


def plan(reference: Reference, step: int, tables: Mapping[str, Any], **hits: int | None) -> None:
    """Rows are the keyword arguments: request = hit length if admitted."""
    reference.plan(step, [(name, hit, hit) for name, hit in hits.items()], tables, [0] * 20, {})


def owner(reference: Reference, block: int) -> str:
    facts = reference.ledger.facts.get(block)
    return facts.owner if facts else ""


def test_names_are_used_once(reference: Reference) -> None:
    with pytest.raises(AssertionError):
        reference.arrive("r0", [("b", 3)], 1)


def test_planning_changes_nothing_entering_does(reference: Reference) -> None:
    plan(reference, 0, {"r0": ((1,), (2,))}, r0=0)
    assert not owner(reference, 1)
    assert not reference.lives["r0"].resumed
    facts = reference.enter(0)
    assert facts is not None
    assert owner(reference, 1) == owner(reference, 2) == "r0"
    assert reference.lives["r0"].resumed


def test_a_step_planned_ahead_waits_for_its_turn(reference: Reference) -> None:
    """A step in flight is checked against the tables of its own plan."""
    plan(reference, 0, {"r0": ((1,), (2,))}, r0=0)
    plan(reference, 1, {"r0": ((1,), (2,)), "r1": ((3,), (4,))}, r0=None, r1=0)
    assert reference.enter(0) is reference.pending[0]
    assert not owner(reference, 3)
    reference.executed(0)
    assert list(reference.pending) == [1]
    assert reference.enter(1) is not None
    assert owner(reference, 3) == "r1"


def test_entering_twice_is_entering_once(reference: Reference) -> None:
    """Zeroing, copies and the forward of one step all enter it."""
    plan(reference, 0, {"r0": ((1,), (2,))}, r0=0)
    first = reference.enter(0)
    reference.ledger.write_state(1, 0, "r0", 0, True, True)
    reference.lives["r0"].settled = 8
    assert reference.enter(0) is first
    cell = reference.ledger.cell(1, 0)
    assert cell is not None
    assert cell.temporal
    assert reference.lives["r0"].settled == 8


def test_work_after_the_forward_still_belongs_to_its_step(reference: Reference) -> None:
    plan(reference, 0, {"r0": ((1,), (2,))}, r0=0)
    facts = reference.enter(0)
    reference.executed(0)
    assert reference.enter(0) is facts


def test_an_unplanned_step_has_no_facts(reference: Reference) -> None:
    assert reference.enter(7) is None


def test_an_unplanned_step_between_two_others_has_none_either(reference: Reference) -> None:
    """A dummy run, say: it is not the step that the device entered last."""
    plan(reference, 0, {"r0": ((1,), (2,))}, r0=0)
    reference.enter(0)
    reference.executed(0)
    assert reference.enter(1) is None


def test_a_step_without_rows_is_never_in_flight(reference: Reference) -> None:
    plan(reference, 0, {})
    assert not reference.pending


def test_a_step_is_planned_once(reference: Reference) -> None:
    plan(reference, 0, {}, r0=0)
    with pytest.raises(AssertionError):
        plan(reference, 0, {}, r0=0)


def test_hit_columns_are_not_handed_out(reference: Reference) -> None:
    """A block reached by a hit keeps its writer's facts; only the columns behind the hit are new."""
    plan(reference, 0, {"r0": ((0, 1), (2, 3))}, r0=0)
    reference.enter(0)
    reference.executed(0)
    plan(reference, 1, {"r1": ((0, 1, 4), (2, 3, 5))}, r1=16)
    reference.enter(1)
    assert [owner(reference, block) for block in (1, 2, 3)] == ["r0"] * 3
    assert [owner(reference, block) for block in (4, 5)] == ["r1"] * 2
    assert reference.lives["r1"].settled == 16


def test_the_null_block_is_never_allocated(reference: Reference) -> None:
    plan(reference, 0, {"r0": ((0, 0, 1), (2, 3, 4))}, r0=0)
    reference.enter(0)
    assert not owner(reference, 0)


def test_blocks_that_stay_are_not_handed_out_again(reference: Reference) -> None:
    plan(reference, 0, {"r0": ((1,), (2,))}, r0=0)
    reference.enter(0)
    reference.executed(0)
    reference.ledger.zero(2)
    plan(reference, 1, {"r0": ((1, 3), (2,))}, r0=None)
    reference.enter(1)
    cell = reference.ledger.cell(2, 0)
    assert cell is not None
    assert cell.zeroed
    assert reference.ledger.facts[1].generation == 1
    assert owner(reference, 3) == "r0"


def test_a_moved_scratch_block_keeps_its_facts(reference: Reference) -> None:
    """Align with drafts: the block is nulled in its old column and appended at the end."""
    plan(reference, 0, {"r0": ((1, 6, 7), (2,))}, r0=0)
    reference.enter(0)
    reference.executed(0)
    plan(reference, 1, {"r0": ((1, 0, 7, 8, 6), (2,))}, r0=None)
    reference.enter(1)
    assert reference.ledger.facts[6].generation == 1
    assert reference.ledger.facts[8].generation == 1


def test_a_block_that_went_to_somebody_else_and_back_is_new(reference: Reference) -> None:
    plan(reference, 0, {"r0": ((1, 6), (2,))}, r0=0)
    reference.enter(0)
    reference.executed(0)
    plan(reference, 1, {"r0": ((1, 0), (2,)), "r1": ((6,), (3,))}, r1=0)
    reference.enter(1)
    reference.executed(1)
    plan(reference, 2, {"r0": ((1, 0, 6), (2,))}, r0=None)
    reference.enter(2)
    assert (reference.ledger.facts[6].generation, owner(reference, 6)) == (3, "r0")


def test_a_block_that_changes_group_is_new(reference: Reference) -> None:
    plan(reference, 0, {"r0": ((1,), (2,))}, r0=0)
    reference.enter(0)
    reference.executed(0)
    plan(reference, 1, {"r0": ((0, 4), (2, 1))}, r0=None)
    reference.enter(1)
    facts = reference.ledger.facts[1]
    assert (facts.group, facts.previous_group, facts.generation) == (1, 0, 2)


def test_readmission_hands_everything_behind_the_hit_out_again(reference: Reference) -> None:
    plan(reference, 0, {"r0": ((0, 1), (2, 3))}, r0=0)
    reference.enter(0)
    reference.executed(0)
    plan(reference, 1, {"r0": ((0, 1), (2, 3))}, r0=8)
    reference.enter(1)
    assert reference.ledger.facts[1].generation == 2
    assert reference.ledger.facts[2].generation == 1
    assert reference.ledger.facts[3].generation == 2


def test_steps_in_flight_keep_the_life_of_an_ended_request(reference: Reference) -> None:
    plan(reference, 0, {"r0": ((1,), (2,))}, r0=0)
    reference.forget("r0")
    assert "r0" not in reference.lives
    facts = reference.enter(0)
    assert facts is not None
    assert facts.lives["r0"].resumed


def test_a_key_is_due_once_its_step_has_run(reference: Reference) -> None:
    key = Key(0, 8, 1)
    plan(reference, 0, {}, r0=0)
    reference.note_published({1: key}, 0)
    assert set(reference.not_due()) == {1}
    plan(reference, 1, {}, r0=None)
    reference.executed(0)
    assert not reference.not_due()
    reference.note_published({1: key, 2: key}, 1)
    assert set(reference.not_due()) == {2}
    reference.executed(1)
    assert not reference.not_due()


def test_a_key_that_changes_or_comes_back_is_new(reference: Reference) -> None:
    first, second = Key(0, 8, 1), Key(0, 16, 2)
    reference.note_published({1: first}, 0)
    reference.note_published({1: second}, 4)
    assert reference.published_since[1] == (second, 4)
    reference.note_published({1: second}, 5)
    assert reference.published_since[1] == (second, 4)
    reference.note_published({}, 6)
    reference.note_published({1: second}, 7)
    assert reference.published_since[1] == (second, 7)


def test_loaded_columns_are_new_and_count_as_computed(reference: Reference) -> None:
    """A hit of one block and a load of two more tokens: only the hit's block keeps its history."""
    size = reference.layout.groups[0].block_size
    reference.plan(0, [("r0", 2 * size, size)], {"r0": ((1, 2), (0, 3))}, [0] * 20, {})
    reference.enter(0)
    assert reference.lives["r0"].settled == 2 * size
    assert owner(reference, 1) == ""
    assert (owner(reference, 2), owner(reference, 3)) == ("r0", "r0")


def test_what_is_certain_of_a_request(reference: Reference) -> None:
    """Its settled tokens, or those that it starts from in an admission whose step has not run."""
    reference.lives["r0"].settled = 5
    assert reference.certain("r0") == 5
    plan(reference, 0, {"r0": ((1,), (2,))}, r0=16)
    plan(reference, 1, {"r0": ((1,), (2,))}, r0=None)
    assert reference.certain("r0") == 16
    plan(reference, 2, {"r0": ((1,), (2,))}, r0=8)
    assert reference.certain("r0") == 8
    for step in (0, 1):
        reference.enter(step)
        reference.executed(step)
        assert reference.certain("r0") == 8
    reference.enter(2)
    assert reference.certain("r0") == 8
    reference.lives["r0"].advance(1, 0, 1)
    reference.executed(2)
    assert reference.certain("r0") == 9
    assert reference.certain("r1") == 0


def test_what_a_cache_owns_is_borrowed(reference: Reference) -> None:
    """Wherever it stands in the table, without a hit as well; what is not published yet is the request's own."""
    owning = Reference(replace(LAYOUT, mode="slots", cache_owns=True))
    owning.arrive("r0", [("a", 20)], 4)
    table = {"r0": ((1, 2), (3, 4, 5))}
    owning.plan(0, [("r0", 0, 0)], table, [0] * 20, {3: Key(1, 8, 7), 2: Key(0, 8, 7)})
    owning.enter(0)
    assert owning.handed_out == [1, 4, 5]
    reference.plan(0, [("r0", 0, 0)], table, [0] * 20, {3: Key(1, 8, 7), 2: Key(0, 8, 7)})
    reference.enter(0)
    assert reference.handed_out == [1, 2, 3, 4, 5]


def test_a_block_of_a_hit_that_changes_its_column_becomes_the_requests_own(reference: Reference) -> None:
    """Also if no earlier owner is known."""
    plan(reference, 0, {"r0": ((1,), (2,))}, r0=8)
    reference.enter(0)
    reference.executed(0)
    assert not reference.handed_out
    plan(reference, 1, {"r0": ((0, 1), (2,))}, r0=None)
    reference.enter(1)
    assert owner(reference, 1) == "r0"


def test_an_aborted_request_is_gone_or_lingers(reference: Reference) -> None:
    """A target may need another step to let go of it, and report its end then."""
    for name in ("r0", "ghost"):
        reference.abort(name, lingers=True)
    assert reference.lives["r0"].aborted
    assert not reference.lives["r1"].aborted
    reference.abort("r1", lingers=False)
    assert list(reference.lives) == ["r0"]
    for name in ("r0", "ghost"):
        reference.end(name)
    assert not reference.lives


def test_a_load_for_a_waiting_request_has_no_place_in_the_order_of_steps(reference: Reference) -> None:
    """Its blocks change hands with its first write, before the forwards in flight; its request is not in the step."""
    plan(reference, 0, {"r0": ((1,), (2,))}, r0=0)
    tables = {"r0": ((1,), (2,)), "r1": ((0, 3), (4, 5))}
    plan(reference, 1, tables, r0=None)
    reference.plan_load(1, ("r1", 16, 8), tables, [0] * 20, {})
    assert not owner(reference, 3)
    facts = reference.load(1, "r1")
    assert facts is not None
    assert facts.tables["r1"] == tables["r1"]
    assert (owner(reference, 3), owner(reference, 5), owner(reference, 4)) == ("r1", "r1", "")  # 4 is of the hit
    assert not reference.lives["r1"].resumed
    assert not owner(reference, 1)  # step 0 is not entered
    assert list(reference.pending) == [0, 1]
    assert "r1" not in reference.pending[1].lives


def test_a_loaded_request_goes_on_from_its_load(reference: Reference) -> None:
    tables = {"r1": ((0, 3), (4, 5))}
    reference.plan_load(0, ("r1", 16, 0), tables, [0] * 20, {})
    reference.load(0, "r1")
    plan(reference, 1, {"r1": ((0, 3, 6), (4, 5, 7))}, r1=None)
    reference.enter(1)
    assert (reference.lives["r1"].settled, reference.lives["r1"].resumed) == (16, True)
    assert [reference.ledger.facts[block].generation for block in (3, 4, 5, 6, 7)] == [1] * 5
    assert not reference.loading


def test_a_load_of_an_ended_request_may_still_write(reference: Reference) -> None:
    reference.plan_load(0, ("r1", 16, 0), {"r1": ((0, 3), (4, 5))}, [0] * 20, {})
    reference.abort("r1", lingers=False)
    assert reference.load(0, "r1") is not None
    assert owner(reference, 3) == "r1"


def test_a_load_does_not_disturb_a_step_in_flight_of_the_same_request(reference: Reference) -> None:
    """It was preempted with that step in flight: the step reads the blocks and goes on with the tokens of then."""
    plan(reference, 0, {"r1": ((1,), (2,))}, r1=0)
    reference.enter(0)
    reference.executed(0)
    reference.lives["r1"].settled = 5
    plan(reference, 1, {"r1": ((1,), (2,))}, r1=None)
    reference.plan_load(2, ("r1", 8, 0), {"r1": ((3,), (4,))}, [0] * 20, {})
    reference.load(2, "r1")
    reference.enter(1)
    assert reference.lives["r1"].settled == 5
    assert reference.ledger.facts[1].generation == reference.ledger.facts[3].generation == 1
