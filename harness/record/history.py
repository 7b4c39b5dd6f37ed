"""The history of blocks in one run, as plain data: allocations, writes, keys, hits, zeroing, copies, releases.

It is built from records and views alone (`history_builder`). Explanations and timelines are made from it alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from ..judge.violation import Violation

What = Literal[
    "alloc",
    "hit",
    "release",
    "free",
    "hash",
    "drop",
    "write",
    "read",
    "dead write",
    "zero",
    "copy",
    "copied",
    "load",
    "violation",
]


class Moment(Struct, frozen=True):
    """One event of the run, draining steps included. `steps` are those it planned or executed.

    waiting  requests that wait at its end, in queue order
    free     pool -> its blocks in the free queue at its end; nothing if there was no view, or no pool
    """

    event: int
    kind: str
    label: str
    steps: tuple[int, ...] = ()
    waiting: tuple[str, ...] = ()
    free: Mapping[str, int] = {}


class Mark(Struct, frozen=True):
    """Something that happened to a block.

    moment   index into `History.moments`
    step     the step that planned it
    who      the request, or a name like "padding row 3"
    content  what was written, read or published, in words
    other    the other block of a copy
    """

    moment: int
    step: int
    block: int
    what: What
    who: str = ""
    group: int = -1
    column: int = -1
    content: str = ""
    other: int = -1


class RequestStep(Struct, frozen=True):
    """One request in one step. `accepted` counts sampled tokens, -1 if the step was planned and never executed.
    `external` counts tokens that are loaded from outside the pool."""

    moment: int
    step: int
    request: str
    start: int
    num_tokens: int
    drafts: int
    admitted: bool
    hit: int
    accepted: int = -1
    kept: int = 0
    external: int = 0


class History(Struct, frozen=True):
    """The history of a whole run.

    groups      (kind, block size) each
    null_block  -1 where the target has none
    wanted      the state that the violation expected, as `Mark.content` names it; "" if none
    """

    num_blocks: int = 0
    groups: tuple[tuple[str, int], ...] = ()
    null_block: int = -1
    moments: tuple[Moment, ...] = ()
    marks: tuple[Mark, ...] = ()
    request_steps: tuple[RequestStep, ...] = ()
    violation: Violation | None = None
    wanted: str = ""
