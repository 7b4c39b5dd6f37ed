"""Null block, stale rows, padding, dummy runs."""

from __future__ import annotations

from ..batch import Batch
from ..kernels import Kernels


class NullAsStateSlot(Kernels):
    """Kernels take the null block for an ordinary slot.

    vLLM #33937 (closed), fixed the other way round by #35431: block 0 is a legal placeholder in tables, but padding
    rows and requests with a null column read and wrote state in that one shared block.
    """

    def is_null(self, block: int) -> bool:
        return False


class FinishedRowNotCleared(Batch):
    """The row of a finished request keeps its block ids.

    vLLM #37728: a dummy run of a rank that ran dry reads column 0 of whatever its rows still hold and writes state
    into blocks that are free, and still reachable by hits.
    """

    def clear_row(self, row: int) -> None:
        pass


PARTS: dict[str, type] = {
    "null-as-state-slot": NullAsStateSlot,
    "finished-row-not-cleared": FinishedRowNotCleared,
}
