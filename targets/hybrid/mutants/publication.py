"""Which content is published under which key, and when."""

from __future__ import annotations

from collections.abc import Sequence

from ....reference.prefix_cache import Key
from ..cache import Allocation, CacheManager, Hit
from ..groups import MambaGroup, Span
from ..pool import NULL_BLOCK


class PublishBeforeCommit(CacheManager):
    """A request that is preempted out of the step being planned leaves its keys behind.

    vLLM #43569, #56525, #57580: keys are published when a chunk is planned; priority preemption takes the chunk out of
    the step again, but not its keys.
    """

    def withdraw(self, name: str) -> None:
        pass


class HitBeforeCommit(MambaGroup):
    """A state may be hit in the very step that is to write it.

    vLLM #41400, #43569: the guard that defers such a hit was cleared too early.
    """

    def must_defer(self, blocks: Sequence[int]) -> bool:
        return False


class UnfinishedInsertNotTransactional(CacheManager):
    """Keys are published before the pool is asked, and stay when it has no block.

    SGLang #29349: an insertion that was rejected half-way left its provisional state in the tree.
    """

    def allocate(self, name: str, tags: Sequence[int], span: Span, hit: Hit | None) -> Allocation | None:
        if hit is None and self.layout.prefix_caching:
            for group in self.groups:
                group.publish(name, tags, min(span.known, len(group.tables[name]) * group.block_size))
        return super().allocate(name, tags, span, hit)


class CommitAtWrongSemanticPosition(MambaGroup):
    """The live state at the end of a chunk is committed as the state of the boundary before it.

    SGLang #15653, #16598: the scheduler ignored the chunk points at which snapshots are taken.
    """

    def publish(self, name: str, tags: Sequence[int], tokens: int) -> None:
        super().publish(name, tags, tokens)
        column, beyond = divmod(tokens, self.block_size)
        table = self.tables[name]
        if self.mode != "none" and beyond and 0 < column < len(table):
            block, depth = table[column], column * self.block_size
            if block != NULL_BLOCK and block not in self.pool.labels:
                self.pool.publish(block, Key(self.index, depth, tags[depth]))


class AllGroupsEagleInsertsNothing(MambaGroup):
    """Where no group belongs to the drafter, no boundary of a state is left to be inserted.

    vLLM #57616, #54360: "none flagged" fell back to flagging all groups; the boundaries worth keeping were then
    rounded down to nothing, and hits stayed 0. The other half of all-groups-eagle-fallback.
    """

    def publish_column(self, block: int, column: int, tags: Sequence[int]) -> None:
        if not self.layout.eagle_drop or any(group.draft for group in self.layout.groups):
            super().publish_column(block, column, tags)


PARTS: dict[str, type] = {
    "publish-before-commit": PublishBeforeCommit,
    "hit-before-commit": HitBeforeCommit,
    "unfinished-insert-not-transactional": UnfinishedInsertNotTransactional,
    "commit-at-wrong-semantic-position": CommitAtWrongSemanticPosition,
    "all-groups-eagle-inserts-nothing": AllGroupsEagleInsertsNothing,
}
