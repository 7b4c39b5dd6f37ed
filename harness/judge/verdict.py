"""Values of a verdict: what an oracle expected and what it found, as data.

Oracles make them, `sentences` puts them into words, and whoever groups or reproduces failures reads them as they are.
None of them depends on a relation or an oracle. Numbers and lists of tokens are values, too; a plain text is a word of
the protocol (the name of a list, a kind of a group) or an engine's own, which `Quoted` marks.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from ...reference.ledger import BlockHistory, DeadRow
from ...reference.prefix_cache import Key


class Request(Struct, frozen=True, tag=True):
    """A request, by its name in the trace."""

    name: str


class Row(Struct, frozen=True, tag=True):
    """A row of the batch without a request: of a dummy run, or padding."""

    index: int
    dummy: bool = False


class Requests(Struct, frozen=True, tag=True):
    """Several requests, in order."""

    names: tuple[str, ...]


class Batch(Struct, frozen=True, tag=True):
    """The requests in the rows of a batch, in order."""

    names: tuple[str, ...]


class Holders(Struct, frozen=True, tag=True):
    """The requests that hold a block, each with the column that has it."""

    columns: tuple[tuple[str, int], ...]


class Prefix(Struct, frozen=True, tag=True):
    """A sequence of tokens: a request's own, those that it had before its last edit (`before`), or, without a request,
    those that a published key of depth `cached` names."""

    request: str = ""
    before: bool = False
    cached: int = 0


class StateOf(Struct, frozen=True, tag=True):
    """The recurrent state after the first `depth` tokens of a prefix."""

    prefix: Prefix
    depth: int


class PartOf(Struct, frozen=True, tag=True):
    """What belongs to one position of a prefix: its keys and values, or its input in a convolution window."""

    prefix: Prefix
    position: int
    part: str


class WindowOf(Struct, frozen=True, tag=True):
    """A convolution window, by its first input that is wrong; None if the window is too short to have it."""

    index: int
    found: Found | None


class Empty(Struct, frozen=True, tag=True):
    """The state before the first token."""


class Zeroed(Struct, frozen=True, tag=True):
    """Memory that was zeroed and not written since."""


class Foreign(Struct, frozen=True, tag=True):
    """Bytes of another dtype: of another group's page."""


class Unknown(Struct, frozen=True, tag=True):
    """Content that is of no known prefix: a state, or a part of a position."""

    state: bool


class Block(Struct, frozen=True, tag=True):
    """A block, by its id; -1 for none."""

    number: int


class KeyOf(Struct, frozen=True, tag=True):
    """The key of a published block."""

    group: int
    depth: int
    tag: int


class Past(Struct, frozen=True, tag=True):
    """What happened last to a page of a block: it was written, or handed out ("allocated"), maybe zeroed since.

    The null block ("null") has no history.
    """

    what: Literal["null", "never", "written", "allocated", "zeroed"]
    by: Request | Row | None = None
    step: int = -1


class Because(Struct, frozen=True, tag=True):
    """A clause about the origin of a wrong number: the id of a relation and its values."""

    relation: str
    details: dict[str, Value] = {}


class Tokens(Struct, frozen=True, tag=True):
    """Ids of tokens, in order."""

    ids: tuple[int, ...]


class Quoted(Struct, frozen=True, tag=True):
    """Text of an engine, an adapter or a process: the words of no oracle."""

    text: str


Found: TypeAlias = StateOf | PartOf | Empty | Zeroed | Foreign | Unknown
"""What a tag stands for."""
Value: TypeAlias = (
    int | float | str | Request | Row | Requests | Batch | Holders | Prefix | StateOf | PartOf | WindowOf | Empty
    | Zeroed | Foreign | Unknown | Block | KeyOf | Past | Because | Tokens | Quoted | None
)  # fmt: skip


def who(writer: str | DeadRow) -> Request | Row:
    """Return a request or a dead row, by what the reference calls it."""
    return Row(writer.row, writer.dummy) if isinstance(writer, DeadRow) else Request(writer)


def past(history: BlockHistory) -> Past:
    """Return the history of a page, from the reference's ledger."""
    return Past(history.what, None if history.by is None else who(history.by), history.step)


def key_of(key: Key | None) -> KeyOf | None:
    """Return a key of the reference as a value."""
    return None if key is None else KeyOf(*key)


def owner_of(value: Value) -> str:
    """Return the request whose own content a value is, "" if it is nobody's, or that of a prefix."""
    if isinstance(value, WindowOf):
        return owner_of(value.found)
    if isinstance(value, StateOf | PartOf) and not value.prefix.before:
        return value.prefix.request
    return ""
