"""The transcription of Mamba 2's metadata: which rows read and write which blocks, in which order."""

from types import SimpleNamespace

import numpy as np
import pytest

from hybridfuzz.targets.base.observe import OutOfRange
from hybridfuzz.targets.vllm.rows.bounds import Bounds
from hybridfuzz.targets.vllm.rows.contracts import mamba2_rows
from hybridfuzz.targets.vllm.rows.kernel_reads import Columns
from hybridfuzz.targets.vllm.rows.layer_rows import Inner

WINDOW = 3


def metadata_of(**changes: object) -> SimpleNamespace:
    """Return Mamba 2 metadata of an empty batch with changes; lists become arrays."""
    fields: dict[str, object] = {
        "num_prefills": 0,
        "num_decodes": 0,
        "num_decode_tokens": 0,
        "query_start_loc_d": None,
        "prep_initial_states": False,
    }
    fields |= changes
    return SimpleNamespace(**{name: np.array(one) if isinstance(one, list) else one for name, one in fields.items()})


def columns_of(*tables: list[int], lengths: list[int]) -> Columns:
    return Columns(tables, lengths, 4, Bounds(0, 100, len(lengths), 11))


def test_a_decode_row_uses_one_block_for_everything() -> None:
    metadata = metadata_of(num_decodes=2, num_decode_tokens=2, state_indices_tensor_d=[[5], [7]])
    rows = mamba2_rows(metadata, columns_of([0, 5], [7], lengths=[6, 3]), WINDOW)
    assert [(row.row, list(row.tokens), row.conv, row.outputs, row.conv_column) for row in rows] == [
        (0, [0], 5, [5], 1),
        (1, [1], 7, [7], 0),
    ]


def test_a_decode_row_without_accepted_counts_uses_the_first_of_its_columns() -> None:
    metadata = metadata_of(num_decodes=1, num_decode_tokens=1, state_indices_tensor_d=[[5, 6, 8]])
    (row,) = mamba2_rows(metadata, columns_of([5, 6, 8], lengths=[1]), WINDOW)
    assert (row.temporal, row.conv, row.offset, list(row.outputs)) == (5, 5, 0, [5])


def test_a_speculative_row_reads_at_the_accepted_offset_and_padding_rows_do_nothing() -> None:
    metadata = metadata_of(
        num_decodes=2,
        num_decode_tokens=3,
        query_start_loc_d=[0, 3, 3],
        num_accepted_tokens=[2, 1],
        state_indices_tensor_d=[[4, 6, 8], [0, 0, 0]],
    )
    (row,) = mamba2_rows(metadata, columns_of([4, 6, 8], lengths=[4]), WINDOW)
    assert (row.temporal, row.temporal_column, row.conv, row.offset) == (6, 1, 4, 1)
    assert (list(row.outputs), list(row.output_columns)) == ([4, 6, 8], [0, 1, 2])


def prefill(**changes: object) -> SimpleNamespace:
    """One decode row, then a prompt of ten tokens behind four computed ones, in chunks of four."""
    fields: dict[str, object] = {
        "num_prefills": 1,
        "num_decodes": 1,
        "num_decode_tokens": 1,
        "num_prefill_tokens": 10,
        "state_indices_tensor_d": [[5]],
        "state_indices_tensor_p": [9],
        "query_start_loc_p": [0, 10],
        "has_initial_states_p": [True],
        "prep_initial_states": True,
        "cu_chunk_seqlen_p": [0, 4, 8, 10],
        "last_chunk_indices_p": [2],
    }
    return metadata_of(**{**fields, **changes})


def test_prefills_come_first_and_fold_all_their_tokens() -> None:
    first, second = mamba2_rows(prefill(), columns_of([5], [7, 0, 8, 9], lengths=[3, 14]), WINDOW)
    assert (first.row, list(first.tokens), first.prefill, first.folded) == (1, list(range(1, 11)), True, 10)
    assert (first.temporal_column, first.inner, second.row, second.prefill) == (3, None, 0, False)


def test_the_state_stored_is_that_of_the_chunk_that_counts_as_the_last() -> None:
    first, _ = mamba2_rows(prefill(last_chunk_indices_p=[1]), columns_of([5], [7, 0, 8, 9], lengths=[3, 14]), WINDOW)
    assert first.folded == 8


