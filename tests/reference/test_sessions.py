"""Sessions: a turn that ends leaves request and blocks where they are, and the next one goes on with them."""

from copy import copy

import pytest

from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.model import Reference
from hybridfuzz.reference.prefix_cache import Key
from hybridfuzz.reference.request import Life
from hybridfuzz.reference.tokens import Truth, document_tokens

LAYOUT = Layout((Group("mamba", 8), Group("attention", 8)), 20, 4, "align", True)
TABLE = ((1,), (2,))


@pytest.fixture
def parked() -> Reference:
    """A session whose first turn has ended; both of its blocks were written."""
    reference = Reference(LAYOUT)
    reference.arrive("r0", [("a", 5)], 1, session=True)
    reference.plan(0, [("r0", 0, 0)], {"r0": TABLE}, [0] * 20, {})
    reference.enter(0)
    reference.ledger.write_state(1, 0, "r0", 0, True, True)
    reference.lives["r0"].advance(5, 0, 1)
    reference.executed(0)
    reference.lives["r0"].delivered = 1
    reference.end("r0")
    return reference


def test_the_end_of_a_turn_is_not_the_end_of_the_request(parked: Reference) -> None:
    assert parked.lives["r0"].parked


def test_the_end_of_any_other_request_is(parked: Reference) -> None:
    parked.arrive("r1", [("a", 5)], 1)
    parked.end("r1")
    assert "r1" not in parked.lives


def test_an_aborted_session_does_not_park() -> None:
    """An engine may need a step to let go of a session that its client closed."""
    reference = Reference(LAYOUT)
    reference.arrive("r0", [("a", 5)], 1, session=True)
    reference.abort("r0", lingers=True)
    reference.end("r0")
    assert not reference.lives


@pytest.mark.parametrize("lingers", [True, False])
def test_behind_an_aborted_turn_a_session_is_what_it_was_before(parked: Reference, lingers: bool) -> None:
    """Prompt and answer of the turn are forgotten, by the client and by the reference; steps in flight keep them."""
    parked.resume("r0", [("b", 4)], 3)
    turn = parked.lives["r0"]
    turn.settled, turn.delivered = 10, 1
    parked.abort("r0", lingers, keeps_session=True)
    parked.abort("r0", lingers, keeps_session=True)  # a client that is impatient
    if lingers:
        assert not parked.lives["r0"].parked
        parked.end("r0")
    session = parked.lives["r0"]
    assert (session.parked, session.aborted, session.known, session.settled) == (True, False, 6, 5)
    assert (turn.aborted, turn.truth.prompt_length, turn.known) == (True, 10, 11)
    parked.resume("r0", [("c", 2)], 1)
    said = Truth([("a", 5)])
    said.reach(6)
    assert parked.lives["r0"].truth.tokens[:8] == [*said.tokens, *document_tokens("c", 2)]
    assert "r0" not in parked.withdrawn


def test_behind_an_aborted_first_turn_a_session_is_empty() -> None:
    reference = Reference(LAYOUT)
    reference.arrive("r0", [("a", 5)], 1, session=True)
    reference.abort("r0", lingers=False, keeps_session=True)
    assert reference.lives["r0"].known == 0
    reference.resume("r0", [("b", 3)], 1)
    assert reference.lives["r0"].truth.tokens[:3] == list(document_tokens("b", 3))


def test_an_error_ends_an_aborted_turn_as_well() -> None:
    reference = Reference(LAYOUT)
    for name in ("r0", "r1"):
        reference.arrive(name, [("a", 5)], 1, session=True)
    reference.abort("r0", lingers=True, keeps_session=True)
    for name in ("r0", "r1"):
        reference.fail(name)
    assert list(reference.lives) == ["r0"] and reference.lives["r0"].parked


def test_whoever_closes_a_session_ends_it_whatever_was_aborted(parked: Reference) -> None:
    """Nothing happens to a parked session if its client aborts a turn: none runs."""
    parked.abort("r0", lingers=False, keeps_session=True)
    assert parked.lives["r0"].known == 6
    parked.resume("r0", [("b", 4)], 3)
    parked.abort("r0", lingers=True, keeps_session=True)
    parked.abort("r0", lingers=True)
    parked.abort("r0", lingers=True, keeps_session=True)
    parked.end("r0")
    assert not parked.lives


