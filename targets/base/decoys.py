"""Tokens that a model prefers here and there, and that each request rules out by its sampling parameters.

Where one is sampled, the parameters of the row were lost, came late, or were those of another row.
"""

from __future__ import annotations

from collections.abc import Set

from ...reference.tokens import FIRST_TOKEN, VOCABULARY, Truth, mix

SHARE = 3
"""One place of so many has a decoy."""
NONE = -1
"""In the place of a decoy that some request needs."""


def has_decoy(tag: int) -> bool:
    """Return True if the model prefers a decoy behind the prefix with this tag. Behind a poisoned state (a negative
    tag) it does not: that must show as such."""
    return tag >= 0 and mix(tag, 14) % SHARE == 0


class Decoys:
    """The decoys of one engine's model, by the tags of the prefixes that they follow."""

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}

    def add(self, truth: Truth, end: int, needed: Set[int]) -> dict[int, int]:
        """Give the answer of a request decoys up to position `end`, none of which is among the tokens that it needs.
        Return them by position. A place that another request shares keeps its decoy if this request can rule it out,
        and otherwise loses it."""
        found: dict[int, int] = {}
        others = [token for token in range(FIRST_TOKEN, VOCABULARY) if token not in needed]
        for position in range(truth.prompt_length, end):
            tag = truth.tags[position]
            if others and has_decoy(tag):
                token = self._tokens.setdefault(tag, others[mix(tag, 15) % len(others)])
                if token in needed:
                    self._tokens[tag] = NONE
                elif token != NONE:
                    found[position] = token
        return found

    def at(self, tag: int) -> int | None:
        """Return the decoy behind a prefix, None where there is none."""
        token = self._tokens.get(tag, NONE)
        return None if token == NONE else token
