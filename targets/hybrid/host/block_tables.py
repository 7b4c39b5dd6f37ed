"""Block tables of one KV cache group: the columns that a request allocates, hits, publishes and releases.

A table is a list of block ids; column i stands for tokens [i * block_size, (i + 1) * block_size). The worker's
mirror is append-only: it receives new columns and never a changed one. So a block that moves inside a table is
nulled in its old column and appended at the end.
"""

from __future__ import annotations

from collections.abc import Sequence

from mypy_extensions import mypyc_attr

from ....reference.layout import Layout, cdiv, first_attended, required_columns
from ....reference.prefix_cache import Key, key_at
from ..layout import NULL_BLOCK
from .block_pool import BlockPool


class Span:
    """Tokens that a step covers. With steps in flight the number of computed tokens is not certain.

    settled  executed and verified
    low      `settled` plus the certain progress of steps in flight and of this step
    high     the same with every draft accepted; blocks must exist up to here
    known    tokens with known ids that this step reaches for certain; they may be published
    partial  the prompt's last boundary on the grid of partial keys, 0 if there are none
    """

    __slots__ = ("high", "known", "low", "partial", "settled")

    def __init__(self, settled: int, low: int, high: int, known: int, partial: int = 0) -> None:
        assert settled <= low <= high
        self.partial = partial
        self.settled, self.low, self.high, self.known = settled, low, high, known


