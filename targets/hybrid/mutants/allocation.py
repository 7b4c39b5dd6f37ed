"""Blocks handed out, kept and given back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..cache import Allocation, CacheManager, Hit
from ..groups import MambaGroup, Span
from ..pool import NULL_BLOCK, BlockPool


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


class LookaheadPageMissing(MambaGroup):
    """The table ends one column before the last draft's.

    vLLM #41884, #57605: allocation counted the main model's tokens only; the column that the accepted count selects
    is beyond the list.
    """

    def columns(self, tokens: int) -> int:
        return super().columns(tokens) - (self.speculative > 0)


class RequiredBelowAllocated(MambaGroup):
    """A request that needs fewer columns than it has gives the surplus back.

    vLLM #39271, #43382: fewer drafts, or rejected ones, make the requirement shrink; that must change nothing, because
    the worker's table only ever grows.
    """

    def extend(self, name: str, span: Span) -> list[int]:
        table, required = self.tables[name], self.columns(span.high)
        self.pool.release(reversed(table[required:]))
        del table[required:]
        return super().extend(name, span)


class AdmissionUndercount(CacheManager):
    """The admission check forgets blocks that are cached but free.

    vllm-ascend #11129, vLLM #46384: a hit takes its blocks out of the free queue, so they are not there for others.
    """

    def estimate(self, name: str, span: Span, hit: Hit | None) -> int:
        revived = [block for blocks in hit.blocks for block in blocks if block in self.pool.free] if hit else []
        return super().estimate(name, span, hit) - len(revived)


class AbortBetweenMatchAndAlloc(CacheManager):
    """What was taken for a match is not given back when the request is not admitted after all.

    SGLang #12693, #20182, #16067: the slot of a match was allocated first; a rejected admission leaked it.
    """

    def allocate(self, name: str, tags: Sequence[int], span: Span, hit: Hit | None) -> Allocation | None:
        allocation = super().allocate(name, tags, span, hit)
        if allocation is None and hit is not None:
            for block in hit.blocks[0]:
                if block != NULL_BLOCK:
                    self.pool.touch(block)
        return allocation


class DanglingPingPongReference(CacheManager):
    """A released request keeps naming the blocks that it gave back.

    SGLang #26941: the field was not cleared, so the next admission of the same request found it set and used slots
    that belong to others.
    """

    def free(self, name: str) -> None:
        for group in self.groups:
            self.pool.release(reversed(group.tables.get(name, [])))


PARTS: dict[str, type] = {
    "null-id-not-zero": NullIdNotZero,
    "sentinel-1-freed": SentinelFreed,
    "lookahead-page-missing": LookaheadPageMissing,
    "required-below-allocated": RequiredBelowAllocated,
    "admission-undercount-of-revived-blocks": AdmissionUndercount,
    "abort-between-match-and-alloc-leak": AbortBetweenMatchAndAlloc,
    "dangling-ping-pong-ref": DanglingPingPongReference,
}
