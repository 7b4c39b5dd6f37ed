"""Keys, checkpoints and the hit-length contract.

A **key** on a block means: it holds, for this group, the content of depth `depth` of the prefix with this tag.
For an attention group that is the slots of positions depth - block_size .. depth - 1, for a mamba group the
state after exactly `depth` tokens. A key is *published* while a lookup can reach it.

Contract of a hit of L tokens (vLLM `HybridKVCacheCoordinator.find_longest_cache_hit`):

    L is at most num_tokens - 1, so that at least one token is computed
    every attention group holds all of its blocks below L; with a sliding window or chunks those that position L
    attends to
    every mamba group holds the state at exactly L

An EAGLE head computes the slot of a position from the token after it, too (`Group.shift`), so the last slot of a block
is right for those requests only that have the same token behind the block. There are two ways to take care of that:

    EAGLE's drop       the last matched block of the drafter's attention is left out of a hit and computed again
    lookahead hashes   a key at depth d names d + `layout.lookahead` tokens. It can be published once these are known:
                       prompt, or verified; drafts are neither. Nothing is left out of a hit, whose keys must all agree,
                       those of states too, since all groups use the same keys

A hit may be extended by a load from outside the pool (a KV connector, another memory tier): the next E tokens of
every attention group and every state at exactly L + E are loaded, and computing starts at L + E. The pool itself must
then hold only what is not loaded: the attention blocks below L that position L + E attends to, and no state at L.

With keys inside blocks (`layout.hash_unit`) a hit may end inside a block of a group: that block is copied, so the rule
above holds for the whole blocks below it, and the copied content is checked when it is read. A **partial key** covers
the slots of its block below its depth; for a state it names exactly that depth, so it must be removed before the state
in the block advances.

`longest_hit` is the largest such L on the grid of `layout.hit_unit`; a target may return less only where the
contract allows it: with EAGLE the last matched block of the drafter's attention is left out (of all full attention if
the drafter has no group of its own; `layout.eagle_unit` tokens where keys are inside blocks), and the hit is the
longest valid one that is left. With keys inside blocks a target gives up only `layout.eagle_unit` tokens past the
shortest match of the other full attention. `longest_hit` still gives up a whole block: it is a lower bound, so a target
may return more. A drafter's group with local attention must also hold the block after L.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from .layout import Layout, first_attended
from .tokens import Truth

NO_TAG = -1
"""The tag of no prefix."""


class Key(NamedTuple):
    """The name of cached content: group index, depth in tokens, tag of the tokens that it names: those of the prefix of
    that depth and `layout.lookahead` after it."""

    group: int
    depth: int
    tag: int

    def __str__(self) -> str:
        return f"depth {self.depth} of prefix {self.tag % 10_000:04} in group {self.group}"


def key_at(layout: Layout, index: int, tags: Sequence[int], depth: int) -> Key:
    """Return the key of a group at a depth of the prefix with these tags; one that no block has if the tokens that it
    names are not all there."""
    named = depth + layout.lookahead
    return Key(index, depth, tags[named] if named < len(tags) else NO_TAG)


def has_key(layout: Layout, key: Key, truth: Truth) -> bool:
    """Return True if a key is that of a request's own prefix."""
    return truth.tag(key.depth + layout.lookahead) == key.tag


def keys_needed(layout: Layout, index: int, tags: Sequence[int], length: int, loaded: int = 0) -> list[Key]:
    """Return the keys that group `index` must have published for a hit of `length` tokens, with `loaded` tokens after
    them loaded from outside the pool."""
    group = layout.groups[index]
    if group.kind == "mamba":
        return [key_at(layout, index, tags, length)] if length and not loaded else []
    size = group.block_size
    first = first_attended(group, length + loaded) // size
    return [key_at(layout, index, tags, depth) for depth in range((first + 1) * size, length + 1, size)]


def is_valid_hit(layout: Layout, published: Collection[Key], tags: Sequence[int], length: int) -> bool:
    """Return True if every group has published what a hit of `length` tokens needs."""
    return all(
        key in published
        for index in range(len(layout.groups))
        for key in (*keys_needed(layout, index, tags, length), *keys_given_up(layout, index, tags, length))
    )


def keys_given_up(layout: Layout, index: int, tags: Sequence[int], length: int) -> list[Key]:
    """Return the key of the block after a hit that a local attention group must hold although it is left out."""
    group = layout.groups[index]
    after = length + group.block_size
    if index not in layout.eagle_groups or not group.is_local:
        return []
    return [key_at(layout, index, tags, after)]


def attention_match(layout: Layout, index: int, published: Collection[Key], tags: Sequence[int], limit: int) -> int:
    """Return the number of leading tokens, at most `limit`, whose attention blocks are all published."""
    depth, size = 0, layout.groups[index].block_size
    while depth + size <= limit and key_at(layout, index, tags, depth + size) in published:
        depth += size
    return depth


def partial_match(
    layout: Layout, index: int, published: Collection[Key], tags: Sequence[int], whole: int, unit: int
) -> int:
    """Return the number of leading tokens that are published if the block after the first `whole` of them may have a
    partial key, on a grid of `unit` tokens."""
    for depth in range(whole + layout.groups[index].block_size - unit, whole, -unit):
        if key_at(layout, index, tags, depth) in published:
            return depth
    return whole


def longest_hit(layout: Layout, published: Collection[Key], tags: Sequence[int], num_tokens: int) -> int:
    """Return the longest valid hit for a request of `num_tokens` tokens, 0 if there is none."""
    unit = layout.hit_unit
    limit = (num_tokens - layout.left_to_compute) // unit * unit
    others = [
        attention_match(layout, index, published, tags, limit)
        for index, group in enumerate(layout.groups)
        if group.kind == "attention" and index not in layout.eagle_groups and not group.is_local
    ]
    proof_end = min(others, default=limit) + layout.eagle_unit if layout.eagle_unit else limit
    for index in layout.eagle_groups:
        group = layout.groups[index]
        if group.is_local:
            continue
        match = attention_match(layout, index, published, tags, min(limit, proof_end))
        limit = min(limit, max(match - group.block_size, 0))
    limit = limit // unit * unit
    # A hit needs all full attention below it: none extends a whole block past the shortest match.
    for index, group in enumerate(layout.groups):
        if group.kind == "attention" and limit and not group.is_local:
            match = attention_match(layout, index, published, tags, limit)
            limit = min(limit, match + group.block_size - 1) // unit * unit
    for length in range(limit, 0, -unit):
        if is_valid_hit(layout, published, tags, length):
            return length
    return 0
