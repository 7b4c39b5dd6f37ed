"""M3 table, M4 rows: the block ids that the device uses, also those of rows without a request."""

from __future__ import annotations

from itertools import chain

from ....targets.base.observe import (
    Copied,
    Forward,
    Loaded,
    OutOfRange,
    Planned,
    SlotRead,
    SlotWrite,
    StateRead,
    StateWrite,
)
from ..verdict import Block, Past
from ..violation import Violation
from .base import Context, Oracle
from .rules import Consequence, Rule


class TableMirror(Oracle):
    """Checks each access with the scheduler's tables."""

    rules = (
        Rule(
            "M3",
            "In every column that a kernel or copy reads or writes, the device uses the block that the "
            "scheduler's table held when the step was planned, and no index is outside of tables and pool. (A "
            "scratch block that moved inside the table may still be read at its old column, from the worker's "
            "append-only copy of the table.)",
            subject="device",
            consequence=Consequence(
                "The worker uses a cache block that is not the scheduler's",
                "A state or KV is read from, or written to, memory that may belong to something else.",
                "wrong tokens",
            ),
        ),
    )
    title = "table"
    needs = frozenset({"accesses", "tables"})

    def on_state_read(self, context: Context, read: StateRead) -> Violation | None:
        return self._column(context, read, "reads")

    def on_state_write(self, context: Context, write: StateWrite) -> Violation | None:
        return self._column(context, write, "writes")

    def on_slot_read(self, context: Context, read: SlotRead) -> Violation | None:
        life, table, first = context.lives[read.row], context.tables[read.row], read.first_column
        if life is None or table is None:
            return None
        self.exercised["M3"] += 1
        if tuple(read.blocks) == tuple(table[read.group][first : first + len(read.blocks)]):
            return None
        for column, block in enumerate(read.blocks, first):
            if violation := self._named_column(context, life.name, read.group, column, block, "reads"):
                return violation
        return None

    def on_slot_write(self, context: Context, write: SlotWrite) -> Violation | None:
        life, table = context.lives[write.row], context.tables[write.row]
        if life is None or table is None:
            return None
        self.exercised["M3"] += 1
        columns = table[write.group]
        size, width = context.layout.groups[write.group].block_size, len(columns)
        for position, block in enumerate(write.blocks, write.position):
            column = position // size
            if not 0 <= column < width or columns[column] != block:
                return self._mismatch(context, life.name, write.group, column, block, "writes")
        return None

    def on_outside(self, context: Context, outside: OutOfRange) -> Violation | None:
        return _sent_outside(self, context, outside) if context.life(outside.row) else None

    def on_copied(self, context: Context, copied: Copied) -> Violation | None:
        for verb, column, block in (
            ("copies-from", copied.source_column, copied.source),
            ("copies-to", copied.destination_column, copied.destination),
        ):
            if column < 0 <= block:
                continue  # a cached block: its state is checked when it is read (S2)
            if violation := self._named_column(context, copied.request, copied.group, column, block, verb):
                return violation
        return None

    def on_loaded(self, context: Context, loaded: Loaded) -> Violation | None:
        if loaded.column < 0:
            return None  # into a block of the cache
        return self._named_column(context, loaded.request, loaded.group, loaded.column, loaded.block, "loads-into")

    def _column(self, context: Context, access: StateRead | StateWrite, verb: str) -> Violation | None:
        life, table, column = context.lives[access.row], context.tables[access.row], access.column
        if life is None or table is None or column < 0:
            return None
        columns = table[access.group]
        if column < len(columns) and columns[column] == access.block:
            self.exercised["M3"] += 1
            return None
        return self._named_column(context, life.name, access.group, column, access.block, verb)

    def _named_column(
        self, context: Context, request: str, group: int, column: int, block: int, verb: str
    ) -> Violation | None:
        self.exercised["M3"] += 1
        columns = context.table(request)[group]
        if 0 <= column < len(columns) and columns[column] == block:
            return None
        moved = 0 <= column < len(columns) and columns[column] == context.null and block in columns
        if moved and verb in ("reads", "copies-from"):
            return None
        return self._mismatch(context, request, group, column, block, verb)

    def _mismatch(self, context: Context, request: str, group: int, column: int, block: int, verb: str) -> Violation:
        table = context.table(request)[group]
        inside = 0 <= column < len(table)
        return self.violation(
            context,
            verb if inside else f"{verb}-behind-the-table",
            field="column",
            column=column,
            columns=len(table),
            expected=Block(table[column]) if inside else None,
            observed=Block(block if block >= 0 else -1),
            request=request,
            group=group,
            block=block,
        )


