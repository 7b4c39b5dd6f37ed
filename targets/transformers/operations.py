"""What a client of transformers does with a cache, as plain data.

A trace is turned into these by `client`; `target` executes them on caches, and `repro` writes them down as calls of the
public API. Rows are rows of the batch, columns are positions of the padded batch.
"""

from __future__ import annotations

from msgspec import Struct


class Begin(Struct, frozen=True):
    """A batch of `rows` rows begins: with a new cache, or with the one that was emptied in place (`reused`)."""

    rows: int
    reused: bool = False


class Feed(Struct, frozen=True):
    """One forward of the columns from `start` on.

    tokens     by row and column; the padding token where `mask` is 0
    mask       the attention mask of all columns so far, 1 for a token
    positions  position of each token in its row, 0 for padding
    drafts     how many of the tokens are drafts that the next operation may crop
    """

    start: int
    tokens: tuple[tuple[int, ...], ...]
    mask: tuple[tuple[int, ...], ...]
    positions: tuple[tuple[int, ...], ...]
    drafts: int = 0


class Crop(Struct, frozen=True):
    """The cache forgets its last `tokens` columns."""

    tokens: int


class Select(Struct, frozen=True):
    """Only these rows stay, in this order."""

    rows: tuple[int, ...]


class Reorder(Struct, frozen=True):
    """Each row takes over the row with this index."""

    rows: tuple[int, ...]


class Repeat(Struct, frozen=True):
    """Each row is repeated, its copies behind it."""

    times: int


class Reset(Struct, frozen=True):
    """The cache is emptied in place."""


class Store(Struct, frozen=True):
    """The cache is kept for the next turn of a session."""

    name: str


class Load(Struct, frozen=True):
    """The kept cache of a session is used again."""

    name: str


class Copy(Struct, frozen=True):
    """A kept cache is copied (`copy.deepcopy`) for another session."""

    name: str
    parent: str


class Forget(Struct, frozen=True):
    """A kept cache is dropped; with name "" that of the batch."""

    name: str = ""


Operation = Begin | Feed | Crop | Select | Reorder | Repeat | Reset | Store | Load | Copy | Forget
