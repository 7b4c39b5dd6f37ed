"""S8 order: device work is executed in the order in which it was planned."""

from __future__ import annotations

from ....targets.base.observe import Copied, Forward, Loaded, Zeroed
from ..violation import Violation
from .base import Context, Oracle
from .rules import Consequence, Rule


class Order(Oracle):
    """Checks device work against the steps in flight."""

    rules = (
        Rule(
            "S8",
            "No zeroing, copy or forward of a step overtakes the forward of an earlier step that uses the same "
            "block. A load for a waiting request has no place in this order: what it must not overtake shows in "
            "content (S1, S2, S3).",
            subject="device",
            consequence=Consequence(
                "Device work overtakes an earlier step",
                "An earlier step may read memory that is already overwritten.",
                "wrong tokens",
            ),
        ),
    )
    title = "order"
    needs = frozenset({"device_order", "tables"})

    def on_zeroed(self, context: Context, zeroed: Zeroed) -> Violation | None:
        for block in zeroed.blocks:
            violation = self._overtakes(context, zeroed.step, block, "zeroing-overtakes")
            if violation:
                return violation
        return None

    def on_copied(self, context: Context, copied: Copied) -> Violation | None:
        return self._overtakes(context, copied.step, copied.destination, "copy-overtakes")

    def on_loaded(self, context: Context, loaded: Loaded) -> Violation | None:
        if loaded.request in context.reference.loading:
            return None
        return self._overtakes(context, loaded.step, loaded.block, "load-overtakes")

    def on_forward(self, context: Context, forward: Forward) -> Violation | None:
        self.exercised["S8"] += 1
        for earlier in context.reference.pending:
            if earlier < forward.step and not forward.dummy:
                return self.violation(
                    context, "forward-overtakes", field="forward", expected=earlier, observed=forward.step
                )
        return None

    def _overtakes(self, context: Context, step: int, block: int, relation: str) -> Violation | None:
        self.exercised["S8"] += 1
        for earlier, facts in context.reference.pending.items():
            if earlier >= step:
                break
            for name in facts.lives:
                if any(block in columns for columns in facts.tables.get(name, ())):
                    return self.violation(
                        context, relation, field="overtaken", by=step, earlier=earlier, request=name, block=block
                    )
        return None
