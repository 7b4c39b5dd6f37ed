"""M3 table, M4 rows, M5 writer: the block ids that the device uses, and the blocks that it may write to."""

from __future__ import annotations

from ....targets.base.observe import Copied, Forward, Loaded, OutOfRange, SlotRead, SlotWrite, StateRead, StateWrite
from ..violation import Violation
from .base import Context, Oracle


class TableMirror(Oracle):
    """M3: in every column that a kernel or copy reads or writes, the device uses the block that the scheduler's table
    held when the step was planned, and no index is outside of tables and pool. (A scratch block that moved inside the
    table may still be read at its old column, from the worker's append-only copy of the table.)"""

    ids = ("M3",)
    title = "table"
    needs = frozenset({"accesses", "tables"})

    def on_state_read(self, context: Context, read: StateRead) -> Violation | None:
        return self._column(context, read, "reads")

    def on_state_write(self, context: Context, write: StateWrite) -> Violation | None:
        return self._column(context, write, "writes")

    def on_slot_read(self, context: Context, read: SlotRead) -> Violation | None:
        table, first = context.tables[read.row], read.first_column
        if table is None:
            return None
        self.exercised["M3"] += 1
        if tuple(read.blocks) == tuple(table[read.group][first : first + len(read.blocks)]):
            return None
        name = context.row_name(read.row)
        for column, block in enumerate(read.blocks, first):
            if violation := self._named_column(context, name, read.group, column, block, "reads"):
                return violation
        return None

    def on_slot_write(self, context: Context, write: SlotWrite) -> Violation | None:
        table = context.tables[write.row]
        if table is None:
            return None
        self.exercised["M3"] += 1
        columns = table[write.group]
        size, width = context.layout.groups[write.group].block_size, len(columns)
        for position, block in enumerate(write.blocks, write.position):
            column = position // size
            if not 0 <= column < width or columns[column] != block:
                return self._mismatch(context, context.row_name(write.row), write.group, column, block, "writes")
        return None

    def on_outside(self, context: Context, outside: OutOfRange) -> Violation | None:
        return _sent_outside(self, context, outside) if context.life(outside.row) else None

    def on_copied(self, context: Context, copied: Copied) -> Violation | None:
        for verb, column, block in (
            ("copies from", copied.source_column, copied.source),
            ("copies to", copied.destination_column, copied.destination),
        ):
            if column < 0 <= block:
                continue  # a cached block: its state is checked when it is read (S2)
            if violation := self._named_column(context, copied.request, copied.group, column, block, verb):
                return violation
        return None

    def on_loaded(self, context: Context, loaded: Loaded) -> Violation | None:
        return self._named_column(context, loaded.request, loaded.group, loaded.column, loaded.block, "loads into")

    def _column(self, context: Context, access: StateRead | StateWrite, verb: str) -> Violation | None:
        table, column = context.tables[access.row], access.column
        if table is None or column < 0:
            return None
        columns = table[access.group]
        if column < len(columns) and columns[column] == access.block:
            self.exercised["M3"] += 1
            return None
        return self._named_column(context, context.row_name(access.row), access.group, column, access.block, verb)

    def _named_column(
        self, context: Context, request: str, group: int, column: int, block: int, verb: str
    ) -> Violation | None:
        self.exercised["M3"] += 1
        columns = context.table(request)[group]
        if 0 <= column < len(columns) and columns[column] == block:
            return None
        moved = 0 <= column < len(columns) and columns[column] == context.null and block in columns
        if moved and verb in ("reads", "copies from"):
            return None
        return self._mismatch(context, request, group, column, block, verb)

    def _mismatch(self, context: Context, request: str, group: int, column: int, block: int, verb: str) -> Violation:
        table = context.table(request)[group]
        inside = 0 <= column < len(table)
        held = f"block {table[column]}" if inside else f"nothing (it has {len(table)} columns)"
        seen = f"block {block}" if block >= 0 else "no block"
        kind = context.layout.groups[group].kind
        return self.violation(
            context,
            "column",
            f"the device {verb} {seen} in column {column} of {request}'s {kind} group {group}, where the "
            f"scheduler's table holds {held}",
            expected=held,
            observed=seen,
            request=request,
            group=group,
            block=block,
        )


