"""The memory of sequences: what copies share, how far a roll-back reaches, and what a restore leaves."""

import random

import pytest

from hybridfuzz.reference.tokens import EMPTY, chain
from hybridfuzz.targets.base.shadow import POISON
from hybridfuzz.targets.sequences.executor import PARTIAL, WHOLE, Executor
from hybridfuzz.targets.sequences.memory import Memory
from hybridfuzz.targets.sequences.operations import Checkpoint, GoBack, Restore, RollBack, Save, Shift, Tokens


def memory(planes: int = 3, ubatch: int = 64, window: int = 0) -> Memory:
    return Memory(sequences=4, planes=planes, conv_width=3, ubatch=ubatch, window=window)


def feed(one: Memory, sequence: int, *tokens: int) -> None:
    one.decode([Tokens(sequence, one.lengths[sequence], tokens, 0)])


def content(one: Memory, sequence: int) -> tuple[int, list[int | None]]:
    """The recurrent state of a sequence, and its attention."""
    return one.newest(sequence).temporal, [*one.slots(sequence)]


def alone(*tokens: int, gone: int = 0) -> tuple[int, list[int | None]]:
    tags = list(chain(EMPTY, tokens))
    return ([EMPTY, *tags][-1], [*[None] * gone, *tags[gone:]])


def test_a_roll_back_reaches_as_far_as_the_newest_batch_wrote() -> None:
    one = memory(planes=3)
    feed(one, 0, 5, 6, 7)
    feed(one, 0, 8, 9)
    assert not one.remove(0, 3), "plane 2 is of the batch before"
    assert content(one, 0) == alone(5, 6, 7, 8, 9), "a refusal changes nothing"
    assert one.remove(0, 4)
    assert content(one, 0) == alone(5, 6, 7, 8)
    assert not one.remove(0, 3), "two roll-backs reach no further than one"


def test_planes_limit_a_roll_back() -> None:
    one = memory(planes=1)
    feed(one, 0, 5, 6, 7)
    assert not one.remove(0, 1)
    assert one.remove(0, 2)


def test_a_copy_shares_cells_until_one_of_both_is_decoded() -> None:
    one = memory()
    feed(one, 0, 5, 6, 7)
    one.remove(0, 2)
    one.copy(0, 2)
    assert one.cell_of[0] == one.cell_of[2]
    feed(one, 2, 9)
    assert one.cell_of[0] != one.cell_of[2]
    assert content(one, 0) == alone(5, 6)
    assert content(one, 2) == alone(5, 6, 9)
    assert one.attention[0] == one.attention[2][:2], "attention cells are never written twice"


def test_a_roll_back_of_one_leaves_the_other_that_shares_its_cell() -> None:
    one = memory()
    feed(one, 0, 5, 6, 7)
    one.copy(0, 1)
    assert one.remove(1, 1)
    assert content(one, 0) == alone(5, 6, 7)
    assert content(one, 1) == alone(5)


def test_a_restored_sequence_cannot_be_rolled_back() -> None:
    one = memory()
    feed(one, 0, 5, 6, 7)
    saved = one.state(0, WHOLE)
    feed(one, 3, 8, 8, 8)
    one.remove(3)
    one.set_state(3, saved, WHOLE)
    assert content(one, 3) == alone(5, 6, 7)
    assert not one.remove(3, 2)


def test_a_partial_restore_takes_the_state_back_and_leaves_attention() -> None:
    one = memory(planes=0)
    feed(one, 0, 5, 6)
    before = one.state(0, PARTIAL)
    feed(one, 0, 7, 8)
    one.set_state(0, before, PARTIAL)
    assert one.newest(0).temporal == alone(5, 6)[0]
    assert content(one, 0)[1] == alone(5, 6, 7, 8)[1]
    assert one.remove(0, 2)
    assert content(one, 0) == alone(5, 6)


def test_the_next_owner_of_a_sequence_starts_from_nothing() -> None:
    for end in ("remove", "keep", "clear"):
        one = memory()
        feed(one, 1, 4)
        feed(one, 0, 5, 6, 7)
        one.remove(0, 1)
        match end:
            case "remove":
                one.remove(0)
            case "keep":
                one.keep(1)
            case _:
                one.clear()
        feed(one, 0, 9)
        assert content(one, 0) == alone(9)