def test_kept_blocks_keep_their_facts(parked: Reference) -> None:
    """Only the column behind what was kept is new."""
    parked.lives["r0"].resume([("b", 6)], 2)
    parked.plan(1, [("r0", 5, None)], {"r0": ((1, 3), (2, 4))}, [0] * 20, {})
    parked.enter(1)
    assert (parked.lives["r0"].settled, parked.lives["r0"].resumed) == (5, True)
    assert [parked.ledger.facts[block].generation for block in (1, 2, 3, 4)] == [1, 1, 1, 1]
    cell = parked.ledger.cell(1, 0)
    assert cell is not None
    assert cell.temporal
    assert parked.handed_out == [3, 4]


def test_a_session_that_lost_its_blocks_starts_anew(parked: Reference) -> None:
    parked.lives["r0"].resume([("b", 6)], 2)
    parked.plan(1, [("r0", 0, 0)], {"r0": TABLE}, [0] * 20, {})
    parked.enter(1)
    assert parked.lives["r0"].settled == 0
    assert parked.ledger.facts[1].generation == 2


def test_truncation_shortens_prompt_and_memory(parked: Reference) -> None:
    life = parked.lives["r0"]
    before = life.truth.tokens[:4]
    life.truncate(4)
    assert (life.known, life.settled, life.delivered) == (4, 4, 0)
    life.resume([("b", 6)], 2)
    assert life.truth.tokens[:4] == before
    assert life.known == 10


@pytest.mark.parametrize("length", [0, 6, 99])
def test_a_truncation_that_leaves_nothing_or_cuts_nothing_is_refused(parked: Reference, length: int) -> None:
    with pytest.raises(AssertionError):
        parked.lives["r0"].truncate(length)


def test_a_checkpoint_of_the_cache_is_borrowed(parked: Reference) -> None:
    """The checkpoint that a truncated session goes back to keeps its writer."""
    parked.arrive("r1", [("a", 20)], 4)
    parked.plan(1, [("r1", 0, 0)], {"r0": TABLE, "r1": ((0, 5, 6), (7, 8, 9))}, [0] * 20, {})
    parked.enter(1)
    parked.executed(1)
    parked.lives["r0"].delivered = 20
    parked.truncate("r0", 17, ((0, 5), (2, 8)), [1] * 20, {5: Key(0, 16, 0), 8: Key(1, 16, 0)})
    parked.lives["r0"].resume([("a", 20)], 2)
    parked.plan(2, [("r0", 16, None)], {"r0": ((0, 5, 3), (2, 8, 10))}, [0] * 20, {})
    parked.enter(2)
    assert parked.ledger.facts[5].owner == "r1"
    assert parked.ledger.facts[3].owner == "r0"
    assert parked.handed_out == [3, 10]


def test_a_block_that_was_cut_off_and_comes_back_is_new(parked: Reference) -> None:
    """Another request may have owned it in between."""
    parked.lives["r0"].delivered = 20
    parked.truncate("r0", 4, ((1,), ()), [1] * 20, {})
    parked.lives["r0"].resume([("a", 20)], 2)
    parked.plan(1, [("r0", 4, None)], {"r0": TABLE}, [0] * 20, {})
    parked.enter(1)
    assert parked.handed_out == [2]
    assert parked.ledger.facts[2].generation == 2


def test_an_unpublished_block_with_one_holder_belongs_to_it(parked: Reference) -> None:
    parked.ledger.adopt([2, 15], "r9")
    assert parked.ledger.facts[2].owner == "r9"
    assert 15 not in parked.ledger.facts


def test_what_a_step_not_yet_entered_starts_from_is_certain(parked: Reference) -> None:
    parked.lives["r0"].resume([("b", 6)], 2)
    parked.plan(1, [("r0", 3, None)], {"r0": TABLE}, [0] * 20, {})
    assert parked.certain("r0") == 3


def test_a_fork_is_as_written_as_its_parent(parked: Reference) -> None:
    """It shares the block of attention; its state is a copy, and complete."""
    parked.fork("r1", "r0", {"r0": TABLE, "r1": ((3,), (2,))})
    fork = parked.lives["r1"]
    assert (fork.parked, fork.known, fork.settled) == (True, 6, 5)
    assert parked.ledger.facts[2].owner == "r0"
    cell = parked.ledger.cell(3, 0)
    assert parked.ledger.facts[3].owner == "r1"
    assert cell is not None
    assert cell.temporal
    assert cell.conv
    fork.resume([("b", 2)], 1)
    assert parked.lives["r0"].known == 6


def test_a_partial_block_is_copied_slot_by_slot(parked: Reference) -> None:
    parked.ledger.write_slots([2] * 3, range(3), 0, "r0", 0)
    parked.fork("r1", "r0", {"r0": TABLE, "r1": ((3,), (4,))})
    copy, origin = parked.ledger.cell(4, 0), parked.ledger.cell(2, 0)
    assert copy is not None
    assert origin is not None
    assert copy.slots == 0b111
    assert copy is not origin


