"""Broken cache managers: admission, lookup, publication, release."""

from __future__ import annotations

from collections.abc import Sequence

from ..host.block_tables import AttentionGroup, Span
from ..host.cache_manager import Allocation, CacheManager, Hit
from ..layout import NULL_BLOCK


class AdmissionUndercountOfRevivedBlocks(CacheManager):
    """The admission check forgets blocks that are cached but free.

    vllm-ascend #11129, vLLM #46384: a hit takes its blocks out of the free queue, so they cannot be allocated.
    """

    def estimate(self, name: str, span: Span, hit: Hit | None) -> int:
        revived = [block for blocks in hit.blocks for block in blocks if block in self.pool.free] if hit else []
        return super().estimate(name, span, hit) - len(revived)


class AbortBetweenMatchAndAlloc(CacheManager):
    """Blocks taken for a prefix match leak if the request is not admitted.

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
    """A released request keeps its references to the blocks that it freed.

    SGLang #26941: the field was not cleared, so the next admission of the same request found it set and used slots
    that belong to others.
    """

    def free(self, name: str) -> None:
        for group in self.groups:
            self.pool.release(reversed(group.tables.get(name, [])))


class ConnectorMaxOfPerGroupHits(CacheManager):
    """With a connector the local hit is the longest one that any group has.

    vLLM #44243, #46453: attention blocks survive where the state was evicted, or the other way round; the request then
    resumes beyond the content of one of the groups.
    """

    def find_hit(self, tags: Sequence[int], num_tokens: int) -> Hit:
        hit, unit = super().find_hit(tags, num_tokens), self.layout.hit_unit
        limit = (num_tokens - 1) // unit * unit
        attention = [group for group in self.groups if group.kind == "attention"]
        length = min((group.find_hit(tags, limit) // unit * unit for group in attention), default=0)
        if not self.layout.prefix_caching or hit.defer or length <= hit.length:
            return hit
        blocks = tuple(
            group.hit_blocks(tags, group.find_hit(tags, length))
            if group.kind == "mamba"
            else group.hit_blocks(tags, length)
            for group in self.groups
        )
        return Hit(length, tuple((*columns, *[NULL_BLOCK] * (length // group.block_size - len(columns)))
                                 for group, columns in zip(self.groups, blocks, strict=True)))  # fmt: skip


class AdmissionUndercount(CacheManager):
    """The admission check forgets the block into which the external state is loaded.

    vllm-ascend #11129, review of vLLM #46384: the estimate for state groups was one running block and scratch.
    """

    def blocks_to_load(self, group: AttentionGroup, table: Sequence[int], hit: Hit) -> int:
        return 0 if group.kind == "mamba" else super().blocks_to_load(group, table, hit)


class EagleMarginExpandsMambaHit(CacheManager):
    """Groups of states are looked up one block further than the candidate, and never give that block up.

    vLLM #43559, #53912: attention is looked up to the candidate plus one block and then drops its last block for the
    drafter. States were looked up with the same margin but drop nothing, so the hit exceeded the attention content.
    """

    def find_hit(self, tags: Sequence[int], num_tokens: int) -> Hit:
        hit = super().find_hit(tags, num_tokens)
        if not self.layout.eagle_drop:
            return hit
        unit, length = self.layout.hit_unit, hit.length
        for group in self.groups:
            if group.kind == "mamba" and hit.length + unit < num_tokens:
                length = max(length, group.find_hit(tags, hit.length + unit) // unit * unit)
        pairs = zip(self.groups, hit.blocks, strict=True)
        return Hit(
            length,
            tuple(
                group.hit_blocks(tags, length)
                if group.kind == "mamba" and group.find_hit(tags, length) == length
                else own
                for group, own in pairs
            ),
            hit.defer,
        )


class AllGroupsEagleFallback(CacheManager):
    """Without a draft group, every group drops its last block, states included.

    vLLM #54360, #57616: plain MTP has no draft group; "none flagged" fell back to flagging all groups, and a group of
    states that drops its only state has no hit left.
    """

    def drop_for_eagle(self, tags: Sequence[int], length: int) -> int:
        length = super().drop_for_eagle(tags, length)
        if self.layout.eagle_drop and not any(group.draft for group in self.layout.groups):
            for group in self.groups:
                length = min(length, max(group.find_hit(tags, length) - group.block_size, 0))
        return length // self.layout.hit_unit * self.layout.hit_unit


class KeepAttentionHitOnMambaMiss(CacheManager):
    """The hit of the attention groups is kept although no state is cached.

    vLLM #47491, #43090: the hit length is one number for all groups, so the state kernels assume an initial state and
    read the null column.
    """

    def find_hit(self, tags: Sequence[int], num_tokens: int) -> Hit:
        hit = super().find_hit(tags, num_tokens)
        unit = self.layout.hit_unit
        length = self.drop_for_eagle(tags, (num_tokens - 1) // unit * unit)
        states = [group for group in self.groups if group.kind == "mamba"]
        if (
            hit.length
            or not states
            or not self.layout.prefix_caching
            or any(one.find_hit(tags, length) for one in states)
        ):
            return hit
        length = min([group.find_hit(tags, length) for group in self.groups if group.kind != "mamba"], default=0)
        length = length // unit * unit
        return Hit(
            length,
            tuple(
                [NULL_BLOCK] * (length // group.block_size) if group.kind == "mamba" else group.hit_blocks(tags, length)
                for group in self.groups
            ),
        )


class PublishBeforeCommit(CacheManager):
    """A request that is preempted out of the step being planned leaves its keys behind.

    vLLM #43569, #56525, #57580: keys are published when a chunk is planned; priority preemption removes the chunk from
    the step but not its keys.
    """

    def withdraw(self, name: str) -> None:
        pass


class UnfinishedInsertNotTransactional(CacheManager):
    """Keys are published before the admission check, and stay when it fails.

    SGLang #29349: an insertion that was rejected half-way left its provisional state in the tree.
    """

    def allocate(self, name: str, tags: Sequence[int], span: Span, hit: Hit | None) -> Allocation | None:
        if hit is None and self.layout.prefix_caching:
            for group in self.groups:
                group.publish(name, tags, min(span.known, len(group.tables[name]) * group.block_size))
        return super().allocate(name, tags, span, hit)


class ZeroListNeverDrained(CacheManager):
    """Blocks to zero are recorded for every model, but drained only for hybrid ones.

    vLLM #44175, #44490: with pure attention models the list grew without bound.
    """

    def take_blocks_to_zero(self) -> list[int]:
        return super().take_blocks_to_zero() if self.layout.zeroing else []


PARTS: dict[str, type] = {
    "admission-undercount-of-revived-blocks": AdmissionUndercountOfRevivedBlocks,
    "abort-between-match-and-alloc-leak": AbortBetweenMatchAndAlloc,
    "dangling-ping-pong-ref": DanglingPingPongReference,
    "connector-max-of-per-group-hits": ConnectorMaxOfPerGroupHits,
    "admission-undercount": AdmissionUndercount,
    "eagle-margin-expands-mamba-hit": EagleMarginExpandsMambaHit,
    "all-groups-eagle-fallback": AllGroupsEagleFallback,
    "keep-attention-hit-on-mamba-miss": KeepAttentionHitOnMambaMiss,
    "publish-before-commit": PublishBeforeCommit,
    "unfinished-insert-not-transactional": UnfinishedInsertNotTransactional,
    "zero-list-never-drained": ZeroListNeverDrained,
}
