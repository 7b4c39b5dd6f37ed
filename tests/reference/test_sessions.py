"""Sessions: a turn that ends leaves request and blocks where they are, and the next one goes on with them."""

import pytest
from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.model import Reference

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


def test_what_a_step_not_yet_entered_starts_from_is_certain(parked: Reference) -> None:
    parked.lives["r0"].resume([("b", 6)], 2)
    parked.plan(1, [("r0", 3, None)], {"r0": TABLE}, [0] * 20, {})
    assert parked.certain("r0") == 3
