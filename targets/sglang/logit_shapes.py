"""Requests that shape logits: `logit_bias`, or a custom processor of logits, with tokens of their own.

SGLang keeps what each request asks for in the rows of a batch (`SamplingBatchInfo`), which move as requests join and
leave. Here each request rules out the tokens that its own answer does not need: its answer stays as it is, but in
another request's row the same shape rules out what that one needs. The model's first choice is often such a token
(`LogitShapes.decoy`), so a row whose shape is lost or late samples it. Tokens that no model says are ruled out, too, so
that no row says one for lack of another; a poisoned state still says its own (`device.ranked`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

from ...reference.tokens import FIRST_TOKEN, VOCABULARY, Truth, next_token, other_token
from ..base.decoys import has_decoy
from .compat.sizes import Sizes

RULED_OUT = -100.0
"""What a client adds to the logit of a token that it does not want."""
NEVER = -1000.0
"""The logit to which a processor sets such a token."""
PAST_END = 2
"""A step in flight and verifications may compute so many tokens behind an answer, or so many times the drafts."""


class Forbids(CustomLogitProcessor):
    """Rules out the tokens that a request names."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        """Return the logits; a row without parameters stays as it is."""
        for row, given in zip(logits, custom_param_list, strict=True):
            if given is not None:
                _rule_out(row, given["tokens"])
        return logits


class Keeps(CustomLogitProcessor):
    """Rules out all tokens but those that a request names."""

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        """Return the logits; a row without parameters stays as it is."""
        for row, given in zip(logits, custom_param_list, strict=True):
            if given is not None:
                _rule_out(row, [token for token in range(VOCABULARY) if token not in given["tokens"]])
        return logits


def _rule_out(row: Any, tokens: list[int]) -> None:
    """Rule out tokens of a row. If nothing is left, a token that no model says is still not the first choice."""
    unsaid = row[:FIRST_TOKEN] + 2 * NEVER
    row[tokens] = NEVER
    row[:FIRST_TOKEN] = unsaid


class Shape(NamedTuple):
    """What the client of a request asks for."""

    logit_bias: dict[str, float] | None = None
    processor: str | None = None
    """`custom_logit_processor`, serialized."""
    parameters: dict[str, Any] | None = None
    """`custom_params`."""


class LogitShapes:
    """What clients ask for, by the name of the request."""

    def __init__(self, sizes: Sizes) -> None:
        self.beyond = PAST_END * max(sizes.drafts, 1)
        # Verifications skip processors (cause 47): with drafts no request has one, unless all are to.
        self.kinds = 1 if sizes.drafts and sizes.logits != "processors" else 3
        self.first = 1 if sizes.logits == "processors" else 0
        self.needed: dict[str, set[int]] = {}
        """The tokens that the last answer of each client needs."""

    def shape(self, name: str, truth: Truth, max_new_tokens: int) -> Shape:
        """Return the shape of a request whose prompt is that of `truth`."""
        end = truth.prompt_length + max_new_tokens + self.beyond
        truth.reach(end)
        # Of a request that it ends before its prompt has run, SGLang computes something else (`scheduler_api.instead`).
        ended = truth.instead((0,))
        ended.reach(last := 2 + self.beyond)
        needed = self.needed[name] = {*truth.tokens[truth.prompt_length : end], *ended.tokens[1:last]}
        others = [token for token in range(VOCABULARY) if token not in needed]
        kind = max(sum(name.encode()) % self.kinds, self.first)
        if kind == 0:
            return Shape(logit_bias={str(token): RULED_OUT for token in others})
        if kind == 1:
            return Shape(processor=Forbids.to_str(), parameters={"tokens": others})
        return Shape(processor=Keeps.to_str(), parameters={"tokens": sorted(needed)})

    def decoy(self, name: str | None, tag: int) -> int | None:
        """Return the token that the model prefers to its own one behind `tag`; None where its own comes first, as in
        all rows without a shape."""
        needed = self.needed.get(name or "")
        if needed is None or not has_decoy(tag) or len(needed) == VOCABULARY - FIRST_TOKEN:
            return None
        token = next_token(tag)
        while token in needed:
            token = other_token(token)
        return token
