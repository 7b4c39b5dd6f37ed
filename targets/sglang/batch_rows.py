"""The rows of a launched batch, as read from SGLang's tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..base.observe import OutOfRange

PADDING_TOKEN = 0
NO_STATE = -1
"""State slot of a padding row in a captured graph: kernels leave such a row out."""


class Replay(NamedTuple):
    """A decode of ReplaySSM, which folds the first `entries` inputs of a slot's ring into its stored state.

    flushes  True if the new state is stored, False if the input is appended to the ring at index `entries`
    """

    entries: int
    flushes: bool


class Tree(NamedTuple):
    """What attention reads of a row's tree of drafts.

    parents   of the drafts, as the drafter made the tree (`reference.draft_trees`)
    visible   by token: those of the row to which it attends, itself included; None if it does not see the whole prefix
    positions by token
    fillers   how many of the last drafts are padding
    """

    parents: tuple[int, ...]
    visible: tuple[tuple[int, ...] | None, ...]
    positions: tuple[int, ...]
    fillers: int = 0


class Links(NamedTuple):
    """By token of a row: the one behind which a kernel of state layers computes it. That of the first is not read.

    window  of the convolution
    state   of the recurrence
    """

    window: tuple[int, ...]
    state: tuple[int, ...]


class Row(NamedTuple):
    """One row of a batch.

    `tokens` is None if the token is the one that the row's last forward sampled. A row with an index out of range
    (`outside`) is not computed.
    """

    name: str | None
    pool_row: int
    prefix: int
    num_tokens: int
    tokens: tuple[int, ...] | None
    samples: bool
    slot: int
    slots: tuple[int, ...]
    locations: Sequence[int]
    written: Sequence[int]
    drafts: int = 0
    guessed: int = 0
    """How many of the first drafts the stand-in for the draft model guesses right."""
    key: int = 0
    """What the adapter of its request adds to the content of each token."""
    contents: tuple[int, ...] | None = None
    """Of `tokens`, None if that is the number of each token and the key."""
    outside: OutOfRange | None = None
    columns: int | None = None
    """Of the batch's table of pages, in tokens; None for as many as there can be."""
    place: int = 0
    reads: Sequence[int] = ()
    writes: Sequence[int] = ()
    """Where the contents are of its slot, its locations and those that it writes (`compat.memory`)."""
    window_locations: Sequence[int] = ()
    window_written: Sequence[int] = ()
    """The same in the pool of layers with a sliding window; for each position of the row, what it has no more is 0."""
    window_reads: Sequence[int] = ()
    window_writes: Sequence[int] = ()
    """Where the contents of these are."""
    replay: Replay | None = None
    """The ring of inputs since the stored state, where decodes replay it."""
    tree: Tree | None = None
    """Of its drafts, None for a chain."""
    links: Links | None = None
    """Of its tokens for layers with states, None if each comes behind the one before it."""

    @property
    def end(self) -> int:
        """Return the number of tokens that are computed after the row."""
        return self.prefix + self.num_tokens

    @property
    def has_state(self) -> bool:
        """Return True if kernels of state layers compute the row."""
        return not self.outside and (self.name is not None or self.slot != NO_STATE)
