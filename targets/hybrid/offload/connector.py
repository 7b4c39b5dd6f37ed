"""A KV connector: finds prefixes in the external store, loads them, and saves the content that the engine computes.

Scheduler side: after a local hit of L tokens it finds the longest total L + E on the hit grid such that the store has
every attention block after L and every state at exactly L + E. A state cannot be assembled from parts: in a model with
states, attention content alone is no hit.

Worker side: a mirror of the block tables gives the block that holds the content of each boundary. Tables of states are
not append-only (columns are nulled, scratch blocks move), so the mirror takes the whole table each step.
"""

from __future__ import annotations

from collections.abc import Sequence

from mypy_extensions import mypyc_attr

from ....reference.layout import Layout, first_attended
from ....reference.prefix_cache import Key, key_at
from ....reference.tokens import EMPTY, chain
from ...base.observe import Record, Table
from ..layout import NULL_BLOCK
from ..plan import Load, ScheduledRow
from .external_store import ExternalStore


@mypyc_attr(allow_interpreted_subclasses=True)
class Connector:
    """Both sides of one connector. If `saves` is set, it saves the content that this engine computes."""

    def __init__(self, layout: Layout, store: ExternalStore, saves: bool) -> None:
        self.layout = layout
        self.store = store
        self.saves = saves and layout.prefix_caching
        self.mirror: dict[str, Table] = {}
        self.breaks_off: set[str] = set()
        """Requests whose next load will be aborted."""

    def find(self, tags: Sequence[int], local: int, num_tokens: int) -> int:
        """Return how many tokens after a local hit of `local` tokens can be loaded; at least one is left to compute."""
        if not self.store.pages or not self.layout.prefix_caching:
            return 0
        unit = self.layout.hit_unit
        for total in range((num_tokens - self.layout.left_to_compute) // unit * unit, local, -unit):
            if all(self.holds(index, tags, local, total) for index in range(len(self.layout.groups))):
                return total - local
        return 0

    def holds(self, group: int, tags: Sequence[int], local: int, total: int) -> bool:
        """Return True if the store has all content that a group needs to continue from `total` tokens."""
        return all(key in self.store.pages for key in self.keys(group, tags, local, total))

    def keys(self, group: int, tags: Sequence[int], local: int, total: int) -> list[Key]:
        """Return the keys that a group must load to continue from `total` tokens if the pool has `local`."""
        spec = self.layout.groups[group]
        if spec.kind == "mamba":
            return [self.state_key(group, tags, total)]
        size = spec.block_size
        first = max(local // size, first_attended(spec, total) // size)
        return [key_at(self.layout, group, tags, depth) for depth in range((first + 1) * size, total + 1, size)]

    def state_key(self, group: int, tags: Sequence[int], total: int) -> Key:
        """Return the key of the state at exactly `total` tokens; none other fits attention content so long."""
        return key_at(self.layout, group, tags, total)

    def commit(self, name: str) -> bool:
        """Return True if the loads of a request will be executed; after an aborted load it may try again."""
        if name in self.breaks_off:
            self.breaks_off.remove(name)
            return False
        return True

    def loads(
        self, tags: Sequence[int], local: int, total: int, blocks: Sequence[Sequence[tuple[int, int]]]
    ) -> list[Load]:
        """Return one load for each new (column, block) of each group, in order of columns."""
        return [
            Load(group, column, block, key)
            for group, columns in enumerate(blocks)
            for (column, block), key in zip(columns, self.keys(group, tags, local, total), strict=True)
        ]

    def load(self, step: int, row: ScheduledRow, records: list[Record]) -> None:
        """Copy loaded content into the blocks of an admitted row."""
        for one in row.loads:
            self.store.load(step, row.name, one, records)

    def update_mirror(self, row: ScheduledRow) -> None:
        """Replace the mirror of a row's table by the scheduler's present one."""
        if self.saves:
            self.mirror[row.name] = row.table

    def remove(self, name: str) -> None:
        """Drop the mirror of a request that left the batch."""
        self.mirror.pop(name, None)

    def save(self, name: str, tokens: Sequence[int], before: int, after: int) -> None:
        """Save the content of every boundary whose key became known as a step went from `before` to `after` certain
        tokens."""
        if not self.saves:
            return
        first, last = max(before - self.layout.lookahead, 0), after - self.layout.lookahead
        for index, columns in enumerate(self.mirror[name]):
            size = self.layout.groups[index].block_size
            for depth in range((first // size + 1) * size, last + 1, size):
                column = depth // size - 1
                if column < len(columns) and columns[column] != NULL_BLOCK:
                    tags = (EMPTY, *chain(EMPTY, tuple(tokens[:after])))
                    self.store.save(key_at(self.layout, index, tags, depth), columns[column])