def two_prompts(names: list[int], *, initial: bool) -> SimpleNamespace:
    """Two prompts of two chunks each, whose chunks name these prompts."""
    return metadata_of(
        num_prefills=2,
        num_prefill_tokens=10,
        state_indices_tensor_p=[5, 9],
        query_start_loc_p=[0, 5, 10],
        has_initial_states_p=[initial, False],
        prep_initial_states=initial,
        cu_chunk_seqlen_p=[0, 4, 5, 9, 10],
        last_chunk_indices_p=[1, 3],
        seq_idx_p=names,
    )


@pytest.mark.parametrize(
    ("names", "initial", "wrong"),
    [
        ([0, 0, 1, 1], True, []),
        ([0, 0, 1, 1], False, []),
        ([2, 2, 1, 1], False, []),  # without initial states a number only separates
        ([0, 1, 1, 1], True, [(0, 1)]),
        ([0, 1, 2, 2], False, [(0, 1)]),
        ([0, 0, 0, 0], True, [(1, -1)]),
        ([0, 0, 0, 1], False, [(1, -1)]),
    ],
)
def test_a_scan_takes_each_prompt_as_a_sequence_of_its_own(
    names: list[int], initial: bool, wrong: list[tuple[int, int]]
) -> None:
    columns = columns_of([5], [9], lengths=[5, 5])
    rows = mamba2_rows(two_prompts(names, initial=initial), columns, WINDOW)
    assert [(one.row, one.index) for one in columns.bounds.found] == wrong
    assert len(rows) == 2 - len({row for row, _ in wrong})


def inner(offset: int) -> SimpleNamespace:
    plan = {"checkpoint_offsets": np.array([offset]), "state_indices": np.array([8]), "block_cols": np.array([2])}
    return prefill(checkpoint_chunk_idx=[1], checkpoint_meta=SimpleNamespace(**plan))


def test_a_state_inside_a_chunk_has_a_block_and_a_column_of_its_own() -> None:
    first, _ = mamba2_rows(inner(8), columns_of([5], [8, 0, 8, 9], lengths=[3, 14]), WINDOW)
    assert first.inner == Inner(8, 8, 2, range(6, 9), 8), "the table's first column holds the block too: it is stale"


def test_window_and_state_inside_a_chunk_are_taken_where_each_is_looked_for() -> None:
    """The window by the offset, the recurrent state by the chunk's number."""
    first, _ = mamba2_rows(inner(7), columns_of([5], [8, 0, 8, 9], lengths=[3, 14]), WINDOW)
    assert first.inner is not None
    assert (first.inner.inputs, first.inner.last) == (range(5, 8), 8)


def drafts(accepted: int, blocks: list[int]) -> SimpleNamespace:
    return metadata_of(
        num_decodes=1,
        num_decode_tokens=3,
        query_start_loc_d=[0, 3],
        num_accepted_tokens=[accepted],
        state_indices_tensor_d=[blocks],
    )


@pytest.mark.parametrize(
    ("metadata", "row", "outside"),
    [
        (drafts(0, [4, 6, 8]), 0, ("column", -1, 3)),
        (drafts(5, [4, 6, 8]), 0, ("column", 4, 3)),
        (drafts(9, [0, 0, 0]), 0, ("column", 8, 3)),
        (drafts(1, [4, 6, 100]), 0, ("block", 100, 100)),
        (prefill(last_chunk_indices_p=[-1]), 1, ("chunk", -1, 3)),
        (prefill(query_start_loc_p=[0, 11]), 1, ("token", 10, 10)),
        (prefill(state_indices_tensor_p=[-9]), 1, ("block", -9, 100)),
        (inner(2), 1, ("token", -1, 10)),
    ],
)
def test_a_row_that_names_nothing_is_noted(metadata: SimpleNamespace, row: int, outside: tuple[str, int, int]) -> None:
    columns = columns_of([5], [8, 0, 8, 9], lengths=[3, 14])
    mamba2_rows(metadata, columns, WINDOW)
    assert columns.bounds.found[0] == OutOfRange(row, 0, *outside)


def test_a_row_that_is_left_alone_may_have_accepted_nothing() -> None:
    """`selective_state_update` looks at the first column then (`maximum`), and the convolution at nothing."""
    columns = columns_of([0, 0, 0], lengths=[3])
    (row,) = mamba2_rows(drafts(0, [0, 0, 0]), columns, WINDOW)
    assert (row.offset, row.temporal, columns.bounds.found) == (0, 0, [])
