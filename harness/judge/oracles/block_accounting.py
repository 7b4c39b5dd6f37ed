"""M1 pool, M7 capacity, M9 leak: the partition of blocks, the admission estimate, what is left at the end."""

from __future__ import annotations

from ....reference.block_partition import count_owners, is_partition, partition_faults
from ....reference.layout import peak_blocks
from ....targets.base.observe import Planned, View
from ..verdict import Requests, key_of
from ..violation import Violation
from .base import Context, Oracle
from .rules import Consequence, Rule


class Partition(Oracle):
    """Checks each view of the pool against the partition of blocks."""

    rules = (
        Rule(
            "M1",
            "Every block is exactly one of: null or reserved; free, once in the free queue; owned, with a "
            "reference count of owners + pins.",
            subject="cache",
            consequence=Consequence(
                "Cache blocks are miscounted",
                "Blocks leak, or are freed or handed out while they are in use.",
                "leak",
            ),
        ),
    )
    title = "pool"
    needs = frozenset({"pool", "tables"})

    def __init__(self) -> None:
        super().__init__()
        self._checked: View | None = None

    def on_planned(self, context: Context, planned: Planned) -> Violation | None:
        return self._check(context, planned.view)

    def on_view(self, context: Context, view: View) -> Violation | None:
        return self._check(context, view)

    def _check(self, context: Context, view: View) -> Violation | None:
        # Most steps change nothing between planning and their end.
        if view == self._checked:
            return None
        self._checked = view
        self.exercised["M1"] += 1
        layout = context.layout
        owners = count_owners(view.tables.values(), layout)
        cached = view.published if layout.cache_owns else ()
        observed = (layout, view.free, view.references, owners, view.pins, cached)
        for fault in () if is_partition(*observed) else partition_faults(*observed):
            holders = [name for name, table in view.tables.items() if any(fault.block in row for row in table)]
            return self.violation(
                context,
                fault.kind,
                field=fault.field,
                count=fault.count,
                limit=fault.wanted,
                holders=Requests(tuple(holders)) if holders else None,
                block=fault.block,
                request=holders[0] if holders else "",
            )
        for block in layout.unowned.intersection(view.published):
            return self.violation(
                context, "reserved-published", field="null-hashed", key=key_of(view.published[block]), block=block
            )
        return None


class Capacity(Oracle):
    """Checks estimates and budgets of a plan."""

    rules = (
        Rule(
            "M7",
            "The admission check estimates exactly the blocks that are then taken from the free queue, and a step "
            "schedules no more tokens than its budget. Where a load extends a hit, the estimate may include the "
            "states of the hit, which are then not used.",
            subject="resources",
            consequence=Consequence(
                "The admission check miscounts cache blocks",
                "Requests are admitted without enough memory, or wait although there is enough.",
                "slower",
            ),
        ),
    )
    title = "capacity"
    needs = frozenset({"estimates"})

    def on_planned(self, context: Context, planned: Planned) -> Violation | None:
        tokens = sum([row.num_tokens for row in planned.rows])
        if tokens > planned.budget:
            return self.violation(context, "budget", expected=planned.budget, observed=tokens)
        for row in planned.rows:
            if row.estimated < 0:
                continue
            self.exercised["M7"] += 1
            states = sum(group.kind == "mamba" for group in context.layout.groups) if row.hit and row.external else 0
            if not row.taken <= row.estimated <= row.taken + states:
                return self.violation(
                    context,
                    "estimate",
                    field="blocks",
                    expected=row.estimated,
                    observed=row.taken,
                    request=row.name,
                )
        return None


class Leak(Oracle):
    """Checks what is held and what is left over."""

    rules = (
        Rule(
            "M9",
            "Lists that are drained in each step are empty after it; no request holds more blocks than its tokens "
            "need; when all requests have ended, nothing is left over.",
            subject="resources",
            consequence=Consequence(
                "Cache memory leaks", "Memory is not returned: a long-running server loses capacity.", "leak"
            ),
        ),
    )
    title = "leak"
    needs = frozenset({"leftovers"})

    def __init__(self) -> None:
        super().__init__()
        self._ahead = 0
        """Most steps that were in flight at a time: columns for their rejected drafts stay allocated."""
        self._reach: dict[str, int] = {}
        """Most tokens that blocks were allocated for since the request's admission."""
        self._settled: dict[str, int] = {}
        """Tokens that were settled when the request's previous step was planned."""
        self._known_at_admission: dict[str, int] = {}
        """Tokens that were known of the request when it was admitted last: its prefill ends there."""

    def on_planned(self, context: Context, planned: Planned) -> Violation | None:
        layout = context.layout
        self._ahead = max(self._ahead, len(context.reference.pending))
        for row in planned.rows:
            # Columns stay allocated when the drafts that they were for are rejected.
            reach = row.start + row.num_tokens + layout.num_speculative_tokens + layout.overallocation
            if not row.anew:
                reach = max(reach, self._reach.get(row.name, 0))
            else:
                self._known_at_admission[row.name] = context.reference.lives[row.name].known
            self._reach[row.name] = reach
            if not context.has_pool:
                continue
            table = planned.view.tables[row.name]
            settled = min(context.reference.certain(row.name), row.start)
            before = 0 if row.anew else min(self._settled.get(row.name, 0), settled)
            self._settled[row.name] = settled
            if before < self._known_at_admission.get(row.name, 0):
                before = 0
            for index, group in enumerate(layout.groups):
                held = len(table[index]) - table[index].count(layout.null_block)
                # A group that gives blocks back in batches (`lag`) is held to what was settled a step ago, and may
                # keep all until its prefill is settled. What a prefix cache has of it is locked by whole nodes of a
                # tree, of which a window may need the end alone.
                known = before if group.lag else settled
                if group.lag:
                    published = planned.view.published
                    held -= sum(block in published for block in table[index] if block != layout.null_block)
                most = peak_blocks(group, layout.mode, reach, layout.num_speculative_tokens, self._ahead, known)
                self.exercised["M9"] += 1
                if held > most:
                    return self.violation(
                        context,
                        "peak",
                        reach=reach,
                        expected=most,
                        observed=held,
                        request=row.name,
                        group=index,
                    )
        return None

    def on_view(self, context: Context, view: View) -> Violation | None:
        self.exercised["M9"] += len(view.drained)
        for what, size in view.drained.items():
            if size:
                field = what.replace(" ", "-")
                return self.violation(context, "undrained", field=field, what=what, expected=0, observed=size)
        return None

    def on_idle(self, context: Context, view: View) -> Violation | None:
        for what, size in view.leftovers.items():
            self.count()
            if size:
                field = what.replace(" ", "-")
                return self.violation(context, "left-over", field=field, what=what, expected=0, observed=size)
        layout = context.layout
        if not context.has_pool:
            return None
        taken = layout.unowned | frozenset(view.published if layout.cache_owns else ())
        for what, ids in layout.pools.items():
            usable, free = sum(one not in taken for one in ids), sum(one in ids for one in view.free)
            if free != usable:
                return self.violation(context, "not-freed", field="blocks", what=what, expected=usable, observed=free)
        return None
