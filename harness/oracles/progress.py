"""S6 output, S8 order, M8 liveness: what comes out, in which order the device works, and that it goes on."""

from __future__ import annotations

from ...reference.request import Life
from ...targets.base.observe import Copied, Delivered, Forward, ForwardRow, Loaded, Planned, View, Zeroed
from ..violation import Violation
from .base import Context, Oracle

STALL_STEPS_MAX = 8
"""Planned steps in a row without a single token while requests wait."""


class Output(Oracle):
    """S6: a request's inputs and outputs are those of the language model on its prompt, whatever is cached, chunked,
    speculated or batched with it; accepted drafts are exactly the right ones, up to the end of a session's turn."""

    ids = ("S6",)
    title = "output"
    needs = frozenset()

    def on_row(self, context: Context, row: ForwardRow, life: Life) -> Violation | None:
        self.exercised["S6"] += 1
        truth, known = life.truth, len(row.tokens) - row.drafts
        if row.position != life.settled:
            return self._differs(context, life, "position", life.settled, row.position)
        end = row.position + known
        if end > len(truth.tokens):
            truth.reach(end)
        inputs = list(row.tokens[:known])
        if inputs != truth.tokens[row.position : end]:
            return self._differs(context, life, "input", truth.tokens[row.position : end], inputs)
        if row.sampled:
            wanted = life.sampled_truth(end, row.tokens[known:])
            if life.session and len(row.sampled) < len(wanted):
                wanted = wanted[: life.total_length - end]
            if list(row.sampled) != wanted:
                return self._differs(context, life, "sampled", wanted, list(row.sampled))
        return None

    def on_delivered(self, context: Context, delivered: Delivered) -> Violation | None:
        for name, tokens in delivered.outputs:
            life = context.reference.lives.get(name)
            if life is None:
                continue
            self.exercised["S6"] += 1
            truth = life.truth
            start = truth.prompt_length + life.delivered
            end = start + len(tokens)
            if end > len(truth.tokens):
                truth.reach(end)
            wanted = truth.tokens[start:end]
            if list(tokens) != wanted:
                return self._differs(context, life, "delivered", wanted, list(tokens))
            life.delivered += len(tokens)
        for name in delivered.finished:
            life = context.reference.lives.get(name)
            if life is not None and not life.aborted and life.delivered != life.max_new_tokens:
                return self._differs(context, life, "length", life.max_new_tokens, life.delivered)
        return None

    def _differs(self, context: Context, life: Life, field: str, wanted: object, seen: object) -> Violation:
        return self.violation(
            context,
            field,
            f"{life.name}, {life.settled} tokens computed: {field} is {seen}, expected {wanted}",
            expected=wanted,
            observed=seen,
            request=life.name,
        )


class Order(Oracle):
    """S8: no zeroing, copy or forward of a step overtakes the forward of an earlier step that uses the same block."""

    ids = ("S8",)
    title = "order"
    needs = frozenset({"device_order", "tables"})

    def on_zeroed(self, context: Context, zeroed: Zeroed) -> Violation | None:
        for block in zeroed.blocks:
            violation = self._overtakes(context, zeroed.step, block, "is zeroed")
            if violation:
                return violation
        return None

    def on_copied(self, context: Context, copied: Copied) -> Violation | None:
        return self._overtakes(context, copied.step, copied.destination, "is copied to")

    def on_loaded(self, context: Context, loaded: Loaded) -> Violation | None:
        return self._overtakes(context, loaded.step, loaded.block, "is loaded")

    def on_forward(self, context: Context, forward: Forward) -> Violation | None:
        self.exercised["S8"] += 1
        for earlier in context.reference.pending:
            if earlier < forward.step and not forward.dummy:
                return self.violation(
                    context,
                    "forward",
                    f"the forward of step {forward.step} runs before that of step {earlier}",
                    expected=earlier,
                    observed=forward.step,
                )
        return None

    def _overtakes(self, context: Context, step: int, block: int, what: str) -> Violation | None:
        self.exercised["S8"] += 1
        for earlier, facts in context.reference.pending.items():
            if earlier >= step:
                break
            for name in facts.lives:
                if any(block in columns for columns in facts.tables.get(name, ())):
                    return self.violation(
                        context,
                        "overtaken",
                        f"block {block} {what} for step {step} while step {earlier} still uses it for {name}",
                        expected=f"after step {earlier}",
                        observed=f"before step {earlier}",
                        request=name,
                        block=block,
                    )
        return None


class Liveness(Oracle):
    """M8: while requests are unfinished, some step within a bounded number makes progress."""

    ids = ("M8",)
    title = "liveness"
    needs = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self._stalled = 0

    def on_planned(self, context: Context, planned: Planned) -> Violation | None:
        self.exercised["M8"] += 1
        self._stalled = 0 if planned.rows else self._stalled + 1
        return None

    def on_view(self, context: Context, view: View) -> Violation | None:
        unfinished = [*view.running, *view.waiting]
        if not unfinished:
            self._stalled = 0
        if self._stalled <= STALL_STEPS_MAX:
            return None
        return self.violation(
            context,
            "stall",
            f"nothing was scheduled in {self._stalled} steps while {', '.join(unfinished)} could run",
            expected="progress",
            observed="none",
            request=unfinished[0],
        )

    def on_idle(self, context: Context, view: View) -> Violation | None:
        for life in context.reference.lives.values():
            if life.aborted:
                continue
            return self.violation(
                context,
                "lost",
                f"{life.name} neither runs nor waits, but its client got only {life.delivered} of "
                f"{life.max_new_tokens} tokens",
                expected=life.max_new_tokens,
                observed=life.delivered,
                request=life.name,
            )
        return None
