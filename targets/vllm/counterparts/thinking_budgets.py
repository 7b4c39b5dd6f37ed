"""Budgets of thinking tokens (`thinking_token_budget`) that leave a request's answer as it is.

Inside reasoning that has used up the budget, vLLM allows only the end marker. A request gets a budget that does so only
where its answer has that token anyway. A budget left in the slot by another request does so elsewhere.

Only the V2 runner is driven: what it computes follows from the tokens alone. The V1 runner counts steps and rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from ....reference.tokens import Truth
from ..shadow_config import END_OF_REASONING, START_OF_REASONING

BUDGETS = (8, 24, 72)
"""Shared budgets; the other requests get the least that their answers allow."""


def _reasoning(truth: Truth, end: int) -> Iterator[tuple[int, int]]:
    """Yield each position of the answer up to `end` inside reasoning, and how many tokens of that come before it."""
    start = -1
    for position, token in enumerate(truth.tokens[:end]):
        if start >= 0 and position >= truth.prompt_length:
            yield position, position - start - 1
        if token == START_OF_REASONING:
            start = position
        elif token == END_OF_REASONING:
            start = -1


def budget_of(name: str, truth: Truth, end: int) -> tuple[int | None, set[int]]:
    """Return the budget of a request with a name, None for none, and the positions of its answer up to `end` where that
    lets the end marker be sampled alone."""
    kind = crc32(name.encode()) // 5 % 4
    if not kind:
        return None, set()
    reasoning = dict(_reasoning(truth, end))
    least = max(
        (1 + used for position, used in reasoning.items() if truth.tokens[position] != END_OF_REASONING), default=0
    )
    budget = least if kind == 1 else next((one for one in BUDGETS if one >= least), least)
    return budget, {position for position, used in reasoning.items() if used >= budget}