@mypyc_attr(allow_interpreted_subclasses=True)
class AttentionGroup:
    """One block per `block_size` tokens, kept as long as the request runs."""

    kind = "attention"

    def __init__(self, index: int, layout: Layout, pool: BlockPool) -> None:
        self.index = index
        self.layout = layout
        self.spec = layout.groups[index]
        self.block_size = self.spec.block_size
        self.mode = layout.mode
        self.speculative = layout.num_speculative_tokens
        self.pool = pool
        self.tables: dict[str, list[int]] = {}
        self.num_published: dict[str, int] = {}

    def key(self, tags: Sequence[int], depth: int) -> Key:
        """Return the key of a prefix."""
        return key_at(self.layout, self.index, tags, depth)

    def lookup(self, tags: Sequence[int], depth: int) -> int | None:
        """Return a block published for a prefix, or None."""
        return self.pool.lookup(self.key(tags, depth))

    def nameable(self, tags: Sequence[int]) -> int:
        """Return the depth of the last key whose tokens are all known; `tags` are those of the known tokens."""
        return len(tags) - 1 - self.layout.lookahead

    def find_hit(self, tags: Sequence[int], length: int) -> int:
        """Return the longest hit of at most `length` tokens; `length` is a multiple of the hit unit."""
        depth = 0
        while depth + self.block_size <= length:
            if self.lookup(tags, depth + self.block_size) is None:
                break
            depth += self.block_size
        return depth

    def hit_blocks(self, tags: Sequence[int], length: int, external: int = 0) -> list[int]:
        """Return the columns of a hit of `length` tokens, before those to load for `external` more tokens."""
        blocks = []
        for depth in range(self.block_size, length + 1, self.block_size):
            block = self.lookup(tags, depth)
            assert block is not None
            blocks.append(block)
        return blocks

    def columns_to_load(self, table: Sequence[int], start: int) -> int:
        """Return how many columns after those of a hit must be loaded to start at `start` tokens."""
        return max(cdiv(start, self.block_size) - len(table), 0)

    def take_columns_to_load(self, name: str, tags: Sequence[int], start: int) -> list[tuple[int, int]]:
        """Allocate and publish the columns of `name` that are to be loaded; return (column, block) for each."""
        table = self.tables[name]
        first = len(table)
        table += self.pool.allocate(self.columns_to_load(table, start))
        self.publish(name, tags, start)
        return list(enumerate(table))[first:]

    def must_defer(self, blocks: Sequence[int]) -> bool:
        """Return True if a hit must wait for the next step. Attention writes all KV before it reads any: False."""
        return False

    def columns_missing(self, table: Sequence[int], span: Span) -> int:
        """Return how many new blocks a step with this span takes."""
        return max(self.columns(span.high) - len(table), 0)

    def columns(self, tokens: int) -> int:
        """Return how many columns `tokens` tokens occupy."""
        return required_columns(self.spec, self.mode, tokens, self.speculative)

    def extend(self, name: str, span: Span) -> list[int]:
        """Append the columns that the step needs to the table of `name`; return the newly allocated blocks."""
        table = self.tables[name]
        missing = self.columns_missing(table, span)
        new = self.pool.allocate(missing) if missing else []
        table.extend(new)
        return new

    def give_back_skipped(self, name: str, settled: int) -> None:
        """Release the columns that no later step reads: none for full attention."""

    def give_back_columns(self, name: str, stop: int) -> None:
        """Release the columns before `stop`; their content stays reachable by other requests."""
        table = self.tables[name]
        for column in range(stop):
            if table[column] != NULL_BLOCK:
                self.pool.release([table[column]])
                table[column] = NULL_BLOCK

    def publish(self, name: str, tags: Sequence[int], tokens: int) -> None:
        """Publish every full block below `tokens` that is not published yet, once all tokens of its key are known."""
        full, published = min(tokens, self.nameable(tags)) // self.block_size, self.num_published[name]
        if full <= published:
            return
        table = self.tables[name]
        for column in range(published, min(full, len(table))):
            self.publish_column(table[column], column, tags)
        self.num_published[name] = full

    def publish_column(self, block: int, column: int, tags: Sequence[int]) -> None:
        """Publish one column under the key of the boundary at its end."""
        depth = (column + 1) * self.block_size
        key = self.pool.labels.get(block)
        if key is not None and key.depth % self.block_size:
            self.pool.unpublish(block)  # the block is full now: its partial key is void
            key = None
        if block != NULL_BLOCK and key is None:
            self.pool.publish(block, self.key(tags, depth))

    def start(self, name: str, blocks: Sequence[int], hit: int) -> None:
        """Start the table of a request with the columns of its hit."""
        assert name not in self.tables
        for block in blocks:
            if block != NULL_BLOCK:
                self.pool.touch(block)
        self.tables[name] = list(blocks)
        self.num_published[name] = hit // self.block_size

    def keeps(self, name: str, tags: Sequence[int], depth: int) -> bool:
        """Return True if a request could continue from `depth` tokens, fewer than it has.

        The block that it would write to must have no other owner.
        """
        column, past = divmod(depth, self.block_size)
        return not past or self.pool.references[self.tables[name][column]] == 1

    def cut(self, name: str, tags: Sequence[int], depth: int) -> None:
        """Roll back to `depth` tokens: later columns are released, a block that is cut loses its key."""
        table = self.tables[name]
        last = cdiv(depth, self.block_size)
        self.pool.release(reversed(table[last:]))
        del table[last:]
        if depth % self.block_size and table[-1] in self.pool.labels:
            self.pool.unpublish(table[-1])
        self.num_published[name] = min(self.num_published[name], depth // self.block_size)

    def free(self, name: str) -> None:
        """Release the whole table, tail first, so that shared prefixes are evicted last."""
        self.pool.release(reversed(self.tables.pop(name, [])))
        self.num_published.pop(name, None)


@mypyc_attr(allow_interpreted_subclasses=True)
class WindowGroup(AttentionGroup):
    """Sliding-window attention over `spec.window` tokens: columns left of the window are released."""

    def first_column(self, computed: int) -> int:
        """Return the first column that the token after `computed` tokens attends to."""
        return first_attended(self.spec, computed) // self.block_size

    def find_hit(self, tags: Sequence[int], length: int) -> int:
        """Return the largest depth of at most `length` tokens whose window is published; the rest is not needed."""
        found = length // self.block_size * self.block_size
        depth = found
        while depth > self.first_column(found) * self.block_size:
            if self.lookup(tags, depth) is None:
                found = depth - self.block_size
            depth -= self.block_size
        return found

    def hit_blocks(self, tags: Sequence[int], length: int, external: int = 0) -> list[int]:
        """Return the window's columns; the columns before them are null."""
        first = self.first_column(length + external)
        boundaries = range((first + 1) * self.block_size, length + 1, self.block_size)
        blocks = [self.lookup(tags, depth) for depth in boundaries]
        return [NULL_BLOCK] * first + [block for block in blocks if block is not None]

    def keeps(self, name: str, tags: Sequence[int], depth: int) -> bool:
        """Return True if a request could continue from `depth`: the window there must not have been released."""
        window = self.tables[name][self.first_column(depth) : cdiv(depth, self.block_size)]
        return NULL_BLOCK not in window and super().keeps(name, tags, depth)

    def give_back_skipped(self, name: str, settled: int) -> None:
        """Release columns that no later token attends to."""
        self.give_back_columns(name, self.first_column(settled))


@mypyc_attr(allow_interpreted_subclasses=True)
class MambaGroup(AttentionGroup):
    """Position-indexed state columns, one running column, `speculative` scratch columns after it.

    none   columns 0 .. speculative: only the running one and scratch
    align  the columns from the settled state up to the scratch columns hold blocks, the earlier ones are null
    all    every column holds a block
    """

    kind = "mamba"

    def find_hit(self, tags: Sequence[int], length: int) -> int:
        """Return the largest boundary of at most `length` tokens whose state is published; the rest is not needed."""
        for depth in range(length // self.block_size * self.block_size, 0, -self.block_size):
            if self.lookup(tags, depth) is not None:
                return depth
        return 0

    def hit_blocks(self, tags: Sequence[int], length: int, external: int = 0) -> list[int]:
        """Return the state's column after null ones; only null ones if a state will be loaded instead."""
        if external:
            return [NULL_BLOCK] * (cdiv(length + external, self.block_size) - 1)
        if length == 0:
            return []
        block = self.lookup(tags, length)
        assert block is not None
        return [NULL_BLOCK] * (length // self.block_size - 1) + [block]

    def must_defer(self, blocks: Sequence[int]) -> bool:
        """Return True for a state published in this step: it does not exist before the forward has run."""
        return bool(blocks) and blocks[-1] in self.pool.published_this_step

    def first_live_column(self, span: Span) -> int:
        """Return the first column that this step may write: the running column if every draft in flight is rejected."""
        return cdiv(span.low, self.block_size) - 1

    def columns_missing(self, table: Sequence[int], span: Span) -> int:
        """Return how many blocks are new: live columns, less those held and the scratch blocks that can move."""
        required = self.columns(span.high)
        if self.mode != "align":
            return max(required - len(table), 0)
        if required <= len(table):
            return 0
        live = self.first_live_column(span)
        held = sum(block != NULL_BLOCK for block in table[live:])
        return max(required - live - held - len(self.movable_columns(table, live)), 0)

    def movable_columns(self, table: Sequence[int], live: int) -> list[int]:
        """Return the scratch columns left of the live ones; their blocks are reused at the end of the table."""
        if not self.speculative or len(table) <= self.speculative:
            return []
        scratch = range(len(table) - self.speculative, min(len(table), live))
        return [column for column in scratch if self.is_movable(table[column])]

    def is_movable(self, block: int) -> bool:
        """Return True if a block has one owner and no key, so that it may change its role."""
        return block > NULL_BLOCK and self.pool.references[block] == 1 and block not in self.pool.labels

    def extend(self, name: str, span: Span) -> list[int]:
        """Append null columns up to the first live one, then moved scratch blocks, then new ones."""
        table = self.tables[name]
        required = self.columns(span.high)
        if required <= len(table):
            return []
        if self.mode != "align":
            return super().extend(name, span)
        live = self.first_live_column(span)
        new = self.pool.allocate(self.columns_missing(table, span))
        movable = self.movable_columns(table, live)
        supply = [table[column] for column in movable]
        for column in movable:
            table[column] = NULL_BLOCK
        table.extend([NULL_BLOCK] * (live - len(table)))
        supply += new
        table.extend(supply[: required - len(table)])
        assert len(table) == required
        assert NULL_BLOCK not in table[live:]
        return new

    def give_back_skipped(self, name: str, settled: int) -> None:
        """Release, in mode align, the columns before the settled state: only other requests can use them."""
        if self.mode == "align" and settled:
            self.give_back_columns(name, (settled - 1) // self.block_size)

    def keeps(self, name: str, tags: Sequence[int], depth: int) -> bool:
        """Return True if a state is published at exactly `depth`: states cannot be rolled back."""
        return depth % self.block_size == 0 and self.lookup(tags, depth) is not None

    def cut(self, name: str, tags: Sequence[int], depth: int) -> None:
        """Replace the table by the state published at `depth`."""
        checkpoint = self.hit_blocks(tags, depth)
        published = self.num_published[name]
        self.pool.touch(checkpoint[-1])
        super().free(name)
        self.tables[name], self.num_published[name] = checkpoint, min(published, depth // self.block_size)

    def publish_column(self, block: int, column: int, tags: Sequence[int]) -> None:
        """Publish one column, except in mode none, where states are not tied to a boundary."""
        if self.mode != "none":
            super().publish_column(block, column, tags)
