"""M5 writer: the blocks that a request may write to, and that a block has one writer in a step."""

from __future__ import annotations

from ....reference.prefix_cache import Key, has_key
from ....reference.tokens import Truth
from ....targets.base.observe import Copied, Loaded, SlotWrite, StateWrite
from ..verdict import Request, Row
from ..violation import Violation
from .base import Context, Oracle, named
from .rules import Consequence, Rule


class Writer(Oracle):
    """Checks who writes a block."""

    rules = (
        Rule(
            "M5",
            "A written block has one writer in a step and is writable: it is not the null block, no other request "
            "holds it, and it is not published, unless it is the writer's own block and this write is the content "
            "that its key names.",
            subject="device",
            consequence=Consequence(
                "A request writes into a cache block that is shared or published",
                "Other requests that use the block continue from overwritten content.",
                "wrong tokens",
            ),
        ),
    )
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
        if key is not None and key.group == write.group and self._is_promised(context, write, key, life.truth):
            return None if self._is_own(context, life.name, write.block) else self._shared(context, write)
        if key is not None or (facts and facts.references[write.block] > 1):
            return self._shared(context, write)
        return self._foreign(context, life.name, write, write.block)

    @staticmethod
    def _is_promised(context: Context, write: StateWrite, key: Key, truth: Truth) -> bool:
        """Return True if a request stores the state that a key of its own prefix promises; where there is no recurrent
        state the last input of the window counts."""
        last = write.window[-1] if write.window else None
        if context.layout.groups[write.group].recurrent:
            last = write.temporal
        return last == truth.tag(key.depth) and has_key(context.layout, key, truth)

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
            promised = (
                key is not None and depth - size < key.depth <= depth and has_key(context.layout, key, life.truth)
            )
            if not promised or not self._is_own(context, life.name, block):
                return self._shared(context, write, block)
        return None

    def on_copied(self, context: Context, copied: Copied) -> Violation | None:
        for_cache = copied.destination_column < 0
        return self._brought(context, copied, copied.destination, for_cache)

    def on_loaded(self, context: Context, loaded: Loaded) -> Violation | None:
        return self._brought(context, loaded, loaded.block, for_cache=loaded.column < 0)

    def _brought(
        self, context: Context, record: Copied | Loaded, block: int, for_cache: bool = False
    ) -> Violation | None:
        self.count()
        facts = context.facts
        if facts is None:
            return None
        if block == context.null:
            return self._null(context, Request(record.request), record.group, block)
        if block in facts.published or facts.references[block] > 1:
            key = facts.published.get(block)
            life = facts.lives.get(record.request)
            own = for_cache or self._is_own(context, record.request, block)
            if key is not None and for_cache and not record.request:
                return None  # for whoever hits it: its content is checked by its key (S1)
            if key is None or not own or life is None or not has_key(context.layout, key, life.truth):
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
                return self._shared(context, write, block, other)
        return None

    def _one_writer(self, context: Context, row: int, group: int, block: int) -> Violation | None:
        self.exercised["M5"] += 1
        if block in context.layout.sinks and context.lives[row] is None:
            return None
        if block == context.null:
            return self._null(context, context.who(row), group, block)
        if context.step != self._step:
            self._step, self._writers = context.step, {}
        first = self._writers.setdefault(block, (row, group))
        if first == (row, group):
            return None
        return self.violation(
            context,
            "two-writers",
            first=context.who(first[0]),
            second=context.who(row),
            request=named(context.who(row)),
            group=group,
            block=block,
        )

    def _is_own(self, context: Context, name: str, block: int) -> bool:
        facts = context.reference.ledger.facts.get(block)
        return facts is not None and facts.owner == name

    def _null(self, context: Context, who: Request | Row, group: int, block: int) -> Violation:
        return self.violation(context, "null-write", who=who, group=group, block=block)

    def _shared(
        self,
        context: Context,
        write: StateWrite | SlotWrite | Copied | Loaded,
        block: int | None = None,
        holder: str = "",
    ) -> Violation:
        if block is None:
            assert isinstance(write, StateWrite)
            block = write.block
        facts = context.facts
        assert facts is not None
        who = Request(write.request) if isinstance(write, Copied | Loaded) else context.who(write.row)
        key = facts.published.get(block)
        return self.violation(
            context,
            "writes-published" if key else "writes-others" if holder else "writes-shared",
            field="shared-write",
            who=who,
            depth=key.depth if key else None,
            holders=facts.references[block],
            holder=Request(holder) if holder else None,
            past=context.past(block),
            request=named(who),
            group=write.group,
            block=block,
        )
