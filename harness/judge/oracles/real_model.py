"""The oracles on a real model's numbers: S7 NaN, S4 the fills of unused memory, S6 the same tokens alone.

They judge `RealForward` records, which come before the `Forward` of the same step: the verdict is the numbers' alone.
S4 is exact: the same steps are executed on engines that differ only in what unused memory holds, and every bit has to
be the same. S6 has a tolerance, which the record carries: tokens alone are computed in other chunks, so rounding
differs. An exact record has none: the request's own steps were repeated alone with batch-invariant kernels, so that
log-probabilities (S6) and stored states (S1) have the same bits.
"""

from __future__ import annotations

import numpy as np

from ....reference.request import Life
from ....targets.base.observe import RealDraft, RealForward, RealRow
from ..violation import Violation
from .base import Context, Oracle
from .rules import Consequence, Rule

FIELDS = frozenset(
    {"logprobs", "logprobs-nan", "logprobs-fills", "logprobs-bits", "state-fills", "state-bits", "draft-nan"}
    | {"draft-fills"}
)
"""Fields of the violations: only a real model's numbers show them."""

WRONG_NUMBERS = Consequence(
    "Wrong log-probabilities", "The model computes other log-probabilities than for the same tokens alone.",
    "wrong tokens",
)  # fmt: skip


class RealNumbers(Oracle):
    """Checks the log-probabilities of a real model."""

    rules = (
        Rule(
            "S7",
            "No log-probability is NaN, of the model or of its draft model.",
            fields=frozenset({"logprobs-nan", "draft-nan"}),
        ),
        Rule(
            "S4",
            "Log-probabilities, of drafts too, and stored states have the same bits whatever unused memory holds.",
            fields=frozenset({"logprobs-fills", "state-fills", "draft-fills"}),
        ),
        Rule(
            "S6",
            "Log-probabilities are those of the same tokens alone in an empty engine, within a tolerance.",
            consequence=WRONG_NUMBERS,
            fields=frozenset({"logprobs"}),
        ),
        Rule(
            "S6",
            "With batch-invariant kernels, log-probabilities have the bits of the same steps alone.",
            consequence=WRONG_NUMBERS,
            fields=frozenset({"logprobs-bits"}),
        ),
        Rule(
            "S1",
            "With batch-invariant kernels, stored states have the bits of those that the same steps alone store.",
            fields=frozenset({"state-bits"}),
        ),
    )
    title = "real model"
    needs = frozenset({"real_model"})

    def on_real_forward(self, context: Context, forward: RealForward) -> Violation | None:
        if forward.exact:
            return self._exact(context, forward)
        for row in forward.rows:
            life = context.facts.lives.get(row.request) if context.facts else None
            if life is not None and (violation := self._row(context, forward, row, life)):
                return violation
        for draft in forward.drafts:
            if context.facts and draft.request in context.facts.lives and (violation := self._draft(context, draft)):
                return violation
        for group, layer, block in forward.states:
            return self.violation(context, "state-fills", layer=layer, group=group, block=block, oracle="S4")
        self.count("S4", 1)
        return None

    def _draft(self, context: Context, draft: RealDraft) -> Violation | None:
        """What a draft is does not matter: it is verified. What it was computed from does."""
        self.count("S7")
        self.count("S4")
        field, oracle = ("draft-nan", "S7") if draft.is_nan else ("draft-fills", "S4")
        if draft.agrees and not draft.is_nan:
            return None
        return self.violation(context, field, number=draft.number, request=draft.request, oracle=oracle)

    def _exact(self, context: Context, forward: RealForward) -> Violation | None:
        for request, tokens, group, layer in forward.moved:
            return self.violation(
                context, "state-bits", tokens=tokens, layer=layer, request=request, group=group, oracle="S1"
            )
        self.count("S1", 1)
        for row in forward.rows:
            if row.expected is None:
                continue
            self.count("S6")
            if row.logprobs.tobytes() != row.expected.tobytes():
                distance = float(np.abs(row.logprobs - row.expected).max())
                return self.violation(
                    context, "logprobs-bits", position=row.position, distance=distance, request=row.request, oracle="S6"
                )
        return None

    def _row(self, context: Context, forward: RealForward, row: RealRow, life: Life) -> Violation | None:
        self.count("S7")
        if np.isnan(row.logprobs).any():
            return self.violation(context, "logprobs-nan", position=row.position, request=life.name, oracle="S7")
        self.count("S4")
        if not row.agrees:
            return self.violation(context, "logprobs-fills", position=row.position, request=life.name, oracle="S4")
        if row.expected is None:
            return None
        self.count("S6")
        distance = float(np.abs(row.logprobs - row.expected).max())
        if distance <= forward.tolerance:
            return None
        return self.violation(
            context,
            "logprobs",
            position=row.position,
            distance=distance,
            tolerance=forward.tolerance,
            expected=int(row.expected.argmax()),
            observed=int(row.logprobs.argmax()),
            request=life.name,
            oracle="S6",
        )
