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
from ....targets.base.observe import RealForward, RealRow
from ..violation import Violation
from .base import Context, Oracle

FIELDS = frozenset({"logprobs", "logprobs-nan", "logprobs-fills", "logprobs-bits", "state-fills", "state-bits"})
"""Fields of the violations: only a real model's numbers show them."""


class RealNumbers(Oracle):
    """S7: no log-probability is NaN. S4: log-probabilities and stored states have the same bits whatever unused memory
    holds. S6: log-probabilities are those of the same tokens alone in an empty engine, within a tolerance; with
    batch-invariant kernels they have the bits of the same steps alone. S1: with batch-invariant kernels, stored states
    have the bits of those that the same steps alone store."""

    ids = ("S7", "S4", "S6", "S1")
    title = "real model"
    needs = frozenset({"real_model"})

    def on_real_forward(self, context: Context, forward: RealForward) -> Violation | None:
        if forward.exact:
            return self._exact(context, forward)
        for row in forward.rows:
            life = context.facts.lives.get(row.request) if context.facts else None
            if life is not None and (violation := self._row(context, forward, row, life)):
                return violation
        for group, layer, block in forward.states:
            return self.violation(
                context, "state-fills",
                f"the state that layer {layer} of group {group} leaves in block {block} depends on unused memory",
                expected="the same bits", observed="others", group=group, block=block, oracle="S4",
            )  # fmt: skip
        self.count("S4", 1)
        return None

    def _exact(self, context: Context, forward: RealForward) -> Violation | None:
        for request, tokens, group, layer in forward.moved:
            return self.violation(
                context, "state-bits",
                f"{request}, after {tokens} tokens: the state of layer {layer} of group {group} has other bits than "
                "after the same steps alone (batch-invariant kernels, tolerance 0)",
                expected="the same bits", observed="others", request=request, group=group, oracle="S1",
            )  # fmt: skip
        self.count("S1", 1)
        for row in forward.rows:
            if row.expected is None:
                continue
            self.count("S6")
            if row.logprobs.tobytes() != row.expected.tobytes():
                return self.violation(
                    context, "logprobs-bits",
                    f"{row.request}, after token {row.position}: log-probabilities differ by up to "
                    f"{float(np.abs(row.logprobs - row.expected).max()):.3g} from those of the same steps alone "
                    "(batch-invariant kernels, tolerance 0)",
                    expected="the same bits", observed="others", request=row.request, oracle="S6",
                )  # fmt: skip
        return None

    def _row(self, context: Context, forward: RealForward, row: RealRow, life: Life) -> Violation | None:
        where = f"{life.name}, after token {row.position}"
        self.count("S7")
        if np.isnan(row.logprobs).any():
            return self.violation(
                context, "logprobs-nan", f"{where}: log-probabilities are NaN",
                expected="finite numbers", observed="NaN", request=life.name, oracle="S7",
            )  # fmt: skip
        self.count("S4")
        if not row.agrees:
            return self.violation(
                context, "logprobs-fills", f"{where}: log-probabilities depend on what unused memory holds",
                expected="the same bits", observed="others", request=life.name, oracle="S4",
            )  # fmt: skip
        if row.expected is None:
            return None
        self.count("S6")
        distance = float(np.abs(row.logprobs - row.expected).max())
        if distance <= forward.tolerance:
            return None
        alone, batched = int(row.expected.argmax()), int(row.logprobs.argmax())
        return self.violation(
            context, "logprobs",
            f"{where}: log-probabilities differ by {distance:.3g} from those of the same tokens alone (tolerance "
            f"{forward.tolerance:g}); greedy token {batched}, alone {alone}",
            expected=alone, observed=batched, request=life.name, oracle="S6",
        )  # fmt: skip
