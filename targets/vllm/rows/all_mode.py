"""Rows of Mamba 1 and Mamba 2 layers in mode all: a state at each block boundary, at the columns of vLLM's arrays.

Follows three kernels, each of which stores by a rule of its own:

    convolution  `_causal_conv1d_fwd_kernel`, programs of `BLOCK_M` = 8 tokens. The last window goes to the column of
                 the last token, or, if the chunk is shorter than the window, to the block that it was read from
                 ("conv_states_ptrs_target = conv_states_base + ...", #56196). Program j >= 1 stores boundary j - 1
                 ("if (chunk_offset - 1) < n_block_to_fill"), from the tokens of the batch before the boundary
                 ("mask_x = (idx_tokens_last >= 0)"): never from the window that was read
    Mamba 2      `mamba_chunk_scan_combined_varlen`; `MambaMixer2.conv_ssm_forward` stores the states of chunks
                 `first_aligned_chunk + i * chunk_stride`
    Mamba 1      `selective_scan_fwd`, which is compiled: this is a stand-in. Before PR #34798 its steps were as long as
                 a block, counted from the first token of the chunk; since then `cu_chunk_seqlen_p` names their ends.
                 Step j stores to the column of the first token + j, the last step to that of the last token

A packaged patch (corpus/vllm/fixes) may correct a rule of the convolution; `features.window_rules` returns those that
the source follows.

With drafts (Mamba 2) the state after each token goes to the columns from that of the last token on; the next step reads
the one of the last accepted token. The window stays in one block: read from the column of the last computed token at
the offset of the accepted tokens, stored to the column of the last token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....reference.layout import cdiv
from .kernel_reads import Columns, in_bounds
from .layer_rows import Cached, StateRow

_PROGRAM = 8
"""Tokens of one program of the convolution (`BLOCK_M`)."""

RULES = frozenset({"source", "programs", "computed"})
"""The rules of the convolution in vLLM as released: `features.window_rules`."""

Stored = tuple[int, int]
"""Column, and tokens of the row folded in."""


def all_rows(
    metadata: Any,
    columns: Columns,
    window: int,
    block_size: int,
    chunks: bool,
    skipped: int,
    rules: frozenset[str] = RULES,
) -> list[StateRow]:
    """Return the rows of a layer: prefills first, as the mixers process them.

    `window` is the number of inputs that a convolution state holds; `chunks` is True for Mamba 2, whose chunks are
    shorter than a block.
    """
    rows: list[StateRow] = []
    if metadata.num_prefills > 0:
        rows += _prefills(metadata, columns, window, block_size, chunks, rules)
    if metadata.num_decode_tokens > 0:
        drafts = getattr(metadata, "query_start_loc_d", None) is not None
        rows += _speculative(metadata, columns, "computed" in rules) if drafts else _decodes(metadata)
    return [row for row in in_bounds(rows, columns.bounds, skipped) if columns.bounds.blocks(row.row, _blocks(row))]


def _blocks(row: StateRow) -> Sequence[int]:
    assert row.cached is not None
    return [*(window[0] for window in row.cached.windows), *(state[0] for state in row.cached.states)]


def _tables(metadata: Any) -> tuple[list[list[int]], list[list[int]]]:
    """Return the block tables of decodes and of prefills (in one tensor up to 0.16)."""
    if not hasattr(metadata, "state_indices_tensor"):
        return metadata.state_indices_tensor_d.tolist(), metadata.state_indices_tensor_p.tolist()
    tables, first = metadata.state_indices_tensor.tolist(), metadata.num_decode_tokens
    return tables[:first], tables[first : first + metadata.num_prefills]


def _prefills(
    metadata: Any, columns: Columns, window: int, block_size: int, chunks: bool, rules: frozenset[str]
) -> list[StateRow]:
    first_row, first_token = metadata.num_decodes, metadata.num_decode_tokens
    starts = metadata.query_start_loc_p.tolist()
    prompts = range(first_token, first_token + metadata.num_prefill_tokens)
    computed_columns = metadata.block_idx_last_computed_token.tolist()[first_row:]
    last_columns = metadata.block_idx_last_scheduled_token.tolist()[first_row:]
    first_columns = metadata.block_idx_first_scheduled_token_p.tolist()
    computed = metadata.num_computed_tokens_p.tolist()
    has_state = metadata.has_initial_states_p.tolist()
    rows = []
    for index, table in enumerate(_tables(metadata)[1]):
        row = first_row + index
        tokens = columns.bounds.span(row, prompts, starts[index], starts[index + 1])
        first, last, source = first_columns[index], last_columns[index], computed_columns[index]
        if not tokens or not all(columns.bounds.has(row, "column", one, len(table)) for one in (first, last, source)):
            continue
        windows = _windows(tokens, computed[index], (first, last, source), window, block_size, first_token, rules)
        ends = _ends(metadata, index, starts, chunks, (first, last), computed[index], block_size)
        states = [*ends, (last, len(tokens))]
        if not all(columns.bounds.has(row, "token", count - 1, len(tokens)) for _, count in states):
            continue
        found = Cached(
            [(table[column], column, count, inputs) for column, count, inputs in windows],
            [(table[column], column, count) for column, count in states],
        )
        rows.append(
            StateRow(
                row, tokens, False, True,
                table[source], source, 0,
                table[source], source, has_state[index], has_state[index],
                [table[last]], [last], cached=found,
            )
        )  # fmt: skip
    return rows


def _windows(
    tokens: Sequence[int],
    computed: int,
    at: tuple[int, int, int],
    window: int,
    size: int,
    first_prompt: int,
    rules: frozenset[str],
) -> list[tuple[int, int, Sequence[int]]]:
    """Return the windows that the convolution stores: column, tokens of the row, inputs (positions in the batch; those
    of the row and what it read if empty)."""
    first, last, source = at
    length, boundaries = len(tokens), last - first
    tail = (length - (size - computed % size)) % size
    last_full = length - tail - (size if tail == 0 else 0)
    at_source = "source" in rules and length < window
    stored: list[tuple[int, int, Sequence[int]]] = [(source if at_source else last, length, ())]
    if "programs" not in rules:
        ends = range(last_full - (boundaries - 1) * size, last_full + 1, size)
        return [*stored, *[(first + boundary, end, ()) for boundary, end in enumerate(ends)]]
    for program in range(1, cdiv(length, _PROGRAM)):
        if program - 1 < boundaries:
            end = last_full - (boundaries - program) * size
            inputs = range(tokens[0] + end - window, tokens[0] + end)
            # The kernel gets the prompts only: what precedes them is no input.
            stored.append((first + program - 1, end, [one if one >= first_prompt else -1 for one in inputs]))
    return stored


def _ends(
    metadata: Any,
    index: int,
    starts: Sequence[int],
    chunks: bool,
    at: tuple[int, int],
    computed: int,
    size: int,
) -> list[Stored]:
    """Return the states that are stored at boundaries inside a chunk."""
    first, last = at
    length = starts[index + 1] - starts[index]
    bounds = getattr(metadata, "cu_chunk_seqlen_p", None)
    if bounds is None:  # Mamba 1 before PR #34798
        return [(first + step, (step + 1) * size) for step in range(cdiv(length, size) - 1)]
    ends, last_chunks = bounds.tolist(), metadata.last_chunk_indices_p.tolist()
    first_chunk = last_chunks[index - 1] + 1 if index else 0
    stride = size // metadata.chunk_size if chunks else 1
    if not chunks:
        steps = range(first_chunk, last_chunks[index])
        return [(first + step, ends[chunk + 1] - starts[index]) for step, chunk in enumerate(steps)]
    aligned = first_chunk + stride - 1 - computed % size // metadata.chunk_size
    return [(first + step, ends[aligned + step * stride + 1] - starts[index]) for step in range(last - first)]


def _decodes(metadata: Any) -> list[StateRow]:
    sources = metadata.block_idx_last_computed_token.tolist()
    columns = metadata.block_idx_last_scheduled_token.tolist()
    rows = []
    for row, table in enumerate(_tables(metadata)[0][: metadata.num_decode_tokens]):
        source, column = sources[row], columns[row]
        found = Cached([(table[column], column, 1, ())], [(table[column], column, 1)])
        rows.append(
            StateRow(
                row, (row,), False, False,
                table[source], source, 0,
                table[source], source, True, True,
                [table[column]], [column], cached=found,
            )
        )  # fmt: skip
    return rows


def _speculative(metadata: Any, columns: Columns, computed: bool) -> list[StateRow]:
    starts, accepted = metadata.query_start_loc_d.tolist(), metadata.num_accepted_tokens.tolist()
    conv_columns = metadata.block_idx_last_computed_token.tolist()
    last_columns = metadata.block_idx_last_scheduled_token.tolist()
    before = getattr(metadata, "block_idx_last_scheduled_token_prev_step", None)
    sources = conv_columns if before is None else before.tolist()
    conv_columns = conv_columns if computed else sources
    rows = []
    for row, table in enumerate(_tables(metadata)[0]):
        bounds, width = columns.bounds, len(table)
        tokens = bounds.span(row, range(metadata.num_decode_tokens), starts[row], starts[row + 1])
        offset = max(accepted[row] - 1, 0)
        if not tokens:
            continue
        # Before #41233 one column was gathered, and the kernel went beyond it.
        if before is None and not all(bounds.has(row, "column", one, 1) for one in (offset, len(tokens) - 1)):
            continue
        conv, last, source = conv_columns[row], last_columns[row], sources[row] + offset
        if not all(bounds.has(row, "column", one, width) for one in (conv, source, last + len(tokens) - 1)):
            continue
        outputs = range(last, last + len(tokens))
        found = Cached([(table[last], last, 1, ())], [(table[one], one, one - last + 1) for one in outputs])
        rows.append(
            StateRow(
                row, tokens, True, False,
                table[conv], conv, offset,
                table[source], source, True, True,
                [table[one] for one in outputs], list(outputs), cached=found,
            )
        )  # fmt: skip
    return rows
