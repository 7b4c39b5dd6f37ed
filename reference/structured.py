"""Structured output: the grammar of an answer, as a stand-in for a JSON schema or a regular expression.

A grammar says which tokens may come next. This one is a function of the prefix (`tokens.obeys`) and of the place in
the answer, or in what follows its reasoning. It allows

    at even places (the first is 0)   tokens of one parity, that of a bit of the prefix's tag
    at odd places                     all tokens

and where it is complete (`Truth.closes_at`) the model's first choice alone, mostly a stop token. Behind that it is over
and allows everything. At about half of the even places the model's first choice is forbidden: the answer has its next
one there, and goes on from that. So a draft may be what the model would say and be refused by the grammar, be wrong and
allowed by it, or both. Behind a token that is not the answer's anything is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

from .tokens import Truth, obeys

REASONING_MAX = 512
"""Most tokens of reasoning: more than a traced answer has. Where tokens are withheld, the one that ends it may not
come."""


def grammar_start(truth: Truth) -> int:
    """Return the position at which the grammar of an answer begins to hold. If the reasoning does not end within
    `REASONING_MAX` tokens, that is the first position of the answer, and `is_allowed` allows everything there."""
    if truth.reasons_until and truth.grammar_from < 0:
        truth.reach(truth.prompt_length + REASONING_MAX)
    return truth.grammar_from if truth.grammar_from >= 0 else truth.prompt_length


def is_allowed(truth: Truth, place: int, token: int) -> bool:
    """Return True if `token` may stand at a place of the part of an answer for which the grammar holds."""
    position = grammar_start(truth) + place
    truth.reach(position + 1)
    if not truth.is_bound(position):
        return True
    if position == truth.closes_at:
        return token == truth.tokens[position]
    return obeys(place, truth.tags[position], token)


def allowed(truth: Truth, place: int, tokens: Sequence[int]) -> int:
    """Return how many of `tokens`, from the first, the grammar of a request allows from a place on."""
    first = grammar_start(truth) + place
    truth.reach(first + len(tokens))
    for index, token in enumerate(tokens):
        if not is_allowed(truth, place + index, token):
            return index
        if token != truth.tokens[first + index]:
            break
    return len(tokens)
