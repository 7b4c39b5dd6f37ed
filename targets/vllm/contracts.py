"""Contracts between state layers and the metadata that vLLM builds for them.

gdn     gated delta net (`GDNAttentionMetadataBuilder`): read in `metadata`
mamba2  Mamba 2 (`Mamba2AttentionMetadataBuilder`): read here, after `MambaMixer2.conv_ssm_forward`. Prefills run
        first. Decode rows are speculative wherever k > 0. Since 0.32 a chunk may also leave the state at a boundary
        inside it in a block of its own (`store_prefill_checkpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .metadata import Columns, StateRow, state_rows


class Contract(NamedTuple):
    """A kind of state layer: which builder makes its metadata, how rows are read from it, and whether its chunks may
    leave a state inside them."""

    backend: Any
    rows: Callable[[Any, Columns], list[StateRow]]
    exports: bool = False


def contract(name: str) -> Contract:
    """The contract of the option `mixer`."""
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

    if name == "mamba2":
        return Contract(MambaAttentionBackendEnum.MAMBA2, mamba2_rows, exports=True)
    return Contract(MambaAttentionBackendEnum.GDN_ATTN, state_rows)


def mamba2_rows(metadata: Any, columns: Columns) -> list[StateRow]:
    """The rows of a Mamba 2 layer, in the order in which the kernels process them."""
    rows: list[StateRow] = []
    if metadata.num_prefills > 0:
        rows += _prefill_rows(metadata, columns)
    if metadata.num_decodes > 0:
        rows += (
            _speculative_rows(metadata, columns)
            if metadata.query_start_loc_d is not None
            else _decode_rows(metadata, columns)
        )
    return rows


def _prefill_rows(metadata: Any, columns: Columns) -> list[StateRow]:
    starts = metadata.query_start_loc_p.tolist()
    blocks = metadata.state_indices_tensor_p.tolist()
    has_conv = metadata.has_initial_states_p.tolist()
    folded, inner = _chunk_ends(metadata, starts), _inner_states(metadata, starts)
    first_row, first_token = metadata.num_decodes, metadata.num_decode_tokens
    rows = []
    for index, block in enumerate(blocks):
        tokens = range(first_token + starts[index], first_token + starts[index + 1])
        if not tokens:
            continue
        row = first_row + index
        column = columns.of(row, 0, block)
        rows.append(
            StateRow(
                row, tokens, False, True,
                block, column, 0,
                block, column, has_conv[index], has_conv[index] and metadata.prep_initial_states,
                [block], [column], folded[index], inner[index],
            )
        )  # fmt: skip
    return rows


def _chunk_ends(metadata: Any, starts: Sequence[int]) -> list[int]:
    """Tokens of each row in the state that is stored: up to the end of the chunk that counts as its last."""
    ends = metadata.cu_chunk_seqlen_p.tolist()
    return [ends[chunk + 1] - starts[row] for row, chunk in enumerate(metadata.last_chunk_indices_p.tolist())]


def _inner_states(metadata: Any, starts: Sequence[int]) -> list[tuple[int, int, int] | None]:
    """(tokens folded in, block, its column) of each row's state inside its chunk, None where there is none.

    The window is found by the offset and the temporal state by the chunk's number: they must mean the same token.
    """
    chunks = getattr(metadata, "checkpoint_chunk_idx", None)
    if chunks is None:
        return [None] * (len(starts) - 1)
    ends = metadata.cu_chunk_seqlen_p.tolist()
    plan = metadata.checkpoint_meta
    places = zip(plan.state_indices.tolist(), plan.block_cols.tolist(), strict=True)
    found: list[tuple[int, int, int] | None] = []
    for row, (offset, chunk, (block, column)) in enumerate(
        zip(plan.checkpoint_offsets.tolist(), chunks.tolist(), places, strict=True)
    ):
        assert not offset or ends[chunk + 1] - starts[row] == offset, "window and state of a checkpoint differ"
        found.append((offset, block, column) if offset else None)
    return found


def _speculative_rows(metadata: Any, columns: Columns) -> list[StateRow]:
    starts = metadata.query_start_loc_d.tolist()
    accepted = metadata.num_accepted_tokens.tolist()
    rows = []
    for row, blocks in enumerate(metadata.state_indices_tensor_d.tolist()):
        tokens = range(starts[row], starts[row + 1])
        if not tokens:
            continue
        offset, outputs = accepted[row] - 1, blocks[: len(tokens)]
        rows.append(
            StateRow(
                row, tokens, True, False,
                blocks[0], columns.of(row, 0, blocks[0]), offset,
                blocks[offset], columns.of(row, offset, blocks[offset]), True, True,
                outputs, [columns.of(row, draft, block) for draft, block in enumerate(outputs)],
            )
        )  # fmt: skip
    return rows


def _decode_rows(metadata: Any, columns: Columns) -> list[StateRow]:
    rows = []
    for row, (block,) in enumerate(metadata.state_indices_tensor_d[: metadata.num_decode_tokens].tolist()):
        column = columns.of(row, 0, block)
        rows.append(StateRow(row, (row,), False, False, block, column, 0, block, column, True, True, [block], [column]))
    return rows