class DeadRows(Oracle):
    """M4: for a padding, dummy or vacated row, kernels may write only to the null block or a sink (of plain caches: to
    any that no request has), and must never get an out-of-range index."""

    ids = ("M4",)
    title = "rows"
    needs = frozenset({"accesses"})

    def on_forward(self, context: Context, forward: Forward) -> Violation | None:
        self.exercised["M4"] += context.lives.count(None)
        return None

    def on_state_write(self, context: Context, write: StateWrite) -> Violation | None:
        if context.lives[write.row] is not None or self._harmless(context, write.block):
            return None
        return self._dead_write(context, write.row, write.group, write.block)

    def on_slot_write(self, context: Context, write: SlotWrite) -> Violation | None:
        if context.lives[write.row] is not None:
            return None
        for block in write.blocks:
            if block != context.null and not self._harmless(context, block):
                return self._dead_write(context, write.row, write.group, block)
        return None

    def on_outside(self, context: Context, outside: OutOfRange) -> Violation | None:
        return None if context.life(outside.row) else _sent_outside(self, context, outside)

    @staticmethod
    def _harmless(context: Context, block: int) -> bool:
        if context.has_pool:
            return block in context.layout.sinks
        return block not in context.before.caches.values()

    def _dead_write(self, context: Context, row: int, group: int, block: int) -> Violation:
        what = "Mamba state" if context.layout.groups[group].kind == "mamba" else "attention KV"
        history = context.reference.ledger.describe(block) if block != context.null else "the null block"
        return self.violation(
            context,
            "dead-write",
            f"{context.row_name(row)} writes {what} into block {block}, {history}",
            expected="no write",
            observed=f"a write to block {block}",
            group=group,
            block=block,
        )


def _sent_outside(oracle: Oracle, context: Context, outside: OutOfRange) -> Violation:
    """Return the violation for an index outside of what it indexes."""
    oracle.count()
    what, kind, life = outside.what, context.layout.groups[outside.group].kind, context.life(outside.row)
    who = f"{life.name} (row {outside.row})" if life else context.row_name(outside.row)
    return oracle.violation(
        context,
        f"outside-{what.replace(' ', '-')}",
        f"the metadata of {kind} group {outside.group} points {who} at {what} {outside.index} of {outside.size}",
        expected=f"{what} 0 to {outside.size - 1}",
        observed=f"{what} {outside.index}",
        request=life.name if life else "",
        group=outside.group,
    )


