"""The base class of oracles, and the context that they share.

An oracle is one named invariant. It overrides the hooks that it needs; each hook gets the `Context` and one
record, and returns a `Violation` or None. The lockstep calls hooks in the order of the records, so an oracle sees
events in the order in which the target's device does its work.

`exercised` counts how often the invariant was checked: an oracle with a count of 0 proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from ....reference.layout import Layout
from ....reference.ledger import DeadRow
from ....reference.model import PlanFacts, Reference
from ....reference.request import Life
from ....targets.base.observe import (
    Copied,
    Delivered,
    Forward,
    ForwardRow,
    Loaded,
    Numeric,
    OutOfRange,
    Planned,
    RealForward,
    SideBySide,
    SlotRead,
    SlotWrite,
    StateRead,
    StateWrite,
    Table,
    View,
    Zeroed,
)
from ....targets.base.protocol import Target
from ..sentences import Words
from ..verdict import (
    Empty,
    Foreign,
    Found,
    PartOf,
    Past,
    Prefix,
    Request,
    Row,
    StateOf,
    Unknown,
    Value,
    past,
    who,
)
from ..verdict import Zeroed as ZeroedMemory
from ..violation import Violation
from .rules import Rule

RECORD_HOOKS = {
    Planned: "on_planned",
    Zeroed: "on_zeroed",
    Copied: "on_copied",
    Loaded: "on_loaded",
    Numeric: "on_numeric",
    RealForward: "on_real_forward",
    Forward: "on_forward",
    Delivered: "on_delivered",
    SideBySide: "on_side_by_side",
}
"""Record type -> the hook that checks it."""
ACCESS_HOOKS = {
    StateRead: "on_state_read",
    StateWrite: "on_state_write",
    SlotRead: "on_slot_read",
    SlotWrite: "on_slot_write",
    OutOfRange: "on_outside",
}

HOOKS = (*RECORD_HOOKS.values(), *ACCESS_HOOKS.values(), "on_row", "on_view", "on_idle")


class Context:
    """State shared by all oracles of one run: the reference, the target's storage, the last view.

    facts, lives and tables belong to the step whose device work is being checked. By row of the batch: `lives[row]` is
    the request in it, `tables[row]` the scheduler's columns when the step was planned, both None for a dead row
    (padding or dummy); `names[row]` is the request's name, or what the ledger calls a dead row.
    """

    def __init__(self, target: Target, view: View) -> None:
        self.target = target
        self.layout: Layout = target.layout
        self.reference = Reference(target.layout)
        self.before = view
        """Metadata at the end of the previous event."""
        self.facts: PlanFacts | None = None
        self.lives: list[Life | None] = []
        self.tables: list[Table | None] = []
        self.names: list[str | DeadRow] = []
        self.step = -1
        self.event_index = -1
        self.event_kind = ""
        self.refused = ""
        """The reason if the target refused the last event, else ""."""
        self.null = target.layout.null_block
        self.has_pool = target.layout.num_blocks > 0
        """False for plain caches."""
        self.is_dummy = False
        """True if the batch is a dummy run."""
        self._no_columns: Table = ((),) * len(target.layout.groups)

    def set_batch_rows(self, names: Iterable[str | None], *, dummy: bool = False) -> None:
        """Set the rows of the batch that is executed; `names` in row order, None for padding and dummy rows.

        A row without a request is a dummy row if the batch is a dummy run (`dummy`), else a padding row.
        """
        lives = self.facts.lives if self.facts else {}
        self.lives, self.tables, self.names = [], [], []
        self.is_dummy = dummy
        for row, name in enumerate(names):
            life = lives.get(name) if name else None
            self.lives.append(life)
            self.tables.append(self.table(life.name) if life else None)
            self.names.append(life.name if life else DeadRow(row, dummy))

    def table(self, request: str) -> Table:
        """Return the scheduler's columns of a request when the step being checked was planned; empty if it had none."""
        return (self.facts.tables.get(request) if self.facts else None) or self._no_columns

    def life(self, row: int) -> Life | None:
        """Return the request in a row of the batch; None for a dead row and for one that does not exist."""
        return self.lives[row] if 0 <= row < len(self.lives) else None

    def may_read_anything(self, life: Life) -> bool:
        """Return True if the step being checked may find anything in the memory of a request that is over by now."""
        return self.reference.may_read_anything(life, self.step)

    def who(self, row: int) -> Request | Row:
        """Return who is in a row of the batch, also in one that does not exist."""
        return who(self.names[row]) if 0 <= row < len(self.names) else Row(row, self.is_dummy)

    def past(self, block: int, layer: int = 0) -> Past:
        """Return what happened last to a page of a block."""
        return past(self.reference.ledger.history(block, layer))