def test_what_a_truncated_session_holds_alone_is_its_own(parked: Reference) -> None:
    """Neither blocks that another request holds, too, nor published ones."""
    for block in (5, 6, 7):
        parked.ledger.hand_out(block, "r1", 0, 0)
    references = [0] * 20
    references[5], references[6], references[7] = 1, 2, 1
    parked.truncate("r0", 4, ((5, 6), (7,)), references, {7: Key(1, 8, 0)})
    assert [parked.ledger.facts[block].owner for block in (5, 6, 7)] == ["r0", "r1", "r1"]


def test_a_forks_state_is_complete_whatever_stands_in_its_parents_column(parked: Reference) -> None:
    """The state of its column may be gone there; null blocks and shared ones are not handed out."""
    parked.fork("r1", "r0", {"r0": ((0, 1), (2, 9)), "r1": ((3, 0), (2, 9))})
    cell = parked.ledger.cell(3, 0)
    assert cell is not None
    assert (cell.temporal, cell.conv) == (True, True)
    assert not {0, 9} & parked.ledger.facts.keys()


@pytest.mark.parametrize("holder", ["r0's session", "r0"])
def test_caches_that_were_put_aside_keep_their_facts(parked: Reference, holder: str) -> None:
    """A turn may run on blocks of its own beside those that its session keeps, for the next turn."""
    parked.lives["r0"].resume([("b", 6)], 2)
    parked.plan(1, [("r0", 0, 0)], {"r0": ((3,), (4,)), "r0's session": TABLE}, [0] * 20, {})
    parked.enter(1)
    parked.executed(1)
    parked.lives["r0"].delivered = 2
    parked.end("r0")
    parked.arrive("r1", [("c", 5)], 1)
    parked.plan(2, [("r1", 0, 0)], {"r1": ((5,), (6,)), holder: TABLE}, [0] * 20, {})
    parked.enter(2)
    parked.lives["r0"].resume([("b", 6)], 2)
    parked.plan(3, [("r0", 5, None)], {"r0": TABLE}, [0] * 20, {})
    parked.enter(3)
    assert parked.handed_out == []
    assert parked.ledger.facts[1].generation == 1


def test_what_was_a_strangers_is_new_to_who_goes_on_with_it(parked: Reference) -> None:
    parked.arrive("r1", [("c", 5)], 1)
    parked.plan(1, [("r1", 0, 0)], {"r0": TABLE, "r1": ((3,), (4,))}, [0] * 20, {})
    parked.enter(1)
    parked.executed(1)
    parked.end("r1")
    parked.arrive("r2", [("c", 5)], 1)
    parked.plan(2, [("r2", 0, 0)], {"r0": TABLE, "r2": ((5,), (6,)), "r1": ((3,), (4,))}, [0] * 20, {})
    parked.enter(2)
    parked.lives["r0"].resume([("b", 6)], 2)
    parked.plan(3, [("r0", 5, None)], {"r0": ((3,), (4,))}, [0] * 20, {})
    parked.enter(3)
    assert parked.handed_out == [3, 4]


def test_a_session_may_be_forked_before_any_step() -> None:
    """Parked by its client while it waited: nothing was written, and no step is to name."""
    reference = Reference(LAYOUT)
    reference.arrive("r0", [("a", 5)], 1, session=True)
    reference.end("r0")
    reference.fork("r1", "r0", {"r0": TABLE, "r1": ((3,), (4,))})
    assert [reference.ledger.facts[block].step for block in (3, 4)] == [-1, -1]


def test_a_turn_goes_on_without_the_tokens_that_the_engine_dropped(parked: Reference) -> None:
    """Of 5 tokens and a sampled one the next turn keeps 4, of which no more can be in memory."""
    life = parked.lives["r0"]
    tokens = life.truth.tokens[:4]
    life.resume([("b", 3)], 2, dropped=2)
    assert (life.truth.prompt_length, life.truth.tokens[:4], life.settled) == (7, tokens, 4)


def test_a_copy_of_a_life_has_all_of_its_values() -> None:
    life = Life("r0", [("a", 3)], 5, session=True)
    for number, field in enumerate(Life.__slots__):
        if field not in ("name", "truth"):
            setattr(life, field, number)
    twin = copy(life)
    assert twin is not life
    assert {field: getattr(twin, field) for field in Life.__slots__} == {
        field: getattr(life, field) for field in Life.__slots__
    }
