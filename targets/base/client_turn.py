"""What a client of a script receives in one turn, and what it should receive. Copied into the scripts of engines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


def prompt_path(prompt: Sequence[int | tuple[str, int]]) -> tuple[tuple[str | tuple[int, ...], int], ...]:
    """Return a prompt of token ids, with (document, tokens) for inputs of other kinds, in runs."""
    parts: list[tuple[str | tuple[int, ...], int]] = []
    for is_other, run in groupby(prompt, lambda one: isinstance(one, tuple)):
        together = tuple(run)
        parts += together if is_other else [(together, len(together))]  # type: ignore[list-item, arg-type]
    return tuple(parts)


NOT_SENT = "not sent"
"""How a turn ends that no client could send: its session was not idle then."""


class ClientTurn:
    """One request, or one turn of a session."""

    def __init__(self, name: str, prompt: list[int], expected: list[int], end: str = "still waits for tokens") -> None:
        self.name, self.prompt, self.expected = name, prompt, expected
        self.received: list[int] = []
        self.end = end
        self.wrong_since: int | None = None
        self.late = 0  # steps whose tokens came after it was aborted

    def receive(self, tokens: Sequence[int]) -> None:
        """Take tokens of one step."""
        self.received += tokens
        self.late += bool(tokens) and self.end == "aborted"

    def is_right(self) -> bool:
        """Return True if the client got its tokens, as far as it got any: one that aborts gets the first of them."""
        return self.received == self.expected[: None if self.end == "ended" else len(self.received)]

    def note(self, step: int) -> None:
        """Remember the first step that delivered something wrong."""
        if self.wrong_since is None and not self.is_right():
            self.wrong_since = step

    def fault(self) -> str:
        """Return whose tokens are wrong, and since when."""
        return f"{self.name} (since step {self.wrong_since})"

    def __str__(self) -> str:
        waits = self.end.startswith("still waits")
        verdict = "right" if self.is_right() and not waits else f"expected {self.expected}"
        return f"{self.name}: prompt {self.prompt}, received {self.received}, {verdict}; {self.end}"
