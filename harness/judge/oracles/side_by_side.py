"""D2: two implementations of one part of an engine, run side by side, give the same answers."""

from __future__ import annotations

from ....targets.base.observe import SideBySide
from ..verdict import Quoted
from ..violation import Violation
from .base import Context, Oracle
from .rules import Consequence, Rule


class Agreement(Oracle):
    """Counts the answers that were compared, and reports the first that differed."""

    rules = (
        Rule(
            "D2",
            "Two implementations of one part of the engine, given the same operations, give the same answers and own "
            "the same.",
            subject="cache",
            consequence=Consequence("Two implementations of one part differ", "At least one of them is wrong.", ""),
        ),
    )
    title = "side by side"
    needs = frozenset({"side_by_side"})

    def on_side_by_side(self, context: Context, record: SideBySide) -> Violation | None:
        self.count("D2", record.answers)
        if not record.operation:
            return None
        return self.violation(
            context,
            "answers-differ",
            field=record.operation,
            operation=Quoted(record.operation),
            expected=Quoted(record.one),
            observed=Quoted(record.other),
        )
