"""Rows of plain linear attention (lightning attention): a recurrent state without a convolution.

Follows `MiniMaxText01LinearAttention._forward` and, where the release has it, `BailingMoELinearAttention._forward` with
vLLM's builders of that name. Both clear the state of a prompt without a context
(`clear_linear_attention_cache_for_new_sequences`) and compute the prefills one after the other, then all decodes:

    prefill   `kv_cache[slot_id]` is read and stored for every index; a state that was cleared counts as none
    decode    `_linear_attn_decode_kernel`: "if slot_id == -1: return" (since 0.32 `pad_slot_id`, with the same value).
              It has no notion of a row without a state. Block 0 is a state like any other
    drafts    `_bailing_linear_attn_decode_spec_step_kernel`: token t reads the state of token t - 1, the first one that
              at accepted - 1 (clamped to the columns), and stores to column t

Releases before Bailing's builder read the index of every row from `state_indices_tensor`, decodes first.
"""

from __future__ import annotations

from typing import Any

from .kernel_reads import Columns, decode_row, in_bounds, speculative_rows
from .layer_rows import StateRow

SKIPPED = -1
"""The state index at which the kernels skip a row (`PAD_SLOT_ID`), also where others skip the null block."""


def linear_rows(metadata: Any, columns: Columns) -> list[StateRow]:
    """Return the rows of a layer in the order in which it computes them."""
    rows: list[StateRow] = []
    if metadata.num_prefills > 0:
        rows += _linear_prefills(metadata, columns)
    if metadata.num_decode_tokens > 0:
        speculative = getattr(metadata, "num_accepted_tokens", None) is not None
        rows += _verifications(metadata, columns) if speculative else _linear_decodes(metadata, columns)
    return in_bounds(rows, columns.bounds, SKIPPED)


def _linear_prefills(metadata: Any, columns: Columns) -> list[StateRow]:
    starts, lengths = metadata.query_start_loc.tolist(), metadata.seq_lens.tolist()
    own = getattr(metadata, "state_indices_tensor_p", None)
    # MiniMax's layer counts rows by tokens: each decode has one.
    first = metadata.num_decode_tokens if own is None else metadata.num_decodes
    blocks = metadata.state_indices_tensor.tolist()[first:] if own is None else own.tolist()
    tokens = range(metadata.num_decode_tokens + metadata.num_prefill_tokens)
    rows = []
    for index, block in enumerate(blocks[: metadata.num_prefills]):
        row = first + index
        span = columns.bounds.span(row, tokens, starts[row], starts[row + 1])
        if not span:
            continue
        column = columns.of(row, 0, block)
        has_state = lengths[row] != len(span)
        rows.append(
            StateRow(row, span, False, True, block, column, 0, block, column, False, has_state, [block], [column])
        )
    return rows


def _linear_decodes(metadata: Any, columns: Columns) -> list[StateRow]:
    """Return decode rows: the kernel has a program for each token, which takes the index of that row."""
    own = getattr(metadata, "state_indices_tensor_d", None)
    blocks = (metadata.state_indices_tensor if own is None else own).tolist()[: metadata.num_decodes]
    decodes = enumerate(blocks[: metadata.num_decode_tokens])
    return [decode_row(row, row, block, columns, has_conv=False) for row, block in decodes]


def _verifications(metadata: Any, columns: Columns) -> list[StateRow]:
    starts, accepted = metadata.query_start_loc_d.tolist(), metadata.num_accepted_tokens.tolist()
    indices = metadata.state_indices_tensor_d.tolist()[: metadata.num_decodes]

    def offset(row: int) -> int | None:
        """The kernel clamps the count to the columns."""
        return None if indices[row][0] == SKIPPED else min(max(accepted[row] - 1, 0), len(indices[row]) - 1)

    tokens = range(metadata.num_decode_tokens)
    return speculative_rows(range(len(indices)), tokens, starts, indices, offset, columns)
