"""The transcription of vLLM's attention metadata: which rows read and write which blocks, in which order."""

from types import SimpleNamespace

import numpy as np
import pytest

from hybridfuzz.targets.base.observe import OutOfRange
from hybridfuzz.targets.vllm.rows.bounds import Bounds
from hybridfuzz.targets.vllm.rows.kernel_reads import Batch, Columns, local_rows, slot_rows, state_rows, writing_order
from hybridfuzz.targets.vllm.rows.layer_rows import SlotRow


def state_metadata(**changes: object) -> SimpleNamespace:
    """Return GDN metadata of an empty batch with changes; lists become arrays."""
    fields: dict[str, object] = {
        "num_actual_tokens": 0,
        "num_prefills": 0,
        "num_decodes": 0,
        "num_spec_decodes": 0,
        "spec_sequence_masks": None,
    }
    fields |= changes
    return SimpleNamespace(**{name: np.array(one) if isinstance(one, list) else one for name, one in fields.items()})


def columns_of(*tables: list[int], lengths: list[int], block_size: int | None = 4) -> Columns:
    return Columns(tables, lengths, block_size, Bounds(0, 100, len(lengths), 8))


def test_decode_rows_use_one_block_for_everything() -> None:
    metadata = state_metadata(num_actual_tokens=2, num_decodes=2, non_spec_state_indices_tensor=[5, 7])
    rows = state_rows(metadata, columns_of([0, 5], [7], lengths=[6, 3]))
    assert [(row.row, row.conv, row.temporal, row.outputs, row.conv_column) for row in rows] == [
        (0, 5, 5, [5], 1),
        (1, 7, 7, [7], 0),
    ]


def test_a_speculative_row_reads_at_the_accepted_offset_and_writes_one_state_per_token() -> None:
    metadata = state_metadata(
        num_actual_tokens=3,
        num_spec_decodes=1,
        spec_sequence_masks=[True],
        spec_query_start_loc=[0, 3],
        num_accepted_tokens=[2],
        spec_state_indices_tensor=[[4, 6, 8]],
    )
    (row,) = state_rows(metadata, columns_of([4, 6, 8], lengths=[4]))
    assert (row.temporal, row.temporal_column, row.conv, row.offset) == (6, 1, 4, 1)
    assert (list(row.outputs), list(row.output_columns)) == ([4, 6, 8], [0, 1, 2])


def test_other_rows_of_a_speculative_batch_are_prefills_in_the_gathered_order() -> None:
    metadata = state_metadata(
        num_actual_tokens=5,
        num_prefills=1,
        num_spec_decodes=1,
        spec_sequence_masks=[False, True],
        spec_query_start_loc=[0, 2],
        num_accepted_tokens=[1],
        spec_state_indices_tensor=[[4, 6]],
        spec_token_indx=[3, 4],
        non_spec_token_indx=[0, 1, 2],
        non_spec_query_start_loc=[0, 3],
        non_spec_state_indices_tensor=[9],
        has_initial_state=[False],
        prefill_state_indices=[9],
        prefill_has_initial_state=[False],
    )
    speculating, prefill = state_rows(metadata, columns_of([9], [4, 6], lengths=[3, 4]))
    assert (speculating.row, list(speculating.tokens), speculating.prefill) == (1, [3, 4], False)
    assert (prefill.row, list(prefill.tokens), prefill.prefill, prefill.has_temporal) == (0, [0, 1, 2], True, False)


def test_decodes_in_front_of_prefills_go_to_the_decode_kernel() -> None:
    metadata = state_metadata(
        num_actual_tokens=4,
        num_prefills=1,
        num_decodes=1,
        non_spec_query_start_loc=[0, 1, 4],
        non_spec_state_indices_tensor=[5, 7],
        has_initial_state=[True, True],
        prefill_state_indices=[7],
        prefill_has_initial_state=[True],
    )
    rows = state_rows(metadata, columns_of([5], [7], lengths=[3, 4]))
    assert [(row.prefill, list(row.tokens), row.has_temporal) for row in rows] == [
        (False, [0], True),
        (True, [1, 2, 3], True),
    ]


def split(scanned: list[int]) -> SimpleNamespace:
    """A decode, then a prompt of three tokens, for which the chunked kernel has boundaries of its own."""
    return state_metadata(
        num_actual_tokens=4,
        num_prefills=1,
        num_decodes=1,
        num_decode_tokens=1,
        non_spec_query_start_loc=[0, 1, 4],
        non_spec_state_indices_tensor=[5, 7],
        has_initial_state=[True, True],
        prefill_state_indices=[7],
        prefill_has_initial_state=[True],
        prefill_query_start_loc=scanned,
    )


@pytest.mark.parametrize(("scanned", "tokens"), [([0, 3], [1, 2, 3]), ([0, 2], [1, 2])])
def test_a_prompt_has_the_tokens_that_the_chunked_kernel_is_given(scanned: list[int], tokens: list[int]) -> None:
    decode, prefill = state_rows(split(scanned), columns_of([5], [7], lengths=[3, 4]))
    assert (list(decode.tokens), list(prefill.tokens)) == ([0], tokens)


