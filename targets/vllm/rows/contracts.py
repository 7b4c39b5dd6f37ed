"""Contracts between state layers and the metadata that vLLM builds for them.

gdn     gated delta net (`GDNAttentionMetadataBuilder`): read in `kernel_reads`
short_conv  short convolutions (`ShortConvAttentionMetadataBuilder`): as Mamba 2, a window without a recurrent state,
        after `ShortConv.forward_cuda`
linear  plain linear attention, a recurrent state without a window: read in `linear_attention`
mamba1  Mamba 1 (`Mamba1AttentionMetadataBuilder`): as Mamba 2, after `MambaMixer.forward_impl`; its scan is compiled
mamba2  Mamba 2 (`Mamba2AttentionMetadataBuilder`): read here, after `MambaMixer2.conv_ssm_forward`. Prefills run
        first. Decode rows are speculative wherever k > 0. Since 0.32 a chunk may also leave the state at a boundary
        inside it in a block of its own (`store_prefill_checkpoint`). With ReplaySSM a decode stores its state only now
        and then: the inputs since are in a ring (`selective_state_update_replayssm_output_only`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..options import StateParts, parts_of
from .all_mode import all_rows
from .bounds import Bounds
from .kernel_reads import Columns, decode_row, in_bounds, speculative_rows, state_rows
from .layer_rows import Inner, Replay, StateRow
from .linear_attention import SKIPPED, linear_rows


class Contract(NamedTuple):
    """The metadata of a kind of state layer.

    backend  the attention backend, whose builder makes the metadata
    rows     reads the rows of one layer from it
    skipped  the state index at which kernels skip a row
    exports  True if a chunk may leave a state at a boundary inside it
    mixes    True if another kernel computes decode rows that share a batch with prefills or verifications
    parts    the parts of a state
    builder  the attention backend, where a layer names it besides `backend`
    """

    backend: Any
    rows: Callable[[Any, Columns], list[StateRow]]
    skipped: int = 0
    exports: bool = False
    mixes: bool = False
    parts: StateParts = StateParts()
    builder: Any = None


def contract(name: str, conv_width: int, mode: str = "align", block_size: int = 0) -> Contract:
    """Return the contract for the option `mixer`, a cache mode and the tokens of a mamba block."""
    from ..versions import compat, features

    skipped = features.skipped_state()
    if mode == "all":
        every = partial(
            all_rows,
            window=conv_width - 1,
            block_size=block_size,
            chunks=name == "mamba2",
            skipped=skipped,
            rules=features.window_rules(),
        )
        return Contract(compat.state_backend(name.upper()), every, skipped)
    if name == "linear":
        kind, builder = compat.state_backend("LINEAR"), compat.linear_backend()
        return Contract(kind, linear_rows, SKIPPED, parts=parts_of(name), builder=builder)
    if name in ("mamba1", "mamba2", "short_conv"):
        rows = partial(mamba2_rows, window=conv_width - 1, skipped=skipped)
        exports = name == "mamba2" and features.stores_inner_states()
        return Contract(compat.state_backend(name.upper()), rows, skipped, exports, parts=parts_of(name))
    return Contract(compat.state_backend("GDN_ATTN"), partial(state_rows, skipped=skipped), skipped, mixes=True)


def mamba2_rows(metadata: Any, columns: Columns, window: int, skipped: int = 0) -> list[StateRow]:
    """Return the rows of a Mamba 2 layer in the order in which the kernels process them.

    `window` is the number of inputs that a convolution state holds.
    """
    rows: list[StateRow] = []
    if metadata.num_prefills > 0:
        rows += _mamba2_prefills(metadata, columns, window)
    if metadata.num_decodes > 0:
        rows += (
            _mamba2_verifications(metadata, columns, skipped)
            if getattr(metadata, "query_start_loc_d", None) is not None
            else _mamba2_decodes(metadata, columns)
        )
    return in_bounds(rows, columns.bounds, skipped)


def _mamba2_prefills(metadata: Any, columns: Columns, window: int) -> list[StateRow]:
    starts = metadata.query_start_loc_p.tolist()
    blocks = _prefill_indices(metadata).tolist()
    has_conv = metadata.has_initial_states_p.tolist()
    first_row, first_token = metadata.num_decodes, metadata.num_decode_tokens
    prompts = range(first_token, first_token + metadata.num_prefill_tokens)
    has_chunks = getattr(metadata, "last_chunk_indices_p", None) is not None
    chunks = metadata.last_chunk_indices_p.tolist() if has_chunks else []
    ends = metadata.cu_chunk_seqlen_p.tolist() if has_chunks else []
    inner = _inner_states(metadata, starts, prompts, window, columns.bounds)
    rows = []
    for index, block in enumerate(blocks):
        row = first_row + index
        tokens = columns.bounds.span(row, prompts, starts[index], starts[index + 1])
        if not tokens:
            continue
        column = columns.of(row, 0, block)
        # The scan of Mamba 1 has no chunks outside of mode all: its state is that of the last token.
        folded = _chunk_end(ends, row, chunks[index], columns.bounds) - starts[index] if chunks else len(tokens)
        if not columns.bounds.has(row, "token", folded - 1, len(tokens)):
            continue
        own_chunks = range(chunks[index - 1] + 1 if index else 0, chunks[index] + 1) if chunks else range(0)
        if not _names_itself(metadata, own_chunks, index, row, columns.bounds):
            continue
        rows.append(
            StateRow(
                row, tokens, False, True,
                block, column, 0,
                block, column, has_conv[index], has_conv[index] and getattr(metadata, "prep_initial_states", True),
                [block], [column], folded, inner[index],
            )
        )  # fmt: skip
    return rows


def _names_itself(metadata: Any, chunks: range, index: int, row: int, bounds: Bounds) -> bool:
    """Return True if the scan computes a prompt's chunks as one sequence of its own; otherwise record the other prompt.

    `seq_idx_p` has a prompt's number for each chunk. Where the number changes, the scan takes up the initial state of
    that prompt; without any initial states it starts anew. In a correct batch every chunk has its own prompt's number.
    """
    named = getattr(metadata, "seq_idx_p", None)
    if named is None:
        return True
    names = named.tolist()
    own, before = names[chunks.start : chunks.stop], names[chunks.start - 1] if chunks.start else None
    if not metadata.prep_initial_states and len(set(own)) == 1 and own[0] != before:
        return True
    others = [name - index for name in own if name != index]
    return not others or bounds.has(row, "relative prompt", others[0], 1)


def _in_one(metadata: Any) -> bool:
    """Return True if the indices of decodes and prefills are in one tensor, decodes first (up to 0.16)."""
    return hasattr(metadata, "state_indices_tensor")


def _prefill_indices(metadata: Any) -> Any:
    if not _in_one(metadata):
        return metadata.state_indices_tensor_p
    first = metadata.num_decode_tokens
    return metadata.state_indices_tensor[first : first + metadata.num_prefills]


def _chunk_end(ends: Sequence[int], row: int, chunk: int, bounds: Bounds) -> int:
    """Return the number of tokens of all prompts up to the end of a chunk, 0 for a chunk that does not exist."""
    return ends[chunk + 1] if bounds.has(row, "chunk", chunk, len(ends) - 1) else 0


def _inner_states(
    metadata: Any, starts: Sequence[int], prompts: range, window: int, bounds: Bounds
) -> list[Inner | None]:
    """Return each row's state inside its chunk, None where there is none.

    The kernels locate the window by the offset and the recurrent state by the chunk's number: in a correct batch both
    name the same token. The window is taken from the inputs of the batch, even if they belong to another row.
    """
    chunks = getattr(metadata, "checkpoint_chunk_idx", None)
    if chunks is None:
        return [None] * (len(starts) - 1)
    plan, ends = metadata.checkpoint_meta, metadata.cu_chunk_seqlen_p.tolist()
    columns = (plan.checkpoint_offsets, chunks, plan.state_indices, plan.block_cols)
    found: list[Inner | None] = []
    for index, (offset, chunk, block, column) in enumerate(zip(*[one.tolist() for one in columns], strict=True)):
        row, end = metadata.num_decodes + index, starts[index] + offset
        inputs = bounds.span(row, prompts, end - window, end) if offset > 0 else ()
        last = _chunk_end(ends, row, chunk, bounds) - 1 if inputs else -1
        inside = inputs and bounds.has(row, "token", last, len(prompts))
        found.append(Inner(offset, block, column, inputs, prompts[last]) if inside else None)
    return found


def _mamba2_verifications(metadata: Any, columns: Columns, skipped: int) -> list[StateRow]:
    starts = metadata.query_start_loc_d.tolist()
    accepted: list[int] = metadata.num_accepted_tokens.tolist()
    indices = metadata.state_indices_tensor_d.tolist()

    def offset(row: int) -> int:
        """The kernels also load the count of a row that they skip, clamped to at least 1 (`maximum`)."""
        return max(accepted[row] - 1, 0) if indices[row][0] == skipped else accepted[row] - 1

    tokens = range(metadata.num_decode_tokens)
    return speculative_rows(range(len(indices)), tokens, starts, indices, offset, columns)


def _mamba2_decodes(metadata: Any, columns: Columns) -> list[StateRow]:
    """Return rows without accepted counts: kernels use the first column only, even of several (0.28 has 1 + k)."""
    rows = []
    indices = metadata.state_indices_tensor if _in_one(metadata) else metadata.state_indices_tensor_d
    decodes = indices[: metadata.num_decode_tokens]
    replays = _replays(metadata, columns.bounds)
    for row, (block, *_) in enumerate(decodes.reshape(len(decodes), -1).tolist()):
        decode = decode_row(row, row, block, columns)
        if replays is None:
            rows.append(decode)
        elif (replay := replays[row]) is not None:
            rows.append(decode._replace(replay=replay))
    return rows


def _replays(metadata: Any, bounds: Bounds) -> list[Replay | None] | None:
    """Return the replay of each decode row, None for one whose ring has no such entry; None without ReplaySSM."""
    if getattr(metadata, "write_pos_d", None) is None:
        return None
    entries = metadata.bc_pre_scratch.shape[-1]
    counts, flags = metadata.write_pos_d.tolist(), metadata.is_flush_d.tolist()
    return [
        Replay(count, bool(flag)) if bounds.has(row, "ring entry", count, entries) else None
        for row, (count, flag) in enumerate(zip(counts, flags, strict=True))
    ]