class Writer(Oracle):
    """M5: a written block has one writer in a step and is writable: it is not the null block, no other request holds
    it, and it is not published, unless it is the writer's own block and this write is the content that its key
    names."""

    ids = ("M5",)
    title = "writer"
    needs = frozenset({"accesses", "pool", "tables"})

    def __init__(self) -> None:
        super().__init__()
        self._step = -1
        self._writers: dict[int, tuple[int, int]] = {}

    def on_state_write(self, context: Context, write: StateWrite) -> Violation | None:
        violation = self._one_writer(context, write.row, write.group, write.block)
        life = context.lives[write.row]
        if violation or life is None:
            return violation
        facts = context.facts
        key = facts.published.get(write.block) if facts else None
        if key is not None and key.group == write.group and self._last_tag(context, write) == key.tag:
            return None if self._is_own(context, life.name, write.block) else self._shared(context, write)
        if key is not None or (facts and facts.references[write.block] > 1):
            return self._shared(context, write)
        return self._foreign(context, life.name, write, write.block)

    @staticmethod
    def _last_tag(context: Context, write: StateWrite) -> int | None:
        """Return the tag of the tokens in a stored state; without a recurrent state it is the window's last input."""
        if context.layout.groups[write.group].recurrent:
            return write.temporal
        return write.window[-1] if write.window else None

    def on_slot_write(self, context: Context, write: SlotWrite) -> Violation | None:
        life = context.lives[write.row]
        facts = context.facts
        size = context.layout.groups[write.group].block_size
        for offset, block in enumerate(write.blocks):
            if offset and block == write.blocks[offset - 1]:
                continue
            violation = self._one_writer(context, write.row, write.group, block)
            if violation:
                return violation
            if life is None or facts is None:
                continue
            key = facts.published.get(block)
            if key is None and facts.references[block] <= 1:
                if foreign := self._foreign(context, life.name, write, block):
                    return foreign
                continue
            depth = ((write.position + offset) // size + 1) * size
            promised = key is not None and depth - size < key.depth <= depth and life.truth.tag(key.depth) == key.tag
            if not promised or not self._is_own(context, life.name, block):
                return self._shared(context, write, block)
        return None

    def on_copied(self, context: Context, copied: Copied) -> Violation | None:
        for_cache = copied.destination_column < 0
        return self._brought(context, copied, copied.destination, for_cache)

    def on_loaded(self, context: Context, loaded: Loaded) -> Violation | None:
        return self._brought(context, loaded, loaded.block)

    def _brought(
        self, context: Context, record: Copied | Loaded, block: int, for_cache: bool = False
    ) -> Violation | None:
        self.count()
        facts = context.facts
        if facts is None:
            return None
        if block == context.null:
            return self._null(context, record.request, record.group)
        if block in facts.published or facts.references[block] > 1:
            key = facts.published.get(block)
            life = facts.lives.get(record.request)
            own = for_cache or self._is_own(context, record.request, block)
            if key is None or not own or life is None or life.truth.tag(key.depth) != key.tag:
                return self._shared(context, record, block)
            return None
        return None if for_cache else self._foreign(context, record.request, record, block)

    def _foreign(
        self, context: Context, name: str, write: StateWrite | SlotWrite | Copied | Loaded, block: int
    ) -> Violation | None:
        """Return a violation if a block, unpublished and held once, is held by another request: it is in the table of
        that one, and not in the writer's. (Blocks in no table belong to the cache, or are on their way to it.)"""
        facts = context.facts
        if facts is None or block in context.table(name)[write.group]:
            return None
        for other, table in facts.tables.items():
            if other != name and any(block in columns for columns in table):
                return self._shared(context, write, block, f"held by {other}")
        return None

    def _one_writer(self, context: Context, row: int, group: int, block: int) -> Violation | None:
        self.exercised["M5"] += 1
        if block in context.layout.sinks and context.lives[row] is None:
            return None
        if block == context.null:
            return self._null(context, context.row_name(row), group)
        if context.step != self._step:
            self._step, self._writers = context.step, {}
        first = self._writers.setdefault(block, (row, group))
        if first == (row, group):
            return None
        return self.violation(
            context,
            "two-writers",
            f"block {block} is written by {context.row_name(first[0])} and by {context.row_name(row)} in one step",
            expected="one writer",
            observed="two",
            request=context.row_name(row),
            group=group,
            block=block,
        )

    def _is_own(self, context: Context, name: str, block: int) -> bool:
        facts = context.reference.ledger.facts.get(block)
        return facts is not None and facts.owner == name

    def _null(self, context: Context, who: str, group: int) -> Violation:
        kind = context.layout.groups[group].kind
        return self.violation(
            context,
            "null-write",
            f"{who} writes {kind} content into the null block {context.null}",
            expected="no write to the null block",
            observed="a write",
            group=group,
            block=context.null if context.null is not None else -1,
        )

    def _shared(
        self,
        context: Context,
        write: StateWrite | SlotWrite | Copied | Loaded,
        block: int | None = None,
        what: str = "",
    ) -> Violation:
        if block is None:
            assert isinstance(write, StateWrite)
            block = write.block
        facts = context.facts
        assert facts is not None
        who = write.request if isinstance(write, Copied | Loaded) else context.row_name(write.row)
        key = facts.published.get(block)
        held = what or f"held by {facts.references[block]} requests"
        what = f"published as depth {key.depth} of a prefix" if key else held
        return self.violation(
            context,
            "shared-write",
            f"{who} writes into block {block}, which is {what} ({context.reference.ledger.describe(block)})",
            expected="an unpublished block of its own",
            observed=what,
            request=who,
            group=write.group,
            block=block,
        )
