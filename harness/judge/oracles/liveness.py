"""M8 liveness: the engine makes progress, and computed content is published to the prefix cache.

A hit can only be as long as what was published, so an engine that publishes nothing never violates a rule about hits
(vLLM #54360: hits stay 0). `Publication` therefore checks the publication itself.
"""

from __future__ import annotations

from collections import Counter

from ....reference.layout import Layout, cdiv, first_attended
from ....reference.prefix_cache import key_at
from ....reference.request import Life
from ....targets.base.observe import Delivered, ForwardRow, Planned, View
from ....targets.base.trace import LATE_STEPS_MAX
from ..verdict import Requests, key_of
from ..violation import Violation
from .base import Context, Oracle
from .rules import Consequence, Rule

STALL_STEPS_MAX = 8
"""Planned steps in a row that schedule no token while requests are unfinished."""
STALL_STEPS_MAX_BEHIND_COPIES = 4 * STALL_STEPS_MAX
"""The same while copies are under way (`View.copying`): a slow one takes steps, and the next may wait for it."""


class Liveness(Oracle):
    """Checks that requests make progress."""

    rules = (
        Rule(
            "M8",
            "While requests are unfinished, one of every few steps schedules a token or ends a request (counted "
            "from the last reset of the prefix cache); no request gets lost, and none goes on after its abort.",
            subject="resources",
            consequence=Consequence(
                "A request waits forever", "The engine schedules nothing for it although it could be served.", "hang"
            ),
            otherwise={
                "lost": Consequence("A request is lost", "Its client waits forever.", "hang"),
                "drain": Consequence(
                    "Requests run without an end",
                    "Each step computes tokens for them, and their clients wait forever.",
                    "hang",
                ),
                "aborted": Consequence(
                    "An abort is lost",
                    "The request runs to its end, and takes memory and steps that other requests wait for.",
                    "slower",
                ),
            },
        ),
    )
    title = "liveness"
    needs = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self._stalled = 0
        self._past_abort: Counter[Life] = Counter()
        """Steps whose tokens a request, or a turn, got after its abort."""

    def on_planned(self, context: Context, planned: Planned) -> Violation | None:
        self.exercised["M8"] += 1
        self._stalled = 0 if planned.rows else self._stalled + 1
        return None

    def on_delivered(self, context: Context, delivered: Delivered) -> Violation | None:
        if delivered.finished or delivered.failed:  # a request whose grammar does not compile never has a row
            self._stalled = 0
        for name, tokens in delivered.outputs:
            life = context.reference.lives.get(name)
            if life is None or not life.aborted or not tokens:
                continue
            self._past_abort[life] += 1
            if self._past_abort[life] > LATE_STEPS_MAX:
                return self.violation(context, "aborted", steps=self._past_abort[life], request=name)
        return None

    def on_view(self, context: Context, view: View) -> Violation | None:
        unfinished = [*view.running, *view.waiting]
        # An engine may be paused while it resets its caches; what a request waited for then starts over.
        if not unfinished or context.event_kind == "reset_prefix_cache":
            self._stalled = 0
        if self._stalled <= (STALL_STEPS_MAX_BEHIND_COPIES if view.copying else STALL_STEPS_MAX):
            return None
        return self.violation(
            context, "stall", steps=self._stalled, waiting=Requests(tuple(unfinished)), request=unfinished[0]
        )

    def on_idle(self, context: Context, view: View) -> Violation | None:
        for life in context.reference.lives.values():
            if life.aborted:
                continue
            return self.violation(
                context,
                "lost",
                expected=life.answer_length,
                observed=life.delivered,
                request=life.name,
            )
        return None


def _can_be_hit(layout: Layout, index: int, depth: int) -> bool:
    """Return True if some hit on the grid uses the block that ends at `depth`: a later one may be out of its reach."""
    group, unit = layout.groups[index], layout.hit_unit
    hit = cdiv(depth, unit) * unit
    if index in layout.eagle_groups and depth % unit == group.block_size % unit:
        return True  # the block after a hit
    return first_attended(group, hit) < depth


