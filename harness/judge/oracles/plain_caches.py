"""S9 rows: each plain cache holds exactly the content of its request."""

from __future__ import annotations

from collections.abc import Sequence

from ....reference.layout import Group, first_attended
from ....reference.request import Life
from ....reference.tokens import first_difference
from ....targets.base.observe import Content, SlotContent, StateContent, View
from ..verdict import Batch, Prefix, Request, StateOf, Value
from ..violation import Violation
from .base import Context, Oracle, found
from .rules import Consequence, Rule


class Rows(Oracle):
    """Checks each plain cache after each event."""

    rules = (
        Rule(
            "S9",
            "After each event, the cache of each request holds exactly the content of the tokens that it has "
            "computed, and no cache belongs to two requests; select, reorder, repeat, crop and reset leave the "
            "rows that they should, and nothing changes if the engine refuses one.",
            subject="device",
            consequence=Consequence(
                "A row of the batch's cache holds {content}",
                "All of the row's following tokens are computed from it.",
                "wrong tokens",
            ),
        ),
    )
    title = "plain caches"
    needs = frozenset({"caches"})

    def on_view(self, context: Context, view: View) -> Violation | None:
        reference, caches = context.reference, view.caches
        if reference.batch is not None and list(view.running) != list(reference.batch):
            return self._order(context, view, reference.batch)
        if reference.pending:
            return None
        owners: dict[int, str] = {}
        for name, cache in caches.items():
            life = reference.lives.get(name)
            if life is None:
                continue
            if cache in owners:
                return self._shared(context, cache, owners[cache], name)
            owners[cache] = name
            if violation := self._content(context, life, cache):
                return violation
        for name in view.running:
            life = reference.lives.get(name)
            if life is not None and life.settled and name not in caches:
                return self._missing(context, life)
        return None

    def _content(self, context: Context, life: Life, cache: int) -> Violation | None:
        for index, group in enumerate(context.layout.groups):
            for layer in range(group.layers):
                self.exercised["S9"] += 1
                content = context.target.read(index, layer, cache)
                if not self._right(context, life, group, content):
                    return self._wrong(context, life, index, layer, cache, content)
        return None

    def _right(self, context: Context, life: Life, group: Group, content: Content) -> bool:
        depth = life.settled
        if group.kind == "mamba":
            return not depth or content == _state(context, life, group)
        if not isinstance(content, SlotContent):
            return False
        tags, first = list(content.tags), 0
        if group.draft:
            tags = tags[:depth]  # proposals of the drafter may follow
        if group.window:
            first = max(min(depth - len(tags), first_attended(group, depth)), 0)
        return tags == life.truth.slots(first, depth)

    def _wrong(self, context: Context, life: Life, index: int, layer: int, cache: int, content: Content) -> Violation:
        group, depth = context.layout.groups[index], life.settled
        field, relation, at, position = "kind", "cache-other-kind", 0, 0
        seen: Value = None
        if isinstance(content, SlotContent) and group.kind == "attention":
            tags = list(content.tags)
            first = max(depth - len(tags), 0) if group.window else 0
            at = first_difference(life.truth.slots(first, depth), tags)
            position = first + at
            field, relation = "slot", "cache-slot"
            seen = found(context, tags[at] if at < len(tags) else None, "KV")
        elif isinstance(content, StateContent) and group.kind == "mamba":
            state = _state(context, life, group)
            if content.temporal == state.temporal:
                at = first_difference(state.window, content.window)
                field, relation = "conv", "cache-input"
                seen = found(context, content.window[at] if at < len(content.window) else None, "input")
            else:
                field, relation, seen = "temporal", "cache-state", found(context, content.temporal)
        return self.violation(
            context,
            relation,
            field=field,
            depth=depth,
            layer=layer,
            index=at,
            position=position,
            expected="" if relation == "cache-slot" else StateOf(Prefix(life.name), depth),
            observed=seen,
            request=life.name,
            group=index,
            block=cache,
        )

    def _order(self, context: Context, view: View, batch: Sequence[str]) -> Violation:
        expected, observed = Batch(tuple(batch)), Batch(tuple(view.running))
        return self.violation(context, "batch-order", field="order", expected=expected, observed=observed)

    def _shared(self, context: Context, cache: int, first: str, second: str) -> Violation:
        return self.violation(
            context, "shared-cache", field="shared", first=Request(first), request=second, block=cache
        )

    def _missing(self, context: Context, life: Life) -> Violation:
        return self.violation(context, "no-cache", field="missing", settled=life.settled, request=life.name)


def _state(context: Context, life: Life, group: Group) -> StateContent:
    """Return the content of a state layer after the tokens that a request has computed."""
    depth = life.settled
    temporal = life.truth.tag(depth) if group.recurrent else None
    return StateContent(temporal, life.truth.window(depth, context.layout.conv_width) if group.conv else ())
