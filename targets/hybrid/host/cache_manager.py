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
"""Placeholder in an estimate for a block that is not allocated yet."""


class Hit(Struct, frozen=True, gc=False):
    """A prefix hit of `length` tokens; `blocks` are its columns by group. If `defer` is set it must wait for a step.

    `external` more tokens are to be loaded from outside the pool. A hit that ends inside a block of some group has
    `sources`: for each group the block to copy from, null where it ends between blocks.
    """

    length: int
    blocks: tuple[Sequence[int], ...]
    defer: bool = False
    external: int = 0
    sources: tuple[int, ...] = ()


class Allocation(Struct, frozen=True, gc=False):
    """Outcome of `allocate`.

    estimated  blocks that the admission check expected to take
    taken      blocks that were taken
    to_load    (column, block) to load, by group
    copies     pages to copy before the forward
    pins       blocks to keep until the step has run
    """

    estimated: int
    taken: int
    to_load: Sequence[Sequence[tuple[int, int]]] = ()
    copies: Sequence[PageCopy] = ()
    pins: Sequence[int] = ()


@mypyc_attr(allow_interpreted_subclasses=True)
class CacheManager:
    """Block tables of all requests and groups over one pool."""

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
        """Return the table class of one group, by its kind."""
        group = self.layout.groups[index]
        attention = self.window_group if group.window else self.attention_group
        kind = self.mamba_group if group.kind == "mamba" else attention
        return kind(index, self.layout, self.pool)

    def no_hit(self) -> Hit:
        """Return the hit of a request for which nothing is cached."""
        return Hit(0, tuple(() for _ in self.groups))

    def find_hit(self, tags: Sequence[int], num_tokens: int) -> Hit:
        """Return the longest prefix that every group holds; at least one token is left to compute."""
        if not self.layout.prefix_caching:
            return self.no_hit()
        unit = self.layout.hit_unit
        length = self.drop_for_eagle(tags, (num_tokens - self.layout.left_to_compute) // unit * unit)
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
        """Return the hit with `external` more tokens to be loaded after it."""
        blocks = tuple(group.hit_blocks(tags, hit.length, external) for group in self.groups)
        return Hit(hit.length, blocks, external=external)

    def extend_inside(self, hit: Hit, tags: Sequence[int], num_tokens: int) -> Hit:
        """Return a longer hit that ends inside a block, or `hit` itself."""
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
        """Return `length` less the last attention block, which is recomputed: EAGLE needs its hidden states."""
        for index in self.layout.eagle_groups:
            group = self.groups[index]
            length = min(length, max(group.find_hit(tags, length) - group.block_size, 0))
        return length // self.layout.hit_unit * self.layout.hit_unit

    def estimate(self, name: str, span: Span, hit: Hit | None) -> int:
        """Return how many blocks leave the free queue if the request gets `span`, revived hit blocks included."""
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
        """Return how many blocks an external hit takes before its first step, including those for states."""
        return group.columns_to_load(table, hit.length + hit.external) if hit.external or hit.sources else 0

    def allocate(self, name: str, tags: Sequence[int], span: Span, hit: Hit | None) -> Allocation | None:
        """Allocate every block of `span` for a request. Return None, with nothing allocated, if the pool has too few.

        `hit` is set on admission. The order matters: boundaries that accepted drafts crossed are published before
        their columns are released, and columns are released before the admission check.
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
        """Publish the executed and verified columns, then release those that only other requests may use."""
        for group in self.groups:
            if self.layout.prefix_caching:
                group.publish(name, tags, min(span.settled, span.known))
            group.give_back_skipped(name, span.settled)

    def publish(self, name: str, tags: Sequence[int], tokens: int) -> None:
        """Publish the boundaries that this step reaches for certain; its forward writes their content."""
        for group in self.groups:
            group.publish(name, tags, tokens)

    def withdraw(self, name: str) -> None:
        """Remove the keys published for a request in this step, which it leaves."""
        for group in self.groups:
            for block in group.tables.get(name, ()):
                # A block with other owners was published by them: its key stays valid.
                if block in self.pool.published_this_step and self.pool.references[block] == 1:
                    self.pool.unpublish(block)

    def note_for_zeroing(self, group: AttentionGroup, blocks: Sequence[int]) -> None:
        """Record new attention blocks for zeroing: attention reads pages whole, old states included (vLLM #35219)."""
        if group.kind == "attention":
            self.to_zero.extend(blocks)

    def take_blocks_to_zero(self) -> list[int]:
        """Drain and return the list of blocks to zero; empty for a model without states."""
        blocks, self.to_zero = self.to_zero, []
        return blocks if self.layout.zeroing else []

    def free(self, name: str) -> None:
        """Release all blocks of a request."""
        for group in self.groups:
            group.free(name)

    def tables(self, name: str) -> tuple[tuple[int, ...], ...]:
        """Return block ids by group, then column."""
        return tuple([tuple(group.tables[name]) for group in self.groups])
