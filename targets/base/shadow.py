"""Arithmetic that every shadow kernel shares."""

from __future__ import annotations

from ...reference.tokens import mix


def combine(first: int, second: int) -> int:
    """Join two accounts of the same prefix: equal ones agree, others leave a mark that no prefix has."""
    return first if first == second else mix(first, second)


def join(first: tuple[int, ...] | None, second: tuple[int, ...]) -> tuple[int, ...]:
    """Join what two layers say of the same tokens; `first` is None before the first layer."""
    if first is None or first == second:
        return second
    return tuple(combine(one, other) for one, other in zip(first, second, strict=True))
