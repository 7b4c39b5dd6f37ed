"""Structured output: the grammar of an answer, as a stand-in for a JSON schema or a regular expression.

A grammar says which tokens may come next. This one follows from the answer that the language model gives: it allows
each token of it, so that it changes no answer. Of the other tokens it allows

    at even places of the answer (the first is 0)   those of the right token's parity
    at odd places                                   all

and where it is complete (`Truth.closes_at`) the model's first choice alone, mostly a stop token. So a wrong draft
(`tokens.other_token`) is sometimes refused by the grammar and sometimes by the model alone. Behind a token that is not
the answer's anything is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

from .tokens import Truth


def is_allowed(truth: Truth, place: int, token: int) -> bool:
    """Return True if `token` may stand at a place of the answer to a prompt."""
    position = truth.prompt_length + place
    truth.reach(position + 1)
    right = truth.tokens[position]
    if position == truth.closes_at:
        return token == right
    return place % 2 == 1 or token % 2 == right % 2


def allowed(truth: Truth, place: int, tokens: Sequence[int]) -> int:
    """Return how many of `tokens`, from the first, the grammar of a request allows from a place of its answer on."""
    first = truth.prompt_length + place
    truth.reach(first + len(tokens))
    for index, token in enumerate(tokens):
        if not is_allowed(truth, place + index, token):
            return index
        if token != truth.tokens[first + index]:
            break
    return len(tokens)