class Oracle:
    """Base of all oracles. Subclasses set the class attributes and override hooks."""

    rules: ClassVar[tuple[Rule, ...]] = ()
    """Rules that it checks; several where one observation can break either of closely related rules."""
    title: ClassVar[str] = ""
    needs: ClassVar[frozenset[str]] = frozenset()
    """Words of `Capabilities.observes` without which it cannot run."""

    def __init__(self) -> None:
        self.exercised: dict[str, int] = dict.fromkeys(self.ids(), 0)

    @classmethod
    def ids(cls) -> tuple[str, ...]:
        """Return the ids of its rules."""
        return tuple([rule.id for rule in cls.rules])

    def count(self, oracle: str = "", times: int = 1) -> None:
        """Count a check that could have failed."""
        self.exercised[oracle or self.rules[0].id] += times

    def on_planned(self, context: Context, planned: Planned) -> Violation | None:
        """A step was planned; `context.before` is the view before it."""

    def on_zeroed(self, context: Context, zeroed: Zeroed) -> Violation | None:
        """Blocks were zeroed."""

    def on_copied(self, context: Context, copied: Copied) -> Violation | None:
        """A state, or slots of an attention page, were copied."""

    def on_loaded(self, context: Context, loaded: Loaded) -> Violation | None:
        """Content was loaded from outside the pool."""

    def on_state_read(self, context: Context, read: StateRead) -> Violation | None:
        """A kernel read an initial state."""

    def on_state_write(self, context: Context, write: StateWrite) -> Violation | None:
        """A kernel stored a state."""

    def on_slot_read(self, context: Context, read: SlotRead) -> Violation | None:
        """Attention read keys and values."""

    def on_slot_write(self, context: Context, write: SlotWrite) -> Violation | None:
        """Keys and values were stored."""

    def on_outside(self, context: Context, outside: OutOfRange) -> Violation | None:
        """Metadata pointed a kernel at an entry that does not exist."""

    def on_row(self, context: Context, row: ForwardRow, life: Life) -> Violation | None:
        """A live row was executed; its life has not advanced yet."""

    def on_forward(self, context: Context, forward: Forward) -> Violation | None:
        """A whole forward was executed; lives have not advanced yet."""

    def on_delivered(self, context: Context, delivered: Delivered) -> Violation | None:
        """The client got tokens."""

    def on_numeric(self, context: Context, numeric: Numeric) -> Violation | None:
        """A forward was executed on bytes; the `Forward` with its tags follows."""

    def on_real_forward(self, context: Context, forward: RealForward) -> Violation | None:
        """A real model was executed; the tags of the same forward follow."""

    def on_side_by_side(self, context: Context, record: SideBySide) -> Violation | None:
        """Check what two implementations of one part answered."""

    def on_view(self, context: Context, view: View) -> Violation | None:
        """Metadata at the end of an event."""

    def on_idle(self, context: Context, view: View) -> Violation | None:
        """The trace is over, all requests have ended, the worker has dropped their rows."""

    def violation(
        self,
        context: Context,
        relation: str,
        *,
        field: str = "",
        expected: Value = "",
        observed: Value = "",
        request: str = "",
        group: int = -1,
        block: int = -1,
        oracle: str = "",
        **details: Value,
    ) -> Violation:
        """Return a violation with step, event and group kind filled in from the context.

        `relation` and `details` make its sentence (`judge.sentences`); `field` is the relation unless it is given.
        """
        return Violation(
            oracle=oracle or self.rules[0].id,
            field=field or relation,
            relation=relation,
            details=details,
            expected=expected,
            observed=observed,
            step=context.step,
            event=context.event_index,
            event_kind=context.event_kind,
            request=request,
            group=group,
            group_kind=context.layout.groups[group].kind if group >= 0 else "",
            block=block,
        )


def found(context: Context, tag: int | None, part: str = "") -> Found | None:
    """Return what a tag stands for: a state, or with `part` ("KV", "input") what belongs to one position."""
    if tag is None:
        return None
    if tag == 0:
        return ZeroedMemory()
    if tag < 0:
        return Foreign()
    for name, life in context.reference.lives.items():
        if tag in life.truth.tags:
            return _in_prefix(Prefix(name), life.truth.tags.index(tag), part)
    for key, truth in context.reference.truths.items():
        if tag in truth.tags:
            return _in_prefix(Prefix(cached=key.depth), truth.tags.index(tag), part)
    for name, truth in context.reference.replaced.items():
        if tag in truth.tags[1:]:
            return _in_prefix(Prefix(name, before=True), truth.tags.index(tag), part)
    return Unknown(not part)


def named(who: Request | Row) -> str:
    """Return the name of a request or of a dead row, for `Violation.request`."""
    return Words().say(who)


def _in_prefix(prefix: Prefix, depth: int, part: str) -> Found:
    if not depth:
        return Empty()
    return PartOf(prefix, depth - 1, part) if part else StateOf(prefix, depth)
