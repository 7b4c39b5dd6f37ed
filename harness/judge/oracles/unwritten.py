"""S4 taint, S7 NaN: no request reads bytes that were not written for it, and poison never reaches an output."""

from __future__ import annotations

from ....reference.layout import cdiv
from ....reference.request import Life
from ....reference.tokens import VOCABULARY
from ....targets.base.observe import ForwardRow, SlotRead, StateRead
from ..verdict import Request
from ..violation import Violation
from .base import Context, Oracle
from .rules import Consequence, Rule


class Taint(Oracle):
    """Checks what was written of each page that is read."""

    rules = (
        Rule(
            "S4",
            "No request reads bytes that were not written or zeroed since the block was allocated. Attention "
            "kernels read whole pages. So where an attention block may hold bytes of a state, the slots after the "
            "request's last token must be written or zeroed, too.",
            subject="device",
            consequence=Consequence(
                "A request reads cache memory that was never written for it",
                "Its tokens depend on what an earlier request left in that memory.",
                "wrong tokens",
            ),
        ),
    )
    title = "taint"
    needs = frozenset({"accesses", "tables"})

    def on_state_read(self, context: Context, read: StateRead) -> Violation | None:
        life = context.lives[read.row]
        cell = context.reference.ledger.cell(read.block, read.layer)
        if life is None or cell is None:
            return None
        self.exercised["S4"] += 1
        if cell.zeroed:
            return None
        if read.temporal is not None and not cell.temporal:
            return self._tainted(context, life, read.group, read.block, "temporal")
        if read.window is not None and not cell.conv:
            return self._tainted(context, life, read.group, read.block, "conv")
        return None

    def on_slot_read(self, context: Context, read: SlotRead) -> Violation | None:
        life = context.lives[read.row]
        if life is None:
            return None
        size = context.layout.groups[read.group].block_size
        full = (1 << size) - 1
        context_length = len(read.tags)
        blocks, ledger = read.blocks[: cdiv(context_length, size)], context.reference.ledger
        for column, block in enumerate(blocks):
            cell = ledger.cell(block, read.layer)
            if cell is None:
                continue
            self.exercised["S4"] += 1
            if cell.zeroed or cell.slots == full:
                continue
            used = (1 << min(size, context_length - column * size)) - 1
            if cell.slots & used != used:
                return self._tainted(context, life, read.group, block, "slot")
            if context.layout.zeroing:
                return self._tainted(context, life, read.group, block, "page-tail")
        return None

    def _tainted(self, context: Context, life: Life, group: int, block: int, field: str) -> Violation:
        facts = context.reference.ledger.facts[block]
        previous, kind = None, ""
        if facts.previous_owner:
            previous, kind = Request(facts.previous_owner), context.layout.groups[facts.previous_group].kind
        return self.violation(
            context,
            f"stale-{field}",
            field=field,
            past=context.past(block),
            previous=previous,
            previous_kind=kind,
            request=life.name,
            group=group,
            block=block,
        )


class Poison(Oracle):
    """Checks sampled tokens for traces of NaN."""

    rules = (
        Rule(
            "S7",
            "A NaN never reaches an output. A poisoned hidden state is sampled as a token outside of the model's "
            "vocabulary, which no valid prefix yields.",
            subject="device",
            consequence=Consequence(
                "NaN in the output", "The client receives tokens that were chosen from NaN.", "wrong tokens"
            ),
        ),
    )
    title = "NaN"
    needs = frozenset({"accesses"})

    def on_row(self, context: Context, row: ForwardRow, life: Life) -> Violation | None:
        if life.ends_before(row.position + len(row.tokens) - row.drafts):
            return None
        self.exercised["S7"] += len(row.sampled)
        for token in row.sampled:
            if not 2 <= token < VOCABULARY:
                return self.violation(context, "poison", field="token", observed=token, request=life.name)
        return None
