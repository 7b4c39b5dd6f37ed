"""A Mamba 2 prefill computes what the tables of its batch say."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hybridfuzz.reference.tokens import EMPTY, chain
from hybridfuzz.targets.base.shadow import POISON
from hybridfuzz.targets.sglang.mamba2 import Chain, Scan

INPUTS = [(1, 2, 3, 4, 5), (6, 7, 8, 9, 10)]
BEGUN = chain(EMPTY, (11, 12))[-1]
CHAINS: list[Chain] = [(start, chain(start, tokens)) for start, tokens in zip((EMPTY, BEGUN), INPUTS, strict=True)]
"""The second row continues from a state."""
CUTS = [(0, 0), (0, 5), (1, 0)]
"""Of chunks of eight tokens: SGLang's own example."""


def scan(cuts: list[tuple[int, int]] | None, prepared: bool = True, **tracks: list[int]) -> Scan:
    tables = SimpleNamespace(
        chunk_size=8,
        seq_idx=torch.tensor([[0] * 5 + [1] * 5]),
        has_initial_states=torch.tensor([False, True]),
        prep_initial_states=prepared,
        chunk_indices=None if cuts is None else torch.tensor([chunk for chunk, _ in cuts]),
        chunk_offsets=None if cuts is None else torch.tensor([offset for _, offset in cuts]),
    )
    places: dict[str, Any] = {name: torch.tensor(value) for name, value in tracks.items()}
    return Scan(SimpleNamespace(mixed_metadata=tables, query_start_loc=torch.tensor([0, 5, 10]), **places), None)


@pytest.mark.parametrize("cuts", [CUTS, None])
def test_each_row_gets_its_own_outputs(cuts: list[tuple[int, int]] | None) -> None:
    assert scan(cuts).outputs(CHAINS, INPUTS) == [tags for _, tags in CHAINS]
    assert [scan(cuts).reads_state(row) for row in (0, 1)] == [False, True]


def test_a_batch_without_initial_states_reads_windows_alone() -> None:
    """The mixer passes states to its scan only if the batch has some (`prep_initial_states`)."""
    unprepared = scan(None, prepared=False)
    assert [unprepared.reads_window(row) for row in (0, 1)] == [False, True]
    assert [unprepared.reads_state(row) for row in (0, 1)] == [False, False]


def test_what_the_tables_leave_out_has_no_output() -> None:
    """The last two tokens, if their chunk is named by its place among the cuts."""
    first, second = scan([(0, 0), (0, 5), (2, 0)]).outputs(CHAINS, INPUTS)
    assert first == CHAINS[0][1]
    assert second == (*CHAINS[1][1][:3], POISON, POISON)


def test_a_row_without_a_cut_goes_on_from_the_row_before_it() -> None:
    _, second = scan([(0, 0), (1, 0)]).outputs(CHAINS, INPUTS)
    assert second == (*chain(CHAINS[0][1][-1], INPUTS[1][:3]), *CHAINS[1][1][3:])


def test_a_cut_begins_from_the_state_of_its_row() -> None:
    """Where a request is cut in its middle, too: a kernel takes each cut inside a chunk for a new request."""
    first, _ = scan([(0, 0), (0, 2), (0, 5), (1, 0)]).outputs(CHAINS, INPUTS)
    assert first == (*CHAINS[0][1][:2], *chain(EMPTY, INPUTS[0][2:]))


def test_states_on_the_grid_and_beside_it() -> None:
    """Before tokens 0 and 8 of the batch; and behind four tokens of the second row, which end at token 9."""
    found = scan(CUTS, track_ssm_seq_idx=[1, 1], track_ssm_end_locs=[9, 4])
    assert found.chunks(CHAINS).flatten().tolist() == [EMPTY, CHAINS[1][1][2]]
    assert found.places(CHAINS).flatten().tolist() == [CHAINS[1][1][3], POISON]
