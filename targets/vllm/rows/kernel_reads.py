"""Reads vLLM's attention metadata into plain rows, the way the real kernels read it.

For the state layers this is a transcription of `qwen_gdn_linear_attn._forward_core` and of the kernels that it
calls (`causal_conv1d_fn`, `causal_conv1d_update`, `fused_sigmoid_gating_delta_rule_update`):

    speculative rows  temporal state at index accepted - 1, one state written per token at index t;
                      one convolution buffer, at index 0, read at offset accepted - 1
    decode rows       one index for everything
    prefill rows      the initial state is loaded only if the metadata has one

The kernels skip a row whose index is that of the null block, 0 (`PAD_SLOT_ID`, -1, before PR #35431, when 0 was a state
like any other), except for a prefill's recurrence, which has no check.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from .bounds import Bounds
from .layer_rows import SlotRow, StateRow


class Batch(NamedTuple):
    """One forward from the worker's point of view. Rows are in batch order."""

    names: Sequence[str | None]
    starts: Sequence[int]
    lengths: Sequence[int]

    def position(self, row: int) -> int:
        """Return the first position that a row computes."""
        return self.lengths[row] - (self.starts[row + 1] - self.starts[row])


class Columns:
    """Finds the columns of state blocks in the way in which the metadata builder finds the blocks.

    tables   the group's block table by row, only the valid columns
    lengths  of the rows' contexts
    bounds   checks that blocks exist
    """

    def __init__(
        self, tables: Sequence[Sequence[int]], lengths: Sequence[int], block_size: int | None, bounds: Bounds
    ) -> None:
        self.bounds = bounds
        self._tables = tables
        self._lengths = lengths
        self._block_size = block_size

    def of(self, row: int, index: int, block: int) -> int:
        """Return the column of entry `index` of a row's gathered indices: block-aligned in align mode."""
        if row >= len(self._tables):
            return -1
        table = self._tables[row]
        first = max((self._lengths[row] - 1) // self._block_size, 0) if self._block_size else 0
        column = first + index
        if column < len(table) and table[column] == block:
            return column
        return list(table).index(block) if block in table else -1


def speculative_row(
    row: int, tokens: Sequence[int], blocks: Sequence[int], offset: int, columns: Columns
) -> StateRow | None:
    """Return a row that verifies drafts, its state at `offset` (accepted - 1); None if a column is missing."""
    bounds, width = columns.bounds, len(blocks)
    if not (bounds.has(row, "column", offset, width) and bounds.has(row, "column", len(tokens) - 1, width)):
        return None
    outputs = blocks[: len(tokens)]
    return StateRow(
        row, tokens, True, False,
        blocks[0], columns.of(row, 0, blocks[0]), offset,
        blocks[offset], columns.of(row, offset, blocks[offset]), True, True,
        outputs, [columns.of(row, draft, block) for draft, block in enumerate(outputs)],
    )  # fmt: skip


def speculative_rows(
    batch_rows: Sequence[int], tokens: Sequence[int], starts: Sequence[int], indices: Sequence[Sequence[int]],
    offset: Callable[[int], int | None], columns: Columns,
) -> list[StateRow]:  # fmt: skip
    """Return the rows that verify drafts, by their boundaries in `tokens` and their state indices.

    `offset` returns the entry of a row's initial state from the row's place among them, None if kernels skip the row.
    """
    rows = []
    for place, (row, blocks) in enumerate(zip(batch_rows, indices, strict=True)):
        own = columns.bounds.span(row, tokens, starts[place], starts[place + 1])
        if own and (first := offset(place)) is not None:
            rows.append(speculative_row(row, own, blocks, first, columns))
    return [row for row in rows if row]


def decode_row(row: int, token: int, block: int, columns: Columns, has_conv: bool = True) -> StateRow:
    """Return a row of one token, which reads and writes one block."""
    column = columns.of(row, 0, block)
    return StateRow(row, (token,), False, False, block, column, 0, block, column, has_conv, True, [block], [column])


def state_rows(metadata: Any, columns: Columns, skipped: int = 0) -> list[StateRow]:
    """Return the rows of a GDN layer in the order in which the kernels process them."""
    tokens: Sequence[int] = range(metadata.num_actual_tokens)
    rows: list[StateRow] = []
    others: Sequence[int] | None = None
    if metadata.spec_sequence_masks is not None:
        speculating, tokens, others = _split_tokens(metadata, tokens)
        rows = _speculative_rows(metadata, columns, speculating, others is not None)
    if metadata.num_prefills > 0:
        rows += _prefill_rows(metadata, columns, tokens, others)
    elif metadata.num_decodes > 0:
        rows += _decode_rows(metadata, columns, tokens, others)
    return in_bounds(rows, columns.bounds, skipped)


def in_bounds(rows: Sequence[StateRow], bounds: Bounds, skipped: int) -> list[StateRow]:
    """Return the rows whose tokens and blocks exist. A row that names no block (-1) is skipped by the kernels."""
    named = [row for row in rows if skipped >= 0 or row.prefill or row.conv != skipped]
    return [row for row in named if bounds.state_row(row)]


def _split_tokens(metadata: Any, tokens: Sequence[int]) -> tuple[Sequence[int], Sequence[int], list[int] | None]:
    """Return (tokens of speculative rows, tokens of the others, batch rows of the others or None)."""
    if metadata.num_prefills == 0 and metadata.num_decodes == 0:
        return tokens, (), None
    masks = metadata.spec_sequence_masks.tolist()
    others = [row for row, speculative in enumerate(masks) if not speculative]
    return metadata.spec_token_indx.tolist(), metadata.non_spec_token_indx.tolist(), others


def _speculative_rows(metadata: Any, columns: Columns, tokens: Sequence[int], mixed: bool) -> list[StateRow]:
    count = metadata.num_spec_decodes
    starts = metadata.spec_query_start_loc.tolist()
    accepted = metadata.num_accepted_tokens.tolist()
    indices = metadata.spec_state_indices_tensor.tolist()
    batch_rows: Sequence[int] = range(count)
    if mixed:
        batch_rows = [row for row, speculative in enumerate(metadata.spec_sequence_masks.tolist()) if speculative]
    return speculative_rows(
        batch_rows[:count], tokens, starts, indices[:count], lambda place: accepted[place] - 1, columns
    )


def _prefill_rows(
    metadata: Any, columns: Columns, tokens: Sequence[int], batch_rows: Sequence[int] | None
) -> list[StateRow]:
    starts = metadata.non_spec_query_start_loc.tolist()
    blocks = metadata.non_spec_state_indices_tensor.tolist()
    has_conv = metadata.has_initial_state.tolist()
    decodes, has_temporal, temporal = 0, has_conv, blocks
    if hasattr(metadata, "prefill_state_indices"):  # since 0.23
        # Decodes ahead of the prefills go to the decode kernel, unless there are speculative rows in the batch.
        decodes = metadata.num_decodes if metadata.spec_sequence_masks is None else 0
        has_temporal = [True] * decodes + metadata.prefill_has_initial_state.tolist()
        temporal = blocks[:decodes] + metadata.prefill_state_indices.tolist()
    # Since 0.23 the chunked kernel has boundaries of its own, counted from the first prompt's token. Where they differ
    # from the convolution's, the recurrence consumes other tokens: the row has those, and so does its state.
    scanned = prompts = None
    if getattr(metadata, "prefill_query_start_loc", None) is not None:
        scanned = metadata.prefill_query_start_loc.tolist()
        prompts = tokens[metadata.num_decode_tokens if decodes else 0 :]
    rows = []
    for index, block in enumerate(blocks):
        row = batch_rows[index] if batch_rows is not None else index
        own = columns.bounds.span(row, tokens, starts[index], starts[index + 1])
        if own and index >= decodes and scanned and prompts is not None:
            own = columns.bounds.span(row, prompts, scanned[index - decodes], scanned[index - decodes + 1])
        if not own:
            continue
        column = columns.of(row, 0, block)
        rows.append(
            StateRow(
                row, own, False, index >= decodes,
                block, column, 0,
                temporal[index], column, has_conv[index], has_temporal[index],
                [temporal[index]], [column],
            )
        )  # fmt: skip
    return rows


def _decode_rows(
    metadata: Any, columns: Columns, tokens: Sequence[int], batch_rows: Sequence[int] | None
) -> list[StateRow]:
    blocks = metadata.non_spec_state_indices_tensor.tolist()
    return [
        decode_row(batch_rows[index] if batch_rows is not None else index, token, blocks[index], columns)
        for index, token in enumerate(tokens)
    ]


def _from_the_start(position: int) -> int:
    return 0


def slot_rows(
    metadata: Any, slot_mapping: Any, block_size: int, bounds: Bounds, first: Callable[[int], int] = _from_the_start
) -> list[SlotRow]:
    """Return the rows of an attention layer in batch order.

    `first` returns the first position that the token at a position attends to: kernels skip the pages before it.
    """
    starts = metadata.query_start_loc.tolist()
    lengths = metadata.seq_lens.tolist()
    tables = metadata.block_table.tolist()
    width = metadata.block_table.shape[1]
    slots = slot_mapping[: metadata.num_actual_tokens].tolist()
    rows = []
    if max(slots[max(starts[-1], 0) :], default=-1) >= block_size:
        rows.append(_padding_row(starts, slots, block_size))
    for row, length in enumerate(lengths):
        tokens = range(starts[row], starts[row + 1])
        if not bounds.span(row, slots, tokens.start, tokens.stop):
            continue
        own = slots[tokens.start : tokens.stop]
        stored: Sequence[int] = range(len(own))
        if own and min(own) < 0:
            stored = [one for one, slot in enumerate(own) if slot >= 0]
            own = [own[one] for one in stored]
        start, num_pages = length - len(tokens), -(-length // block_size)
        # A dummy run's row is shorter than its query; it stores nothing.
        if own and start < 0 and not bounds.has(row, "position", start, length):
            continue
        if num_pages > width and not bounds.has(row, "column", num_pages - 1, width):
            continue
        skipped = first(start) // block_size if start > 0 else 0
        pages = tables[row][skipped:num_pages]
        blocks, places = [slot // block_size for slot in own], [slot % block_size for slot in own]
        rows.append(SlotRow(row, start, tokens, pages, length, blocks, places, stored, skipped))
    return [row for row in rows if bounds.blocks(row.row, row.pages) and bounds.blocks(row.row, row.blocks)]


def local_rows(metadata: Any, slot_mapping: Any, block_size: int, bounds: Bounds, batch: Batch) -> list[SlotRow]:
    """Return the rows of a chunked-local layer, whose metadata has a row for each chunk that a row of the batch touches
    (`make_local_attention_virtual_batches`); lengths and pages are those of the chunk."""
    starts, lengths = metadata.query_start_loc.tolist(), metadata.seq_lens.tolist()
    tables, slots = metadata.block_table.tolist(), slot_mapping[: metadata.num_actual_tokens].tolist()
    rows = []
    for part, length in enumerate(lengths):
        tokens = range(starts[part], starts[part + 1])
        row = max(bisect_right(batch.starts, tokens.start) - 1, 0)
        if not bounds.span(row, slots, tokens.start, tokens.stop):
            continue
        offset = tokens.start - batch.starts[row]
        start = batch.position(row) + offset
        context = start - (length - len(tokens))
        width = -(-length // block_size)
        if width > len(tables[part]) and not bounds.has(row, "column", width - 1, len(tables[part])):
            continue
        stored = [one for one, token in enumerate(tokens) if slots[token] >= 0]
        own = [slots[tokens.start + one] for one in stored]
        blocks, places = [slot // block_size for slot in own], [slot % block_size for slot in own]
        pages = tables[part][:width]
        rows.append(
            SlotRow(
                row, start, tokens, pages, context + length, blocks, places, stored, context // block_size, not offset
            )
        )
    return [row for row in rows if bounds.blocks(row.row, row.pages) and bounds.blocks(row.row, row.blocks)]


def _padding_row(starts: Sequence[int], slots: Sequence[int], block_size: int) -> SlotRow:
    """Return padding tokens with slots outside the null block: keys are stored at any slot, even without a row."""
    tokens = range(max(starts[-1], 0), len(slots))
    stored = [token for token, slot in enumerate(slots[tokens.start :]) if slot >= block_size]
    own = [slots[tokens.start + token] for token in stored]
    row = sum(start < end for start, end in pairwise(starts))
    blocks, places = [slot // block_size for slot in own], [slot % block_size for slot in own]
    return SlotRow(min(row, len(starts) - 2), 0, tokens, (), 0, blocks, places, stored)


def writing_order(rows: Sequence[SlotRow], block_size: int) -> Sequence[int]:
    """Return the order in which rows may store.

    A row whose last cached position is stored by another row in the same step (a prefix hit on a block that is being
    filled) comes after that row.
    """
    if len(rows) < 2:
        return range(len(rows))
    writer = {
        (block, slot): index
        for index, row in enumerate(rows)
        for block, slot in zip(row.blocks, row.slots, strict=True)
    }
    waits: dict[int, int] = {}
    for index, row in enumerate(rows):
        if row.start > 0:
            column, slot = divmod(row.start - 1, block_size)
            if column < row.first_column:
                continue  # the row attends to nothing before its own tokens
            other = writer.get((row.pages[column - row.first_column], slot), index)
            if other != index:
                waits[index] = other
    order: list[int] = []
    for index in range(len(rows)):
        chain = [index]
        while (other := waits.get(chain[-1], index)) not in chain and other not in order:
            chain.append(other)
        order += [one for one in reversed(chain) if one not in order]
    return order
