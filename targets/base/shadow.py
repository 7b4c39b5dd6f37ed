"""Arithmetic that every shadow kernel shares."""

from __future__ import annotations

from ...reference.tokens import chain, mix, next_token

POISON = -1
"""Not a tag. A bit pattern of another dtype, read as a number."""
POISON_TOKEN = 0
"""What a sampler makes of NaN logits."""


def run_chain(tag: int, tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Tags after each token; poison sticks."""
    return (POISON,) * len(tokens) if tag == POISON else chain(tag, tokens)


def sample(tag: int) -> int:
    """Greedy token after a hidden state."""
    return POISON_TOKEN if tag == POISON else next_token(tag)


def combine(first: int, second: int) -> int:
    """Join two accounts of the same prefix: equal ones agree, others leave a mark that no prefix has."""
    if first == second:
        return first
    return POISON if POISON in (first, second) else mix(first, second)


def join(first: tuple[int, ...] | None, second: tuple[int, ...]) -> tuple[int, ...]:
    """Join what two layers say of the same tokens; `first` is None before the first layer."""
    if first is None or first == second:
        return second
    return tuple(combine(one, other) for one, other in zip(first, second, strict=True))
