"""Prefix hits over all groups, admission, allocation, publication, and the list of blocks to zero."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from msgspec import Struct
from mypy_extensions import mypyc_attr

from ....reference.layout import Layout
from ..layout import NULL_BLOCK
from ..plan import PageCopy
from .block_pool import BlockPool
from .block_tables import AttentionGroup, MambaGroup, Span, WindowGroup
from .partial_hits import OF_THE_CACHE, PartialHits

TO_LOAD = -1
"""Stands in an estimate for a block that is not handed out yet."""


class Hit(Struct, frozen=True, gc=False):
    """A prefix hit of `length` tokens; `blocks` are its columns by group. `defer`: wait one step for it.

    `external` more tokens are to be loaded from outside the pool. A hit that ends inside a block of some group has
    `sources`: for each group the block to copy from, null where it ends between blocks.
    """

    length: int
    blocks: tuple[Sequence[int], ...]
    defer: bool = False
    external: int = 0
    sources: tuple[int, ...] = ()


class Allocation(Struct, frozen=True, gc=False):
    """Outcome of `allocate`: blocks foreseen by the admission check, blocks really taken, (column, block) of those that
    are to be loaded, by group."""

    estimated: int
    taken: int
    to_load: Sequence[Sequence[tuple[int, int]]] = ()
    copies: Sequence[PageCopy] = ()
    pins: Sequence[int] = ()


@mypyc_attr(allow_interpreted_subclasses=True)
class CacheManager:
    """One table per request and group over one pool."""

    attention_group: ClassVar[type[AttentionGroup]] = AttentionGroup
    mamba_group: ClassVar[type[MambaGroup]] = MambaGroup
    window_group: ClassVar[type[WindowGroup]] = WindowGroup
    partial_hits: ClassVar[type[PartialHits]] = PartialHits

    def __init__(self, layout: Layout, pool: BlockPool) -> None:
        self.layout = layout
        self.pool = pool
        self.groups = [self.make_group(index) for index in range(len(layout.groups))]
        self.to_zero: list[int] = []
        self.partial = self.partial_hits(layout, pool, self.groups)

    def make_group(self, index: int) -> AttentionGroup:
        """The tables of one group, by its kind."""
        group = self.layout.groups[index]
        attention = self.window_group if group.window else self.attention_group
        kind = self.mamba_group if group.kind == "mamba" else attention
        return kind(index, self.layout, self.pool)

    def find_hit(self, tags: Sequence[int], num_tokens: int) -> Hit:
        """Longest prefix that every group holds; at least one token is left to compute."""
        if not self.layout.prefix_caching:
            return Hit(0, tuple(() for _ in self.groups))
        unit = self.layout.hit_unit
        length = self.drop_for_eagle(tags, (num_tokens - 1) // unit * unit)
        while True:
            shrunk = length
            for group in self.groups:
                shrunk = group.find_hit(tags, shrunk) // unit * unit
            if shrunk == length:
                break
            length = shrunk
        blocks = tuple([group.hit_blocks(tags, length) for group in self.groups])
        defer = any(group.must_defer(hit) for group, hit in zip(self.groups, blocks, strict=True))
        return Hit(length, blocks, defer)

    def extend_hit(self, hit: Hit, tags: Sequence[int], external: int) -> Hit:
        """The same hit with `external` more tokens to be loaded behind it."""
        blocks = tuple(group.hit_blocks(tags, hit.length, external) for group in self.groups)
        return Hit(hit.length, blocks, external=external)

    def extend_inside(self, hit: Hit, tags: Sequence[int], num_tokens: int) -> Hit:
        """The same hit, or a longer one that ends inside a block."""
        length = self.partial.find(tags, hit.length, num_tokens)
        if length == hit.length:
            return hit
        sources = self.partial.sources(tags, length)
        blocks = tuple(
            group.hit_blocks(tags, length - length % group.block_size, length % group.block_size)
            for group in self.groups
        )
        defer = any(block in self.pool.published_this_step for block in sources)
        defer |= any(
            group.must_defer(columns)
            for group, columns, source in zip(self.groups, blocks, sources, strict=True)
            if source == NULL_BLOCK
        )
        return Hit(length, blocks, defer, 0, sources)

    def drop_for_eagle(self, tags: Sequence[int], length: int) -> int:
        """EAGLE drafts need the hidden states of the last block: its attention blocks are computed again."""
        for index in self.layout.eagle_groups:
            group = self.groups[index]
            length = min(length, max(group.find_hit(tags, length) - group.block_size, 0))
        return length // self.layout.hit_unit * self.layout.hit_unit

    def estimate(self, name: str, span: Span, hit: Hit | None) -> int:
        """Blocks that leave the free queue if the request gets `span`, revived hit blocks included."""
        if hit is None:
            return sum([group.columns_missing(group.tables[name], span) for group in self.groups])
        total, free = 0, self.pool.free
        for index, group in enumerate(self.groups):
            table = list(hit.blocks[index])
            total += sum([block in free for block in (*hit.sources[index : index + 1], *table)])
            loads = self.blocks_to_load(group, table, hit)
            table += [TO_LOAD] * loads
            total += loads + group.columns_missing(table, span)
        return total

    def blocks_to_load(self, group: AttentionGroup, table: Sequence[int], hit: Hit) -> int:
        """Blocks that an external hit takes before its first step; a state needs one, too."""
        return group.columns_to_load(table, hit.length + hit.external) if hit.external or hit.sources else 0

    def allocate(self, name: str, tags: Sequence[int], span: Span, hit: Hit | None) -> Allocation | None:
        """Give the request every block of `span`, or nothing and None if the pool cannot.

        `hit` is set on admission. The order matters: boundaries that accepted drafts crossed are published
        before their columns are given back, and columns are given back before the pool is asked.
        """
        if hit is None:
            self.settle(name, tags, span)
        estimated = self.estimate(name, span, hit)
        if estimated > len(self.pool.free):
            return None
        free_before = len(self.pool.free)
        if hit is not None:
            for group, blocks in zip(self.groups, hit.blocks, strict=True):
                group.start(name, blocks, hit.length)
        to_fill: list[list[tuple[int, int]]] = []
        pins = self.partial.pin(hit.sources) if hit else []
        if hit is not None and (hit.external or hit.sources):
            start = hit.length + hit.external
            to_fill = [group.take_columns_to_load(name, tags, start) for group in self.groups]
        for group in self.groups:
            new = group.extend(name, span)
            if new:
                self.note_for_zeroing(group, new)
        taken = free_before - len(self.pool.free)
        if hit is None:
            copies = self.partial.keep(name)
            pins = [copy.destination for copy in copies]
        else:
            copies = [
                PageCopy(group.index, OF_THE_CACHE, source, column, block)
                for group, columns, source in zip(self.groups, to_fill, hit.sources, strict=False)
                for column, block in columns
            ]
        if self.layout.prefix_caching:
            self.publish(name, tags, span.known)
        if self.partial.ends_at_boundary(span):
            self.partial.publish(name, tags, span.partial)
        return Allocation(estimated, taken, to_fill, copies, pins)

    def settle(self, name: str, tags: Sequence[int], span: Span) -> None:
        """Publish what is executed and verified, then release what only other requests may still use."""
        for group in self.groups:
            if self.layout.prefix_caching:
                group.publish(name, tags, min(span.settled, span.known))
            group.give_back_skipped(name, span.settled)

    def publish(self, name: str, tags: Sequence[int], tokens: int) -> None:
        """Publish boundaries that this step reaches for certain; its forward materialises them."""
        for group in self.groups:
            group.publish(name, tags, tokens)

    def withdraw(self, name: str) -> None:
        """The request leaves the step that is being planned: keys published for it in this step are void."""
        for group in self.groups:
            for block in group.tables.get(name, ()):
                # A block that others hold, too, was published by them: its key stands.
                if block in self.pool.published_this_step and self.pool.references[block] == 1:
                    self.pool.unpublish(block)

    def note_for_zeroing(self, group: AttentionGroup, blocks: Sequence[int]) -> None:
        """Attention reads whole pages, so a page that held a state must be zeroed first (vLLM PR #35219)."""
        if group.kind == "attention":
            self.to_zero.extend(blocks)

    def take_blocks_to_zero(self) -> list[int]:
        """Drain the list; a model without states has nothing to zero."""
        blocks, self.to_zero = self.to_zero, []
        return blocks if self.layout.zeroing else []

    def free(self, name: str) -> None:
        """Release all blocks of a request."""
        for group in self.groups:
            group.free(name)

    def tables(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Block ids by group, then column."""
        return tuple([tuple(group.tables[name]) for group in self.groups])
