"""S6 output: inputs and outputs are the tokens of the language model."""

from __future__ import annotations

from ....reference.request import Life
from ....targets.base.observe import Delivered, ForwardRow
from ..violation import Violation
from .base import Context, Oracle


class Output(Oracle):
    """S6: a request's inputs and outputs are those of the language model on its prompt, regardless of caching, chunked
    prefill, speculative decoding and the rest of the batch; exactly the correct drafts are accepted, or only those up
    to the request's last token. A request ends with an error only if a load for it breaks off, and after its end it
    gets nothing."""

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
            if len(row.sampled) < len(wanted):
                wanted = wanted[: life.total_length - end]
            if list(row.sampled) != wanted:
                return self._differs(context, life, "sampled", wanted, list(row.sampled))
        return None

    def on_delivered(self, context: Context, delivered: Delivered) -> Violation | None:
        for name, tokens in delivered.outputs:
            life = context.reference.lives.get(name)
            if life is None or life.parked:
                if tokens and (violation := self._ended(context, name, f"the tokens {list(tokens)}")):
                    return violation
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
            if life is None or life.parked:
                if violation := self._ended(context, name, "another end"):
                    return violation
            elif not life.aborted and life.delivered != life.max_new_tokens:
                return self._differs(context, life, "length", life.max_new_tokens, life.delivered)
        for name in delivered.failed:
            life = context.reference.lives.get(name)
            if life is None or life.parked:
                if violation := self._ended(context, name, "an error"):
                    return violation
            elif not life.aborted and not life.load_breaks_off:
                return self._differs(context, life, "error", "no error", "an error")
        return None

    def _ended(self, context: Context, name: str, what: str) -> Violation | None:
        """Return a violation unless the client ended the request: its results may have been in flight then."""
        if name in context.reference.withdrawn:
            return None
        return self.violation(
            context,
            "after-end",
            f"{name}, which has ended or never arrived, gets {what}",
            expected="nothing",
            observed=what,
            request=name,
        )

    def _differs(self, context: Context, life: Life, field: str, wanted: object, seen: object) -> Violation:
        return self.violation(
            context,
            field,
            f"{life.name}, {life.settled} tokens computed: {field} is {seen}, expected {wanted}",
            expected=wanted,
            observed=seen,
            request=life.name,
        )
