"""Rows of mode all with drafts: which columns the kernels read and write, before and since #41233."""

from types import SimpleNamespace
from typing import Any

import pytest
from hybridfuzz.targets.vllm.all_mode import all_rows
from hybridfuzz.targets.vllm.bounds import Bounds
from hybridfuzz.targets.vllm.metadata import Columns

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


def rows(bounds: Bounds, accepted: int, before: int | None) -> Any:
    return all_rows(metadata(accepted, before), Columns([[]], [18], None, bounds), 3, BLOCK, True, 0)


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
