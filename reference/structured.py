"""Structured output: the grammar of an answer, as a stand-in for a JSON schema or a regular expression.

A grammar says which tokens may come next. This one follows from the answer that the language model gives: it allows
each token of it, so that it changes no answer. Of the other tokens it allows

    at even places of the answer (the first is 0)   those of the right token's parity
    at odd places                                   all

so a wrong draft (`tokens.other_token`) is sometimes refused by the grammar and sometimes by the model alone. Behind a
token that is not the answer's anything is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence

from .tokens import Truth


def is_allowed(right: int, place: int, token: int) -> bool:
    """Return True if `token` may stand at a place of the answer where the model answers `right`."""
    return place % 2 == 1 or token % 2 == right % 2


def allowed(truth: Truth, place: int, tokens: Sequence[int]) -> int:
    """Return how many of `tokens`, from the first, the grammar of a request allows from a place of its answer on."""
    first = truth.prompt_length + place
    truth.reach(first + len(tokens))
    for index, token in enumerate(tokens):
        right = truth.tokens[first + index]
        if not is_allowed(right, place + index, token):
            return index
        if token != right:
            break
    return len(tokens)
