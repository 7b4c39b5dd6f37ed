"""Broken block pools: reserved ids and the null block."""

from __future__ import annotations

from collections.abc import Iterable

from ..host.block_pool import BlockPool
from ..layout import NULL_BLOCK


class NullIdNotZero(BlockPool):
    """The pool reserves another block than block 0 as its null block.

    kvcached #398: every state kernel skips block 0 on reads and writes, so the request that gets it has no state.
    """

    def usable(self, num_blocks: int) -> range:
        return range(num_blocks - 1)


class SentinelFreed(BlockPool):
    """Placeholders are returned to the free queue like blocks.

    SGLang #40250: a buffer entry that was never allocated held -1 and was put on the free list.
    """

    def release(self, blocks: Iterable[int]) -> None:
        blocks = list(blocks)
        super().release(blocks)
        if NULL_BLOCK in blocks:
            self.free[NULL_BLOCK] = None


PARTS: dict[str, type] = {
    "null-id-not-zero": NullIdNotZero,
    "sentinel-1-freed": SentinelFreed,
}
