"""A block that changed is a write, whatever the metadata says; one that the metadata names is told already."""

import torch

from hybridfuzz.targets.base.observe import SlotWrite, StateRead, StateWrite
from hybridfuzz.targets.vllm.gpu.unsaid_writes import unsaid_writes

PLACES = ((0, 0), (0, 1))


def changed(*places: tuple[int, int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The pages of two slots with five blocks each before and after some bytes, (slot, block), have changed."""
    before = [torch.zeros(5, 8, dtype=torch.uint8) for _ in PLACES]
    after = [one.clone() for one in before]
    for slot, block in places:
        after[slot][block, 7] = 1
    return before, after


def test_a_changed_block_is_a_write_of_its_slot() -> None:
    [one] = unsaid_writes([], {0}, PLACES, *changed((1, 3)))
    assert (one.row, one.group, one.layer, one.block) == (0, 0, 1, 3)


def test_nothing_changed_or_only_a_sink() -> None:
    assert unsaid_writes([], {0}, PLACES, *changed()) == []
    assert unsaid_writes([], {0}, PLACES, *changed((0, 0), (1, 0))) == []


def test_what_kernels_were_told_to_write_is_observed_already() -> None:
    told = [StateWrite(0, 0, 0, 0, 2, 1, 5, None), SlotWrite(0, 1, 0, 0, (3,), (0,), (7,))]
    assert unsaid_writes(told, {0}, PLACES, *changed((0, 2), (1, 3))) == []


def test_a_block_that_was_only_to_be_read_must_not_change() -> None:
    read = [StateRead(0, 0, 0, 0, 2, 5, None)]
    assert [one.block for one in unsaid_writes(read, {0}, PLACES, *changed((0, 2)))] == [2]
