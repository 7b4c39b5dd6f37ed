"""Rows of mode all: which columns the kernels read and write, before and since #41233, and behind packaged fixes."""

from types import SimpleNamespace
from typing import Any

import pytest

from hybridfuzz.targets.vllm.rows.all_mode import RULES, all_rows
from hybridfuzz.targets.vllm.rows.bounds import Bounds
from hybridfuzz.targets.vllm.rows.kernel_reads import Columns

BLOCK = 8


class Array(list[Any]):
    """Stands in for a tensor."""

    def tolist(self) -> list[Any]:
        return list(self)


def metadata(accepted: int, before: int | None) -> Any:
    """One request with 15 tokens computed that verifies two drafts: the state after them is in column 2."""
    found = SimpleNamespace(
        num_prefills=0,
        num_decode_tokens=3,
        query_start_loc_d=Array([0, 3]),
        num_accepted_tokens=Array([accepted]),
        block_idx_last_computed_token=Array([1]),
        block_idx_last_scheduled_token=Array([2]),
        state_indices_tensor_d=Array([[10, 11, 12, 13, 14]]),
        state_indices_tensor_p=Array([]),
    )
    if before is not None:
        found.block_idx_last_scheduled_token_prev_step = Array([before])
    return found


def rows(bounds: Bounds, accepted: int, before: int | None, rules: frozenset[str] = RULES) -> Any:
    return all_rows(metadata(accepted, before), Columns([[]], [18], None, bounds), 3, BLOCK, True, 0, rules)


def test_a_row_with_drafts_writes_a_column_for_each_token() -> None:
    [row] = rows(Bounds(0, 20, 1, 3), 2, 1)
    assert (row.speculative, row.conv, row.offset, row.temporal_column, row.temporal) == (True, 11, 1, 2, 12)
    assert row.cached.states == [(12, 2, 1), (13, 3, 2), (14, 4, 3)]
    assert row.cached.windows == [(12, 2, 1, ())]


@pytest.mark.parametrize("accepted", [1, 2])
def test_one_gathered_column_is_too_narrow_for_drafts(accepted: int) -> None:
    """Before #41233 the second draft's state goes beyond the gathered column, whatever was accepted."""
    bounds = Bounds(0, 20, 1, 3)
    assert rows(bounds, accepted, None) == []
    assert bounds.found


def test_a_fixed_mixer_reads_the_window_where_the_states_of_the_step_before_begin() -> None:
    bounds = Bounds(0, 20, 1, 3)
    assert rows(bounds, 1, 2)[0].conv_column == 1
    assert rows(bounds, 1, 2, RULES - {"computed"})[0].conv_column == 2


def windows(computed: int, length: int, rules: frozenset[str]) -> Any:
    """The windows of one prompt: column, tokens folded in, inputs other than its own."""
    first, last, source = computed // BLOCK, (computed + length - 1) // BLOCK, max(computed - 1, 0) // BLOCK
    found = SimpleNamespace(
        num_prefills=1,
        num_decodes=0,
        num_decode_tokens=0,
        num_prefill_tokens=length,
        query_start_loc_p=Array([0, length]),
        block_idx_last_computed_token=Array([source]),
        block_idx_last_scheduled_token=Array([last]),
        block_idx_first_scheduled_token_p=Array([first]),
        num_computed_tokens_p=Array([computed]),
        has_initial_states_p=Array([computed > 0]),
        state_indices_tensor_d=Array([]),
        state_indices_tensor_p=Array([[10, 11, 12, 13, 14]]),
        chunk_size=BLOCK,
    )
    columns = Columns([[]], [computed + length], None, Bounds(0, 20, 1, length))
    (row,) = all_rows(found, columns, 3, BLOCK, False, 0, rules)
    return [(column, count, list(inputs)) for _, column, count, inputs in row.cached.windows]


@pytest.mark.parametrize(
    ("computed", "length", "released", "fixed"),
    [
        (8, 2, [(0, 2, [])], [(1, 2, [])]),
        (7, 5, [(1, 5, [])], [(1, 5, []), (0, 1, [])]),
        (0, 20, [(2, 20, []), (0, 8, [5, 6, 7]), (1, 16, [13, 14, 15])], [(2, 20, []), (0, 8, []), (1, 16, [])]),
        (7, 9, [(1, 9, []), (0, 1, [-1, -1, 0])], [(1, 9, []), (0, 1, [])]),
    ],
    ids=["short chunk", "one program", "a program for each boundary", "inputs that were read"],
)
def test_a_fixed_kernel_stores_all_windows_in_their_blocks(
    computed: int, length: int, released: Any, fixed: Any
) -> None:
    assert windows(computed, length, RULES) == released
    assert windows(computed, length, frozenset()) == fixed
