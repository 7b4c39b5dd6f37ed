"""Hits inside a block: keys on a grid finer than the blocks, and copies so that no request writes reachable content.

The prompt's last boundary on the finer grid gets a **partial key**: in an attention group it covers the first slots of
a block that is still being filled, in a mamba group the state that the running column holds at that moment.

    a hit inside a block    allocates a block and copies the found one into it before the forward
    the request continues   its state moves past the partial key: the key moves to a new block, into which the old
                            content is copied; without a free block the key is dropped
    a block gets full       the full key replaces its partial key

Blocks that a planned copy reads or fills for the cache are pinned until the step has run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from mypy_extensions import mypyc_attr

from ....reference.layout import Layout
from ....reference.prefix_cache import Key
from ..layout import NULL_BLOCK
from ..plan import PageCopy
from .block_pool import BlockPool
from .block_tables import AttentionGroup, Span

OF_THE_CACHE = -1
"""Column of a block that is in no table."""


@mypyc_attr(allow_interpreted_subclasses=True)
class PartialHits:
    """Partial keys of all groups; does nothing if `layout.hash_unit` is 0."""

    def __init__(self, layout: Layout, pool: BlockPool, groups: Sequence[AttentionGroup]) -> None:
        self.layout = layout
        self.pool = pool
        self.groups = groups
        self.unit = layout.hash_unit
        self.pins: Counter[int] = Counter()

    def boundary(self, prompt_length: int) -> int:
        """Return the prompt's last boundary on the finer grid; 0 if keys are for whole blocks only."""
        return (prompt_length - self.layout.lookahead) // self.unit * self.unit if self.unit else 0

    def find(self, tags: Sequence[int], whole: int, num_tokens: int) -> int:
        """Return the longest hit of more than `whole` tokens that ends inside a block of some group, else `whole`."""
        if not self.unit or self.layout.eagle_drop:
            return whole
        for length in range((num_tokens - self.layout.left_to_compute) // self.unit * self.unit, whole, -self.unit):
            if all(self.holds(group, tags, length) for group in self.groups):
                return length
        return whole

    def holds(self, group: AttentionGroup, tags: Sequence[int], length: int) -> bool:
        """Return True if a group has all content for a hit of `length` tokens."""
        past = length % group.block_size
        if past and group.lookup(tags, length) is None:
            return False
        full = length - past
        return (group.kind == "mamba" and past > 0) or group.find_hit(tags, full) == full

    def sources(self, tags: Sequence[int], length: int) -> tuple[int, ...]:
        """Return the block to copy from for each group, null where the hit ends between blocks."""
        found = [group.lookup(tags, length) if length % group.block_size else NULL_BLOCK for group in self.groups]
        assert None not in found
        return tuple(block for block in found if block is not None)

    def pin(self, blocks: Iterable[int]) -> list[int]:
        """Keep blocks until `unpin`; return those pinned."""
        pinned = [block for block in blocks if block != NULL_BLOCK]
        for block in pinned:
            self.pool.touch(block)
        self.pins.update(pinned)
        return pinned

    def unpin(self, blocks: Sequence[int]) -> None:
        """Release pinned blocks: the step that copies has run or was withdrawn."""
        if blocks:
            self.pool.release(blocks)
            self.pins -= Counter(blocks)

    def copies_state_of(self, name: str) -> bool:
        """Return True if a planned step copies from a state of this request."""
        return bool(self.pins) and any(
            block in self.pins for group in self.groups if group.kind == "mamba" for block in group.tables[name]
        )

    def ends_at_boundary(self, span: Span) -> bool:
        """Return True if a step ends exactly at the prompt's last boundary; only then does a state hold its content."""
        return span.partial > 0 and span.low == span.high == span.partial

    def publish(self, name: str, tags: Sequence[int], depth: int) -> None:
        """Publish the prompt's last boundary in every group that has it inside a block."""
        for group in self.groups:
            if depth % group.block_size:
                block = group.tables[name][depth // group.block_size]
                if block != NULL_BLOCK and block not in self.pool.labels:
                    self.pool.publish(block, group.key(tags, depth))

    def keep(self, name: str) -> list[PageCopy]:
        """Return the copies that keep states under partial keys before their request overwrites them."""
        copies = []
        for group in self.groups if self.unit else ():
            for column, block in enumerate(group.tables[name]):
                key = self.pool.labels.get(block)
                if group.kind == "mamba" and key is not None and key.depth % group.block_size:
                    copies += self.move_key(group, column, block, key)
        return copies

    def move_key(self, group: AttentionGroup, column: int, block: int, key: Key) -> list[PageCopy]:
        """Move a partial key to a new block, pinned until the copy has run."""
        self.pool.unpublish(block)
        if not self.pool.free:
            return []
        [kept] = self.pool.allocate(1)
        self.pins[kept] += 1
        self.pool.publish(kept, key)
        return [PageCopy(group.index, column, block, OF_THE_CACHE, kept)]

    def withdraw(self, copies: Sequence[PageCopy]) -> None:
        """Remove the keys whose content the copies of a withdrawn row would have written."""
        for copy in copies:
            if copy.to_column == OF_THE_CACHE:
                self.pool.unpublish(copy.destination)
