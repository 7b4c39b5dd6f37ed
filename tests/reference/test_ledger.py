"""The owner of each block, and what was written since it was allocated."""

import pytest

from hybridfuzz.reference.ledger import BlockHistory, Ledger


@pytest.fixture
def ledger() -> Ledger:
    """Block 5 belongs to r0 in group 0 (two layers), block 6 in group 1 (one layer)."""
    made = Ledger([2, 1])
    made.hand_out(5, "r0", 0, 3)
    made.hand_out(6, "r0", 1, 3)
    return made


def test_nothing_is_known_of_a_block_before_it_is_handed_out(ledger: Ledger) -> None:
    assert ledger.cell(7, 0) is None
    assert ledger.history(7) == BlockHistory("never")
    ledger.zero(7)
    ledger.write_state(7, 0, "r0", 4, True, True)
    ledger.write_slots([7], [0], 0, "r0", 4)
    assert ledger.cell(7, 0) is None


def test_a_fresh_block_is_unwritten_in_every_layer(ledger: Ledger) -> None:
    for layer in (0, 1):
        cell = ledger.cell(5, layer)
        assert cell is not None
        assert not (cell.zeroed or cell.temporal or cell.conv or cell.slots)
        assert cell.step == -1
    assert ledger.cell(5, 2) is None
    assert ledger.cell(6, 1) is None


def test_parts_and_layers_are_apart(ledger: Ledger) -> None:
    ledger.write_state(5, 1, "r0", 4, temporal=True, conv=False)
    written, other = ledger.cell(5, 1), ledger.cell(5, 0)
    assert written is not None
    assert (written.temporal, written.conv, written.step) == (True, False, 4)
    assert other is not None
    assert not other.temporal


def test_a_part_once_written_stays_written(ledger: Ledger) -> None:
    ledger.write_state(5, 0, "r0", 4, temporal=True, conv=False)
    ledger.write_state(5, 0, "r0", 5, temporal=False, conv=True)
    cell = ledger.cell(5, 0)
    assert cell is not None
    assert cell.temporal
    assert cell.conv


def test_slots_add_up(ledger: Ledger) -> None:
    ledger.write_slots([6], [0], 0, "r0", 4)
    ledger.write_slots([6], [3], 0, "r0", 5)
    cell = ledger.cell(6, 0)
    assert cell is not None
    assert cell.slots == 0b1001


def test_zeroing_counts_for_all_layers_and_names_no_writer(ledger: Ledger) -> None:
    ledger.zero(5)
    for layer in (0, 1):
        cell = ledger.cell(5, layer)
        assert cell is not None
        assert cell.zeroed
        assert cell.step == -1


def test_handing_out_again_forgets_everything_but_the_former_owner(ledger: Ledger) -> None:
    ledger.zero(5)
    ledger.write_state(5, 0, "r0", 4, True, True)
    ledger.hand_out(5, "r1", 1, 9)
    facts = ledger.facts[5]
    assert (facts.owner, facts.group, facts.generation, facts.step) == ("r1", 1, 2, 9)
    assert (facts.previous_owner, facts.previous_group) == ("r0", 0)
    assert len(facts.cells) == 1
    assert not facts.cells[0].zeroed
    assert not facts.cells[0].temporal


def test_a_copy_is_as_written_as_its_source(ledger: Ledger) -> None:
    ledger.hand_out(8, "r0", 0, 3)
    ledger.write_state(5, 0, "r0", 4, temporal=True, conv=False)
    ledger.move(5, 8, 0, "r0", 5, temporal=True, conv=True)
    cell = ledger.cell(8, 0)
    assert cell is not None
    assert cell.temporal
    assert not cell.conv


def test_a_copy_from_nowhere_writes_nothing(ledger: Ledger) -> None:
    """The null block, for one, has no content to pass on."""
    ledger.move(0, 5, 0, "r0", 5, temporal=True, conv=True)
    cell = ledger.cell(5, 0)
    assert cell is not None
    assert not cell.temporal


def test_a_copy_of_one_part_leaves_the_other(ledger: Ledger) -> None:
    ledger.hand_out(8, "r0", 0, 3)
    ledger.write_state(5, 0, "r0", 4, True, True)
    ledger.move(5, 8, 0, "r0", 5, temporal=False, conv=True)
    cell = ledger.cell(8, 0)
    assert cell is not None
    assert (cell.temporal, cell.conv) == (False, True)


def test_history_in_words(ledger: Ledger) -> None:
    assert ledger.history(5) == BlockHistory("allocated", "r0", 3)
    ledger.zero(5)
    assert ledger.history(5) == BlockHistory("zeroed", "r0", 3)
    ledger.write_state(5, 0, "r2", 7, True, True)
    assert ledger.history(5) == BlockHistory("written", "r2", 7)
    assert ledger.history(5, 1) == BlockHistory("zeroed", "r0", 3)


def test_a_copy_of_an_unallocated_block_is_unwritten(ledger: Ledger) -> None:
    ledger.write_state(5, 0, "r0", 4, True, True)
    ledger.inherit(5, 7)
    for layer in (0, 1):
        cell = ledger.cell(5, layer)
        assert cell is not None
        assert not cell.temporal


def test_the_history_of_the_first_step_and_of_a_layer_that_is_not_there(ledger: Ledger) -> None:
    ledger.write_state(6, 0, "r1", 0, True, True)
    assert ledger.history(6) == BlockHistory("written", "r1", 0)
    assert ledger.history(6, 1) == BlockHistory("allocated", "r0", 3)