@pytest.mark.parametrize("ubatch", [1, 4, 64])
def test_random_operations_leave_what_the_same_tokens_have_alone(ubatch: int) -> None:
    """Batches of several sequences, in parts that gather their cells; all are compared after each operation."""
    chance = random.Random(ubatch)
    refused = 0
    for _ in range(100):
        one = memory(ubatch=ubatch)
        held: dict[int, list[int]] = {index: [] for index in range(4)}
        for _ in range(60):
            sequence, other = chance.sample(range(4), 2)
            match chance.randrange(6):
                case 0 | 1:
                    rows = chance.sample(range(4), chance.randrange(1, 5))
                    new = {row: [chance.randrange(2, 9) for _ in range(chance.randrange(1, 4))] for row in rows}
                    one.decode([Tokens(row, len(held[row]), tuple(new[row]), 0) for row in rows])
                    for row in rows:
                        held[row] = held[row] + new[row]
                case 2 if len(held[sequence]) > 1:
                    start = chance.randrange(1, len(held[sequence]))
                    if one.remove(sequence, start):
                        held[sequence] = held[sequence][:start]
                    else:
                        refused += 1
                case 3:
                    one.remove(other)
                    one.copy(sequence, other)
                    held[other] = held[sequence]
                case 4:
                    one.set_state(other, one.state(sequence, WHOLE), WHOLE)
                    held[other] = held[sequence]
                case 5 if chance.random() < 0.3:
                    one.keep(sequence)
                    held = {index: held[index] if index == sequence else [] for index in held}
            for index, tokens in held.items():
                assert content(one, index) == alone(*tokens)
                assert one.positions(index) == (len(tokens) - 1, len(tokens) - 1)
        assert sorted(one.free) == [cell for cell, users in enumerate(one.users) if not users], "no cell is lost"
    assert refused


def test_a_shift_moves_one_sequence_and_is_saved_with_it() -> None:
    one = memory(planes=1)
    feed(one, 0, 5, 6, 7)
    one.copy(0, 1)
    assert one.shift(1, 4)
    assert (one.positions(0), one.positions(1)) == ((2, 2), (6, 6)), "its source stays"
    assert content(one, 1) == alone(5, 6, 7)
    one.set_state(2, one.state(1, WHOLE), WHOLE)
    assert one.positions(2) == (6, 6)
    assert one.remove(1, 6) and not one.remove(1, 5)
    assert content(one, 1) == alone(5, 6)
    one.remove(1)
    feed(one, 1, 5)
    assert one.positions(1) == (0, 0)


def test_a_client_counts_tokens_where_the_memory_counts_positions() -> None:
    executor = Executor(memory(planes=0))
    feed(executor.memory, 0, 5, 6, 7)  # type: ignore[arg-type]
    assert executor.execute(Shift(0, 4))
    executor.execute(Checkpoint(0))
    feed(executor.memory, 0, 8, 9)  # type: ignore[arg-type]
    executor.execute(GoBack(0, 3, (8,)))
    assert content(executor.memory, 0) == alone(5, 6, 7, 8)  # type: ignore[arg-type]
    assert executor.memory.positions(0) == (7, 7)
    executor.execute(Save("r0", 0))
    executor.execute(Restore("r0", 2))
    assert executor.position(2, 1) == 5
    executor.execute(RollBack(0, 2, (5, 6)))
    assert content(executor.memory, 0) == alone(5, 6)  # type: ignore[arg-type]
    assert executor.position(0, 0) == 0, "it was refused, and all was decoded again"


def test_a_long_row_is_computed_in_parts() -> None:
    one = memory(planes=3, ubatch=2)
    [tags] = one.decode([Tokens(0, 0, (5, 6, 7), 0)])
    assert tags == chain(EMPTY, (5, 6, 7))
    assert not one.remove(0, 2), "the second part has one token"


def test_a_part_gives_back_what_none_of_its_tokens_attends_to() -> None:
    one = memory(window=3)
    feed(one, 0, 5, 6, 7, 8)
    assert content(one, 0) == alone(5, 6, 7, 8), "the first token attended to all"
    feed(one, 0, 9, 10)
    assert content(one, 0) == alone(5, 6, 7, 8, 9, 10, gone=2)
    assert one.remove(0, 5)
    feed(one, 0, 10)
    assert content(one, 0) == alone(5, 6, 7, 8, 9, 10, gone=3), "after a roll-back nothing is missed"


def test_a_copy_and_a_saved_state_keep_the_cells_of_a_window() -> None:
    one = memory(window=2)
    feed(one, 0, 5, 6, 7)
    one.copy(0, 1)
    feed(one, 0, 8)
    assert content(one, 1) == alone(5, 6, 7)
    saved = one.state(0, WHOLE)
    one.clear()
    one.set_state(2, saved, WHOLE)
    feed(one, 2, 9)
    assert content(one, 2) == alone(5, 6, 7, 8, 9, gone=3)


def test_a_token_that_misses_a_cell_of_its_window_is_that_of_no_prefix() -> None:
    one = memory(window=3)
    feed(one, 0, 5, 6, 7)
    one.give_back(0, 4)
    [tags] = one.decode([Tokens(0, 3, (8, 9), 0)])
    assert tags == (POISON, POISON)
