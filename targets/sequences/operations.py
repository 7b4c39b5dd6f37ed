"""What a client does with sequences, as plain data.

A trace is turned into these by `client`; `executor` executes them on a memory, and a target's scripts write them down
as calls of its engine. `sequence` is the memory's number of one. Starts and lengths
count tokens of a sequence; where its first token stands (`Shift`) is added by `executor`.
"""

from __future__ import annotations

from msgspec import Struct


class Tokens(Struct, frozen=True):
    """Tokens of one sequence in a batch.

    start    position of the first
    tokens   drafts last
    wanted   how many of them, from the last, ask for logits
    """

    sequence: int
    start: int
    tokens: tuple[int, ...]
    wanted: int


class Decode(Struct, frozen=True):
    """One batch: `llama_decode`."""

    rows: tuple[Tokens, ...]


class Checkpoint(Struct, frozen=True):
    """The recurrent state of a sequence is saved, before drafts that `GoBack` may have to reject."""

    sequence: int


class GoBack(Struct, frozen=True):
    """The state of the checkpoint is restored, positions from `start` on are removed, and `tokens` are decoded again:
    the accepted ones."""

    sequence: int
    start: int
    tokens: tuple[int, ...]


class RollBack(Struct, frozen=True):
    """Positions from `length` on are removed. If that is refused, the sequence is removed and `tokens`, all that it is
    to hold, are decoded again."""

    sequence: int
    length: int
    tokens: tuple[int, ...]


class Cut(Struct, frozen=True):
    """Positions from `length` on are removed; it may be refused, and nothing has changed then."""

    sequence: int
    length: int


class Remove(Struct, frozen=True):
    """A sequence is removed."""

    sequence: int


class Copy(Struct, frozen=True):
    """`target`, which is empty, becomes a copy of `source`."""

    source: int
    target: int


class Keep(Struct, frozen=True):
    """All sequences but one are removed."""

    sequence: int


class Clear(Struct, frozen=True):
    """All sequences are removed; the content of the memory stays."""


class Shift(Struct, frozen=True):
    """All positions of a sequence move up by so many; it may be refused, and nothing has changed then."""

    sequence: int
    by: int


class Save(Struct, frozen=True):
    """The state of a sequence is copied to the client."""

    name: str
    sequence: int


class Restore(Struct, frozen=True):
    """A saved state becomes the content of a sequence."""

    name: str
    sequence: int


class CopySaved(Struct, frozen=True):
    """A saved state is saved under another name, too."""

    name: str
    parent: str


class Forget(Struct, frozen=True):
    """A saved state is dropped."""

    name: str


Operation = (
    Decode
    | Checkpoint
    | GoBack
    | RollBack
    | Cut
    | Remove
    | Copy
    | Keep
    | Clear
    | Shift
    | Save
    | Restore
    | CopySaved
    | Forget
)
