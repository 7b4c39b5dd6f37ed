"""Arithmetic on tags, shared by all shadow kernels."""

from __future__ import annotations

from ...reference.tokens import chain, mix, next_token

POISON = -1
"""Not a tag. A bit pattern of another dtype, read as a number."""
POISON_TOKEN = 0
"""The token that a sampler returns for NaN logits."""


def run_chain(tag: int, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tags after each token; poison stays poison."""
    return (POISON,) * len(tokens) if tag == POISON else chain(tag, tokens)


def sample(tag: int) -> int:
    """Return the greedy token after a hidden state."""
    return POISON_TOKEN if tag == POISON else next_token(tag)


def combine(first: int, second: int) -> int:
    """Return the tag if both are equal, POISON if either is poison, otherwise a tag of no prefix."""
    if first == second:
        return first
    return POISON if POISON in (first, second) else mix(first, second)


def join(first: tuple[int, ...] | None, second: tuple[int, ...]) -> tuple[int, ...]:
    """Combine two layers' tags of the same tokens; `first` is None before the first layer."""
    if first is None or first == second:
        return second
    return tuple(combine(one, other) for one, other in zip(first, second, strict=True))
