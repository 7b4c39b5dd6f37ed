"""Broken block tables of one group: allocation and publication."""

from __future__ import annotations

from collections.abc import Sequence

from ....reference.prefix_cache import Key
from ..host.block_tables import AttentionGroup, MambaGroup, Span
from ..layout import NULL_BLOCK


class LookaheadPageMissing(MambaGroup):
    """The table ends one column before the last draft's.

    vLLM #41884, #57605: allocation counted only the main model's tokens; the column that the accepted count selects
    is beyond the table.
    """

    def columns(self, tokens: int) -> int:
        return super().columns(tokens) - (self.speculative > 0)


class RequiredBelowAllocated(MambaGroup):
    """A request that needs fewer columns than it has gives the surplus back.

    vLLM #39271, #43382: fewer or rejected drafts reduce the requirement; the table must not shrink, because the
    worker's copy is append-only.
    """

    def extend(self, name: str, span: Span) -> list[int]:
        table, required = self.tables[name], self.columns(span.high)
        self.pool.release(reversed(table[required:]))
        del table[required:]
        return super().extend(name, span)


class MinAcrossComponents(MambaGroup):
    """A state is published under the longest prefix that all groups can name.

    SGLang #38815: the inserted length was the minimum over the components, but a state cannot be sliced: a later
    state was published under an earlier key.
    """

    def publish_column(self, block: int, column: int, tags: Sequence[int]) -> None:
        unit = self.layout.hit_unit
        depth = (column + 1) * self.block_size // unit * unit
        if self.mode != "none" and depth and block != NULL_BLOCK and block not in self.pool.labels:
            self.pool.publish(block, Key(self.index, depth, tags[depth]))


class HitBeforeCommit(MambaGroup):
    """A state may be hit in the same step that writes it.

    vLLM #41400, #43569: the guard that defers such a hit was cleared too early.
    """

    def must_defer(self, blocks: Sequence[int]) -> bool:
        return False


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
    """Without a draft group, no state is ever published.

    vLLM #57616, #54360: "none flagged" fell back to flagging all groups; the boundaries to keep were then
    rounded down to 0, so there were no hits. The other half of all-groups-eagle-fallback.
    """

    def publish_column(self, block: int, column: int, tags: Sequence[int]) -> None:
        if not self.layout.eagle_drop or any(group.draft for group in self.layout.groups):
            super().publish_column(block, column, tags)


class StatesBehindAGap(MambaGroup):
    """States before a null column stay allocated.

    vLLM 0.14 to 0.28, no public issue known: the search for columns to release goes back from the last one and ends at
    the first null one. A chunk of several blocks leaves null columns between two states.
    """

    def give_back_columns(self, name: str, stop: int) -> None:
        table = self.tables[name]
        first = stop
        while first and table[first - 1] != NULL_BLOCK:
            first -= 1
        for column in range(first, stop):
            self.pool.release([table[column]])
            table[column] = NULL_BLOCK


class TokenBehindForgotten(AttentionGroup):
    """With lookahead hashes the key of an attention block does not name the token after it.

    no public issue known: an EAGLE head's last slot of a block is then hit by requests that continue with another
    token, which is what the hashes are for (`get_request_block_hasher`).
    """

    def key(self, tags: Sequence[int], depth: int) -> Key:
        return Key(self.index, depth, tags[depth])


class NamedByAPlaceholder(AttentionGroup):
    """With lookahead hashes a block is published before the token after it is known, under a placeholder's name.

    no public issue known: a step that is planned ahead does not know the token that the last one samples.
    """

    def nameable(self, tags: Sequence[int]) -> int:
        return len(tags) - 1


PARTS: dict[str, type] = {
    "lookahead-page-missing": LookaheadPageMissing,
    "required-below-allocated": RequiredBelowAllocated,
    "min-across-components-attaches-later-state": MinAcrossComponents,
    "hit-before-commit": HitBeforeCommit,
    "commit-at-wrong-semantic-position": CommitAtWrongSemanticPosition,
    "all-groups-eagle-inserts-nothing": AllGroupsEagleInsertsNothing,
    "token-behind-forgotten": TokenBehindForgotten,
    "named-by-a-placeholder": NamedByAPlaceholder,
    "states-behind-a-gap": StatesBehindAGap,
}