def test_boundaries_that_are_not_counted_from_the_first_prompt_are_outside() -> None:
    columns = columns_of([5], [7], lengths=[3, 4])
    assert len(state_rows(split([1, 4]), columns)) == 1
    assert [(one.row, one.what, one.index, one.size) for one in columns.bounds.found] == [(1, "token", 3, 3)]


@pytest.mark.parametrize(("block", "column"), [(8, 2), (4, 0), (99, -1)])
def test_columns_are_where_the_builder_looked_or_anywhere_or_unknown(block: int, column: int) -> None:
    assert columns_of([4, 6, 8], lengths=[9]).of(0, 0, block) == column


def drafts(accepted: int, blocks: list[int], starts: list[int]) -> SimpleNamespace:
    return state_metadata(
        num_actual_tokens=3,
        num_spec_decodes=1,
        spec_sequence_masks=[True],
        spec_query_start_loc=starts,
        num_accepted_tokens=[accepted],
        spec_state_indices_tensor=[blocks],
    )


@pytest.mark.parametrize(
    ("metadata", "outside"),
    [
        (drafts(0, [4, 6, 8], [0, 3]), ("column", -1, 3)),
        (drafts(9, [4, 6, 8], [0, 3]), ("column", 8, 3)),
        (drafts(1, [4, 6], [0, 3]), ("column", 2, 2)),
        (drafts(1, [4, -2, 8], [0, 3]), ("block", -2, 100)),
        (drafts(1, [4, 6, 8126615], [0, 3]), ("block", 8126615, 100)),
        (drafts(1, [4, 6, 8], [-3, 3]), ("token", -3, 3)),
        (drafts(1, [4, 6, 8], [0, 4]), ("token", 3, 3)),
        (state_metadata(num_actual_tokens=1, num_decodes=1, non_spec_state_indices_tensor=[100]), ("block", 100, 100)),
    ],
)
def test_a_state_row_that_names_nothing_is_noted_and_left_out(
    metadata: SimpleNamespace, outside: tuple[str, int, int]
) -> None:
    """Python would take a negative index from the end, cut a slice short, or raise."""
    columns = columns_of([4, 6, 8], lengths=[4])
    assert state_rows(metadata, columns) == []
    assert columns.bounds.found == [OutOfRange(0, 0, *outside)]


def test_a_row_behind_the_batch_is_noted_and_left_out() -> None:
    metadata = state_metadata(num_actual_tokens=2, num_decodes=2, non_spec_state_indices_tensor=[5, 7])
    columns = columns_of([5], lengths=[3])
    assert [row.row for row in state_rows(metadata, columns)] == [0]
    assert columns.bounds.found == [OutOfRange(1, 0, "row", 1, 1)]


def attention_row(slot: int = 9, start: int = 0, length: int = 6, table: tuple[int, ...] = (5, 2)) -> SimpleNamespace:
    """One decode row, blocks of four slots; what is stored goes to `slot`."""
    return SimpleNamespace(
        num_actual_tokens=1,
        query_start_loc=np.array([start, 1]),
        seq_lens=np.array([length]),
        block_table=np.array([table]),
        slot_mapping=np.array([slot]),
    )


@pytest.mark.parametrize(
    ("metadata", "outside"),
    [
        (attention_row(slot=400), ("block", 100, 100)),
        (attention_row(start=-1), ("token", -1, 1)),
        (attention_row(length=9), ("column", 2, 2)),
        (attention_row(length=0), ("position", -1, 0)),
        (attention_row(length=-4), ("position", -5, -4)),
        (attention_row(table=(-5, 2)), ("block", -5, 100)),
        (attention_row(table=(5, 100)), ("block", 100, 100)),
    ],
)
def test_an_attention_row_that_names_nothing_is_noted_and_left_out(
    metadata: SimpleNamespace, outside: tuple[str, int, int]
) -> None:
    bounds = Bounds(1, 100, 1, 1)
    assert slot_rows(metadata, metadata.slot_mapping, 4, bounds) == []
    assert bounds.found == [OutOfRange(0, 1, *outside)]


def test_a_row_that_stores_nothing_may_be_shorter_than_its_query() -> None:
    """As vLLM's dummy runs of speculative decodes are: three tokens, a length of one."""
    metadata, bounds = attention_row(slot=-1, length=0), Bounds(1, 100, 1, 1)
    (row,) = slot_rows(metadata, metadata.slot_mapping, 4, bounds)
    assert (row.start, list(row.pages), list(row.stored), bounds.found) == (-1, [], [], [])


def test_what_lies_behind_the_context_is_not_read() -> None:
    """Columns that no position of the row reaches may hold anything."""
    metadata, bounds = attention_row(table=(5, 2, -1)), Bounds(1, 100, 1, 1)
    (row,) = slot_rows(metadata, metadata.slot_mapping, 4, bounds)
    assert (list(row.pages), bounds.found) == ([5, 2], [])