class Publication(Oracle):
    """Checks what is published when a request is scheduled again."""

    rules = (
        Rule(
            "M8",
            "When a request whose results are known is scheduled again, every block boundary that it has computed "
            "is published, once all tokens of its key are known, if it holds the block, or if this plan released it "
            "and left it free while no request waited, was admitted or was preempted. For attention and mode all that "
            "is every boundary (less where hits are rarer than blocks: `Layout.publish_unit`); for mode align those at "
            "which a step ended or that verified drafts crossed. A block that was published may be evicted later.",
            consequence=Consequence(
                "Cached prefixes are not found",
                "They are computed again: throughput is lost, no wrong token by itself.",
                "slower",
            ),
            fields=frozenset({"unpublished"}),
        ),
    )
    title = "publication"
    needs = frozenset({"pool", "tables"})

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, int] = {}
        """Settled tokens by request, as of the last delivery."""
        self._checked: dict[str, int] = {}
        """Tokens by request up to which publication was checked, or that came with a hit."""
        self._certain: dict[str, int] = {}
        """Tokens by request that the last executed step would have reached with every draft rejected."""

    def on_row(self, context: Context, row: ForwardRow, life: Life) -> Violation | None:
        self._certain[life.name] = row.position + len(row.tokens) - row.drafts
        return None

    def on_delivered(self, context: Context, delivered: Delivered) -> Violation | None:
        for name in context.facts.lives if context.facts else ():
            # A request that waits for a load has a new life, which the reference enters with its first step.
            if name in context.reference.lives and name not in context.reference.loading:
                self._known[name] = context.reference.certain(name)
        return None

    def on_planned(self, context: Context, planned: Planned) -> Violation | None:
        if not context.layout.prefix_caching or context.layout.mode not in ("align", "all"):
            return None
        for row in planned.rows:
            if row.anew:
                self._known[row.name] = self._checked[row.name] = row.hit
                continue
            if row.kept:  # a truncated session resumes from fewer tokens
                for counts in (self._known, self._checked):
                    counts[row.name] = min(counts.get(row.name, 0), row.kept)
            known, checked = self._known.get(row.name, 0), self._checked.get(row.name, 0)
            if known <= checked:
                continue
            self._checked[row.name] = known
            for index in range(len(context.layout.groups)):
                violation = self._published(context, planned, row.name, index, checked, known)
                if violation:
                    return violation
        return None

    @staticmethod
    def _released(context: Context, planned: Planned, name: str, index: int, column: int) -> int | None:
        """Return the block that a column held until this plan, if it is free now: nothing has overwritten its content,
        and without a key it is lost. None for a column that held none, and whenever a request waits, was admitted or
        was preempted: the plan may then have handed the block out and taken it back, which costs it its key. A key of
        another prefix, which it did not have, says that the plan did, for a copy of a state.
        """
        undone = planned.preempted or planned.view.waiting or any(row.admitted for row in planned.rows)
        tables = context.before.tables.get(name)
        if undone or not tables or column >= len(tables[index]):
            return None
        block = tables[index][column]
        key, truth = planned.view.published.get(block), context.reference.lives[name].truth
        if key is not None and key != context.before.published.get(block):
            undone = not context.reference.is_content_of(key, truth)
        return block if block in planned.view.free and not undone else None

    def _published(
        self, context: Context, planned: Planned, name: str, index: int, checked: int, known: int
    ) -> Violation | None:
        group, life = context.layout.groups[index], context.reference.lives[name]
        known = min(known, life.known - context.layout.lookahead)
        size, table, published = group.block_size, planned.view.tables[name][index], planned.view.published
        first = (checked // size + 1) * size
        if group.kind == "mamba" and context.layout.mode == "align":
            first = max(first, self._certain.get(name, known))
            first = cdiv(first, size) * size
        if (group.kind == "mamba" or group.is_local) and not context.layout.keeps_every_state:
            return None
        unit = context.layout.publish_unit
        for depth in range(first, (known // unit * unit if unit else known) + 1, size):
            column = depth // size - 1
            held: int | None = table[column]
            if held == context.null:
                held = self._released(context, planned, name, index, column)
            if held is None or (unit and not _can_be_hit(context.layout, index, depth)):
                continue
            block = held
            self.exercised["M8"] += 1
            key = key_at(context.layout, index, life.truth.tags, depth)
            own = published.get(block)
            same_place = own is not None and (own.group, own.depth) == (index, depth)
            if own is not None and same_place and context.reference.is_content_of(own, life.truth):
                continue  # perhaps named with the token that a session had behind it before it was truncated
            if own != key and key not in published.values():
                return self.violation(
                    context,
                    "unpublished",
                    known=known,
                    depth=depth,
                    observed=key_of(own),
                    request=name,
                    group=index,
                    block=block,
                )
        return None
