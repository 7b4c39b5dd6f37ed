"""The transcription of plain linear attention's metadata: which rows read and write which blocks, in which order."""

from types import SimpleNamespace

import numpy as np

from hybridfuzz.targets.vllm.rows.bounds import Bounds
from hybridfuzz.targets.vllm.rows.kernel_reads import Columns
from hybridfuzz.targets.vllm.rows.linear_attention import linear_rows


def metadata_of(**changes: object) -> SimpleNamespace:
    """Return the metadata of an empty batch with changes; lists become arrays."""
    fields: dict[str, object] = {"num_prefills": 0, "num_prefill_tokens": 0, "num_decodes": 0, "num_decode_tokens": 0}
    fields |= changes
    return SimpleNamespace(**{name: np.array(one) if isinstance(one, list) else one for name, one in fields.items()})


def columns_of(*tables: list[int], lengths: list[int]) -> Columns:
    return Columns(tables, lengths, 4, Bounds(0, 100, len(lengths), 11))


MIXED = {
    "num_prefills": 2,
    "num_prefill_tokens": 5,
    "num_decodes": 1,
    "num_decode_tokens": 1,
    "query_start_loc": [0, 1, 4, 6],
    "seq_lens": [3, 3, 6],
}


def test_prefills_come_first_and_a_state_without_a_context_is_none() -> None:
    """MiniMax's layer: the indices of all rows are in one tensor, decodes first."""
    metadata = metadata_of(**MIXED, state_indices_tensor=[5, 7, 9])
    rows = linear_rows(metadata, columns_of([5], [7], [2, 9], lengths=[3, 3, 6]))
    assert [(row.row, list(row.tokens), row.temporal, row.has_temporal, row.prefill) for row in rows] == [
        (1, [1, 2, 3], 7, False, True),
        (2, [4, 5], 9, True, True),
        (0, [0], 5, True, False),
    ]
    assert [row.has_conv for row in rows] == [False] * 3


def test_rows_are_the_same_where_decodes_and_prefills_have_indices_of_their_own() -> None:
    """Bailing's builder."""
    own = {"state_indices_tensor_d": [5], "state_indices_tensor_p": [7, 9], "num_accepted_tokens": None}
    columns = columns_of([5], [7], [2, 9], lengths=[3, 3, 6])
    rows = linear_rows(metadata_of(**MIXED, state_indices_tensor=[0, 0, 0], **own), columns)
    assert rows == linear_rows(metadata_of(**MIXED, state_indices_tensor=[5, 7, 9]), columns)


def test_a_decode_has_a_state_even_if_nothing_is_computed() -> None:
    """The kernel has no notion of a first token: it reads whatever the block holds."""
    metadata = metadata_of(num_decodes=1, num_decode_tokens=1, state_indices_tensor=[5])
    (row,) = linear_rows(metadata, columns_of([5], lengths=[1]))
    assert (row.has_temporal, row.temporal, list(row.outputs)) == (True, 5, [5])


def test_the_null_block_is_a_state_and_padding_is_skipped() -> None:
    """`pad_slot_id` is -1 in every release."""
    metadata = metadata_of(num_decodes=3, num_decode_tokens=3, state_indices_tensor=[0, -1, 5])
    rows = linear_rows(metadata, columns_of([0], [], [5], lengths=[1, 1, 1]))
    assert [(row.row, row.temporal) for row in rows] == [(0, 0), (2, 5)]


def drafts(accepted: int) -> SimpleNamespace:
    return metadata_of(
        num_decodes=2,
        num_decode_tokens=3,
        query_start_loc_d=[0, 3, 3],
        num_accepted_tokens=[accepted, 1],
        state_indices_tensor_d=[[4, 6, 8], [-1, -1, -1]],
    )


def test_a_verification_reads_the_accepted_state_and_stores_one_for_each_token() -> None:
    (row,) = linear_rows(drafts(2), columns_of([4, 6, 8], lengths=[4]))
    assert (row.speculative, row.temporal, row.temporal_column) == (True, 6, 1)
    assert (list(row.outputs), list(row.output_columns)) == ([4, 6, 8], [0, 1, 2])


def test_accepted_counts_out_of_range_are_clamped_as_in_the_kernel() -> None:
    columns = columns_of([4, 6, 8], lengths=[4])
    assert [linear_rows(drafts(count), columns)[0].temporal for count in (0, 9)] == [4, 8]
    assert not columns.bounds.found