@pytest.mark.parametrize(("slots", "written"), [([9, 14, -1, -1], []), ([9, 14, 13, -1], [(3, 1)])])
def test_keys_of_padding_tokens_are_stored_where_a_slot_is_named(
    slots: list[int], written: list[tuple[int, int]]
) -> None:
    """Two decode rows in a graph of four: the kernel that stores keys knows no rows."""
    metadata = SimpleNamespace(
        num_actual_tokens=4,
        query_start_loc=np.array([0, 1, 2, 2, 2]),
        seq_lens=np.array([2, 3, 0, 0]),
        block_table=np.array([[2], [3], [0], [0]]),
    )
    rows = slot_rows(metadata, np.array(slots), 4, Bounds(1, 100, 4, 4))
    padding = [row for row in rows if not row.pages]
    assert [(block, slot) for row in padding for block, slot in zip(row.blocks, row.slots, strict=True)] == written
    assert [row.row for row in padding] == [2] * len(padding)
    assert [row.row for row in rows if row.pages] == [0, 1]


def test_keys_of_padding_tokens_outside_of_the_pool_are_noted() -> None:
    metadata, bounds = attention_row(), Bounds(1, 100, 1, 2)
    metadata.num_actual_tokens = 2
    assert [row.row for row in slot_rows(metadata, np.array([9, 400]), 4, bounds) if row.pages] == [0]
    assert bounds.found == [OutOfRange(0, 1, "block", 100, 100)]


def test_padding_rows_of_a_replayed_graph_write_where_the_buffer_says() -> None:
    metadata = state_metadata(num_actual_tokens=3, num_decodes=3, non_spec_state_indices_tensor=[5, 7, 9])
    rows = state_rows(metadata, columns_of([5], [7], lengths=[3, 3, 0]))
    assert [(row.row, list(row.outputs), row.conv_column) for row in rows][-1] == (2, [9], -1)


def slot_row(row: int, start: int, pages: list[int], blocks: list[int], slots: list[int]) -> SlotRow:
    tokens = range(len(slots))
    return SlotRow(row, start, tokens, pages, start + len(slots), blocks, slots, tokens)


def test_a_row_that_hits_a_block_being_filled_stores_after_the_row_that_fills_it() -> None:
    hitting = slot_row(0, 4, [1, 2], [2], [0])
    filling = slot_row(1, 0, [1], [1, 1, 1, 1], [0, 1, 2, 3])
    assert list(writing_order([hitting, filling], 4)) == [1, 0]
    assert list(writing_order([filling, hitting], 4)) == [0, 1]


def test_rows_that_wait_for_each_other_still_all_store() -> None:
    first = slot_row(0, 4, [1, 2], [2], [3])
    second = slot_row(1, 8, [9, 2, 1], [1], [3])
    assert sorted(writing_order([first, second], 4)) == [0, 1]


def test_a_window_skips_the_pages_that_its_first_token_does_not_attend_to() -> None:
    """One decode at position 9 with a window of 4 tokens in blocks of 2: positions 6 to 9. Earlier blocks are freed."""
    metadata = SimpleNamespace(
        num_actual_tokens=1,
        query_start_loc=np.array([0, 1]),
        seq_lens=np.array([10]),
        block_table=np.array([[0, 0, 0, 7, 8]]),
    )
    (row,) = slot_rows(metadata, np.array([17]), 2, Bounds(1, 100, 1, 1), lambda position: position - 3)
    assert (row.first_column, list(row.pages), row.context) == (3, [7, 8], 10)
    assert list(writing_order([row], 2)) == [0]


def chunked_metadata() -> SimpleNamespace:
    """Rows of 4 and 3 tokens behind 6 and 8 computed ones, in chunks of 8: the first is cut at position 8."""
    return SimpleNamespace(
        num_actual_tokens=7,
        query_start_loc=np.array([0, 2, 4, 7]),
        seq_lens=np.array([8, 2, 3]),
        block_table=np.array([[3, 4], [5, 0], [9, 0]]),
    )


def test_rows_of_chunked_attention_are_cut_at_the_chunks_of_their_context() -> None:
    batch = Batch(("r0", "r1"), (0, 4, 7), (10, 11))
    slots = np.array([18, 19, 20, 21, 36, 37, 38])
    rows = local_rows(chunked_metadata(), slots, 4, Bounds(1, 100, 2, 7), batch)
    assert [(row.row, row.start, list(row.pages), row.context) for row in rows] == [
        (0, 6, [3, 4], 8),
        (0, 8, [5], 10),
        (1, 8, [9], 11),
    ]
    assert [(row.first_column, row.is_first) for row in rows] == [(0, True), (2, False), (2, True)]
    assert [list(row.blocks) for row in rows] == [[4, 4], [5, 5], [9, 9, 9]]


def test_a_chunk_with_too_few_pages_is_noted_and_left_out() -> None:
    metadata, bounds = chunked_metadata(), Bounds(1, 100, 2, 7)
    metadata.seq_lens = np.array([8, 2, 9])
    rows = local_rows(metadata, np.arange(7), 4, bounds, Batch(("r0", "r1"), (0, 4, 7), (10, 11)))
    assert [row.row for row in rows] == [0, 0]
    assert bounds.found == [OutOfRange(1, 1, "column", 2, 2)]
