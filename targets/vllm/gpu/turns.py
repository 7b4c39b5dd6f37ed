"""Which tokens of an executed row count: those of the turn for which the row was planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ....reference.tokens import Truth, first_difference
from ...base.observe import Forward, ForwardRow
from .beside import Beside, beside

Place = tuple[str, int]
"""Request and position."""


class Turns:
    """The requests' tokens, and how long each gets; `truths` are those of the turns that the client has sent.

    A step in flight may be executed after a session's next turn was sent. Its rows are the old turn's: the new turn has
    other tokens at their positions, of which some are equal by chance.
    """

    def __init__(self, truths: Mapping[str, Truth]) -> None:
        self._truths = truths
        self._lengths: dict[str, int] = {}
        self._planned: dict[int, dict[str, Truth]] = {}

    def begin(self, name: str, length: int) -> None:
        """Begin a turn, which ends after `length` tokens."""
        self._lengths[name] = length

    def planned(self, step: int, names: Sequence[str]) -> None:
        """Plan a step for the turns that these requests are in now."""
        self._planned[step] = {name: self._truths[name] for name in names}

    def tokens(self, name: str) -> Sequence[int]:
        """All tokens that a request may get to."""
        truth, length = self._truths[name], self._lengths[name]
        truth.reach(length)
        return truth.tokens[:length]

    def beside(self, name: str) -> Beside:
        """What the tokens of a request are computed with."""
        return beside(self._truths[name], self._lengths[name])

    def places(self, forward: Forward) -> list[list[Place | None]]:
        """Where each token of an executed step belongs, by row; None if its output is thrown away.

        That is so from a wrong draft on, behind the request's last token, and for a turn that has ended.
        """
        planned = self._planned.pop(forward.step)
        return [self._row(row, planned) for row in forward.rows]

    def _row(self, row: ForwardRow, planned: Mapping[str, Truth]) -> list[Place | None]:
        name, count = row.request, len(row.tokens)
        if name is None or planned[name] is not self._truths[name]:
            return [None] * count
        truth = self._truths[name]
        truth.reach(row.position + count)
        wanted = truth.tokens[row.position : row.position + count]
        right = min(first_difference(wanted, row.tokens), self._lengths[name] - row.position)
        return [(name, row.position + index) if index < right else None for index in range(count)]