class DeadRows(Oracle):
    """Checks writes of rows without a request."""

    rules = (
        Rule(
            "M4",
            "For a padding, dummy or vacated row, kernels may write only to the null block or a sink (of plain "
            "caches: to any that no request has), and must never get an out-of-range index. The row of a request that "
            "ended between plan and launch may write to the blocks that it had, unless somebody else has got them and "
            "written to them, or they were zeroed.",
            subject="device",
            consequence=Consequence(
                "A padding or dummy row writes into cache memory",
                "If the block is cached or in use, a request continues from overwritten content.",
                "wrong tokens",
            ),
        ),
    )
    title = "rows"
    needs = frozenset({"accesses"})

    def __init__(self) -> None:
        super().__init__()
        self._left: dict[int, dict[int, bool]] = {}
        """Step -> blocks that rows of it had whose requests ended before it was launched -> False if somebody else has
        got it since: the next content comes behind theirs."""

    def on_planned(self, context: Context, planned: Planned) -> Violation | None:
        for name, table in planned.left.items():
            kept = {*planned.view.free, *chain.from_iterable(planned.view.tables.get(name, ()))}
            blocks = self._left.setdefault(planned.step, {})
            for block in chain.from_iterable(table):
                blocks[block] = block in kept or blocks.get(block, False)
        return None

    def on_forward(self, context: Context, forward: Forward) -> Violation | None:
        self.exercised["M4"] += context.lives.count(None)
        self._left.pop(forward.step, None)
        return None

    def on_state_write(self, context: Context, write: StateWrite) -> Violation | None:
        if context.lives[write.row] is not None or self._harmless(context, write.block, write.layer):
            return None
        return self._dead_write(context, write.row, write.group, write.block)

    def on_slot_write(self, context: Context, write: SlotWrite) -> Violation | None:
        if context.lives[write.row] is not None:
            return None
        for block in write.blocks:
            if block != context.null and not self._harmless(context, block, write.layer):
                return self._dead_write(context, write.row, write.group, block)
        return None

    def on_outside(self, context: Context, outside: OutOfRange) -> Violation | None:
        return None if context.life(outside.row) else _sent_outside(self, context, outside)

    def _harmless(self, context: Context, block: int, layer: int) -> bool:
        if context.has_pool:
            if block in context.layout.sinks:
                return True
            left = self._left.get(context.step, {})
            return block in left and (left[block] or context.past(block, layer).what == "allocated")
        return block not in context.before.caches.values()

    def _dead_write(self, context: Context, row: int, group: int, block: int) -> Violation:
        return self.violation(
            context,
            f"dead-write-{context.layout.groups[group].kind}",
            field="dead-write",
            who=context.who(row),
            past=context.past(block) if block != context.null else Past("null"),
            group=group,
            block=block,
        )


def _sent_outside(oracle: Oracle, context: Context, outside: OutOfRange) -> Violation:
    """Return the violation for an index outside of what it indexes."""
    oracle.count()
    life = context.life(outside.row)
    return oracle.violation(
        context,
        "outside-of-live" if life else "outside",
        field=f"outside-{outside.what.replace(' ', '-')}",
        who=context.who(outside.row),
        row=outside.row,
        what=outside.what,
        index=outside.index,
        size=outside.size,
        last=outside.size - 1,
        request=life.name if life else "",
        group=outside.group,
    )
