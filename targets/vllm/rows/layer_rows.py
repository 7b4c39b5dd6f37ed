"""The metadata of one layer as plain rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Inner(NamedTuple):
    """A state that a prefill leaves at a boundary inside it.

    folded  tokens of the row folded in
    inputs  positions in the batch of the inputs that make the window
    last    position in the batch of the token after which the recurrent state is taken
    """

    folded: int
    block: int
    column: int
    inputs: Sequence[int]
    last: int


class Cached(NamedTuple):
    """The states that a row of mode all stores: (block, column, tokens of the row folded in) each.

    windows  with the positions in the batch of the inputs that make the window; () if it comes from the row's own
             history
    """

    windows: Sequence[tuple[int, int, int, Sequence[int]]]
    states: Sequence[tuple[int, int, int]]


class Replay(NamedTuple):
    """A decode of ReplaySSM, which folds the first `entries` inputs of a block's ring into its stored state.

    flushes  True if the new state is stored, False if the input is appended to the ring at index `entries`
    """

    entries: int
    flushes: bool


class StateRow(NamedTuple):
    """One row of a state layer.

    tokens     positions of the row's tokens in the batch
    conv       block of the convolution buffer; offset of the window in it
    temporal   block of the initial temporal state
    columns    of `conv`, `temporal` and of each of `outputs`; -1 where unknown
    outputs    blocks to write: one per token (speculative), else one for the last
    has_conv, has_temporal  True if there is an initial window, an initial state
    prefill    True if the recurrence runs in the prefill kernel
    folded     tokens in the state that a prefill stores, None for all
    inner      a state inside a prefill
    cached     mode all: what is stored, in place of `outputs`
    replay     the ring of inputs since the stored state, where decodes replay it
    """

    row: int
    tokens: Sequence[int]
    speculative: bool
    prefill: bool
    conv: int
    conv_column: int
    offset: int
    temporal: int
    temporal_column: int
    has_conv: bool
    has_temporal: bool
    outputs: Sequence[int]
    output_columns: Sequence[int]
    folded: int | None = None
    inner: Inner | None = None
    cached: Cached | None = None
    replay: Replay | None = None


KERNELS = ("prefill", "verification", "decode", "decode beside others")
"""What computes a row of a state layer."""


def kernels_of(rows: Sequence[StateRow], mixes: bool) -> dict[int, str]:
    """Return the one of `KERNELS` that computes each row; `mixes` as in `Contract`."""
    beside = mixes and any(row.prefill or row.speculative for row in rows)
    decode = "decode beside others" if beside else "decode"
    return {row.row: "prefill" if row.prefill else "verification" if row.speculative else decode for row in rows}


class SlotRow(NamedTuple):
    """One row of an attention layer.

    start    first position that the row computes; negative in a dummy run whose row is shorter than its query
    tokens   positions of the row's tokens in the batch
    pages    blocks that hold what the row attends to, own tokens included
    context  number of positions in the row's whole context
    blocks, slots  destination of the key and value of each stored token
    stored   indices of the tokens that are stored (a slot of -1 drops one)
    first_column  column of the first of `pages`
    is_first  True unless this is a later part of a row that local attention cut at the chunks of its context
    """

    row: int
    start: int
    tokens: range
    pages: Sequence[int]
    context: int
    blocks: Sequence[int]
    slots: Sequence[int]
    stored: Sequence[int]
    first_column: int = 0
    is_first: bool = True
