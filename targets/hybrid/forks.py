"""Copies of a parked session: what nobody writes to any more is shared, the rest is copied at once.

    attention   full blocks are shared; a block that is filled in part is copied
    states      the running state is copied into a block of its own, wherever accepted drafts have left it

Nothing is in flight then, so the copies overtake nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .pool import NULL_BLOCK

if TYPE_CHECKING:
    from .groups import AttentionGroup
    from .plan import Request
    from .target import HybridTarget


class Forks:
    """Gives a fork its blocks and fills them."""

    def __init__(self, target: HybridTarget) -> None:
        self.cache = target.cache
        self.memory = target.memory
        self.states = target.states
        self.batch = target.batch

    def blocks_needed(self, settled: int) -> int:
        """Blocks that a copy of a session with `settled` tokens cannot share."""
        return sum(group.kind == "mamba" or settled % group.block_size > 0 for group in self.cache.groups)

    def fill(self, parent: Request, name: str) -> None:
        """Tables of the fork `name`, and the content of its own blocks."""
        for group in self.cache.groups:
            fork = self.fork_state if group.kind == "mamba" else self.fork_attention
            fork(group, parent, name)

    def fork_attention(self, group: AttentionGroup, parent: Request, name: str) -> None:
        """Share the full blocks, copy the partial one."""
        full, past = divmod(parent.settled, group.block_size)
        table = list(group.tables[parent.name][: full + (past > 0)])
        for block in table[:full]:
            if block != NULL_BLOCK:
                self.cache.pool.touch(block)
        if past:
            source = table[full]
            [table[full]] = self.cache.pool.allocate(1)
            for layer in range(group.spec.layers):
                tags = self.memory.slots(layer, source, group.block_size)
                self.memory.store_slots(layer, table[full], group.block_size, 0, tags)
        group.tables[name], group.num_published[name] = table, full

    def fork_state(self, group: AttentionGroup, parent: Request, name: str) -> None:
        """Copy the running state to the column in which one of so many tokens is looked for."""
        columns = self.states.columns.get(parent.name)
        kept = self.batch.accepted.kept.get(parent.name)
        offset = kept[group.index] if columns and kept else 0
        column = self.states.seed_column(group.index, parent.settled)
        source = columns[group.index] if columns else column
        table = group.tables[parent.name]
        [block] = self.cache.pool.allocate(1)
        for layer in range(group.spec.layers):
            self.states.move_temporal(layer, table[source + offset], block)
            self.states.move_conv(layer, table[source], block, offset)
        group.tables[name], group.num_published[name] = [NULL_BLOCK] * column + [block], column
