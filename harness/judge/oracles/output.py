"""S6 output: inputs and outputs are the tokens of the language model."""

from __future__ import annotations

from collections.abc import Sequence

from ....reference.draft_trees import longest_path
from ....reference.request import Life
from ....reference.tokens import draft_tokens
from ....targets.base.observe import Delivered, ForwardRow
from ..verdict import Tokens, Value
from ..violation import Violation
from .base import Context, Oracle
from .rules import Consequence, Rule


class Output(Oracle):
    """Checks inputs, outputs and ends of requests."""

    rules = (
        Rule(
            "S6",
            "A request's inputs and outputs are those of the language model on its prompt, regardless of caching, "
            "chunked prefill, speculative decoding and the rest of the batch; exactly the correct drafts are "
            "accepted, or only those up to the request's last token; with structured output an engine may also "
            "refuse right drafts that its grammar has not checked. A drafter gets the right inputs, and each right "
            "draft that it makes from them is verified. Log-probabilities of a prompt are those of its tokens. A "
            "request ends with an error if its grammar does not compile, and then gets no token; else only if a load "
            "for it breaks off. After its end it gets nothing.",
            subject="device",
            consequence=Consequence(
                "Wrong tokens", "The client receives other tokens than the model's.", "wrong tokens"
            ),
        ),
    )
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
        inputs, wanted = list(row.tokens[:known]), truth.tokens[row.position : end]
        if inputs != wanted and not _is_excused(life, row.position, inputs, wanted):
            return self._differs(context, life, "input", Tokens(tuple(wanted)), Tokens(tuple(inputs)))
        if row.guessed:
            # The model's first choices: a drafter does not know which tokens are withheld.
            wanted = draft_tokens(truth.tag(end), row.guessed, row.guessed, truth.key)
            drafts = row.tokens[known:]
            guesses = [drafts[index] for index in longest_path(drafts, row.parents, wanted)]
            if guesses != wanted:
                guesses = guesses if row.parents else list(drafts[: row.guessed])
                return self._differs(context, life, "guess", Tokens(tuple(wanted)), Tokens(tuple(guesses)))
        if row.sampled and not life.ends_before(end) and not context.may_read_anything(life):
            proposed = len(row.tokens) - row.fillers
            drafts, parents = row.tokens[known:proposed], row.parents[: proposed - known]
            wanted, sampled = life.sampled_truth(end, drafts, parents), list(row.sampled)
            if row.fillers and len(sampled) > len(wanted):
                wanted = truth.tokens[end : end + len(sampled)]
            last = life.total_length - end
            if truth.free_from >= life.total_length:
                # Stop tokens that were held back up to the end may be held back behind it, where nothing counts.
                wanted, sampled = wanted[: max(last, 0)], sampled[: max(last, 0)]
            if len(sampled) < len(wanted):
                # In a step that was in flight behind the end nothing counts. An engine may know the foreseen end only.
                # It may refuse drafts that the answer's grammar has not seen.
                may_cut = last <= 0 or len(sampled) == life.foreseen_length - end or life.structured > 0
                wanted = wanted[: len(sampled) if may_cut else last]
            if sampled != wanted:
                return self._differs(context, life, "sampled", Tokens(tuple(wanted)), Tokens(tuple(sampled)))
        return None

    def on_delivered(self, context: Context, delivered: Delivered) -> Violation | None:
        for name, tokens in delivered.outputs:
            life = context.reference.lives.get(name)
            if life is None or life.parked:
                if tokens and (violation := self._ended(context, name, "tokens", Tokens(tuple(tokens)))):
                    return violation
                continue
            self.exercised["S6"] += 1
            if life.grammar_fails and not life.aborted:
                return self._uncompiled(context, life, Tokens(tuple(tokens)))
            truth = life.truth
            start = truth.prompt_length + life.delivered
            end = start + len(tokens)
            if end > len(truth.tokens):
                truth.reach(end)
            wanted = truth.tokens[start:end]
            if list(tokens) != wanted:
                return self._differs(context, life, "delivered", Tokens(tuple(wanted)), Tokens(tuple(tokens)))
            life.delivered += len(tokens)
            if life.delivered > life.answer_length:
                return self._differs(context, life, "length", life.answer_length, life.delivered)
        for name, tokens in delivered.scored:
            life = context.reference.lives.get(name)
            if life is None:
                if violation := self._ended(context, name, "tokens", Tokens(tuple(tokens))):
                    return violation
                continue
            wanted = life.truth.tokens[life.logprobs_from + 1 : life.truth.prompt_length]
            if list(tokens) != wanted:
                return self._differs(context, life, "prompt-logprobs", Tokens(tuple(wanted)), Tokens(tuple(tokens)))
        for name in delivered.finished:
            life = context.reference.lives.get(name)
            if life is None or life.parked:
                if violation := self._ended(context, name, "end"):
                    return violation
            elif life.grammar_fails and not life.aborted:
                return self._uncompiled(context, life, "an end")
            elif not life.aborted and life.delivered != life.answer_length:
                return self._differs(context, life, "length", life.answer_length, life.delivered)
        for name in delivered.failed:
            life = context.reference.lives.get(name)
            if life is None or life.parked:
                if violation := self._ended(context, name, "error"):
                    return violation
            elif not (life.aborted or life.load_breaks_off or life.grammar_fails):
                return self.violation(context, "failed", field="error", settled=life.settled, request=life.name)
        return None

    def _uncompiled(self, context: Context, life: Life, observed: Value) -> Violation:
        return self.violation(context, "uncompiled", field="uncompiled", observed=observed, request=life.name)

    def _ended(self, context: Context, name: str, what: str, observed: Value = "") -> Violation | None:
        """Return a violation unless the client ended the request: its results may have been in flight then."""
        if name in context.reference.withdrawn:
            return None
        return self.violation(context, f"{what}-after-end", field="after-end", observed=observed, request=name)

    def _differs(self, context: Context, life: Life, field: str, wanted: Value, seen: Value) -> Violation:
        return self.violation(
            context,
            f"differs-{field}",
            field=field,
            what=field,
            settled=life.settled,
            expected=wanted,
            observed=seen,
            request=life.name,
        )


def _is_excused(life: Life, first: int, inputs: Sequence[int], wanted: Sequence[int]) -> bool:
    """Return True if inputs differ only where the answer has ended (`Life.ends_before`): what is sampled there is
    dropped, but a step that was in flight may still read it."""
    differ = [place for place, (one, other) in enumerate(zip(inputs, wanted, strict=True), first) if one != other]
    return all(place >= life.truth.prompt_length and life.ends_before(place) for place in differ)
