"""Structured output in place of an engine's own backend: the grammar of an answer, and a compiler that takes steps.

Copied into the scripts of engines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from ...reference.structured import allowed, grammar_start, is_allowed
from ...reference.tokens import VOCABULARY, Truth

WORD = 32
"""Tokens in one number of a mask."""


class GrammarError(ValueError):
    """A grammar does not compile."""


class AnswerGrammar:
    """The grammar of one answer, or of what follows its reasoning, and the place in it."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.tokens: list[int] = []
        """Tokens of the answer that were accepted so far."""

    def allows(self, tokens: Sequence[int]) -> int:
        """Return how many of the tokens, from the first, may come next."""
        return len(tokens) if self._is_off() else allowed(self.truth, len(self.tokens), tokens)

    def rollback(self, count: int) -> None:
        """Take tokens back."""
        del self.tokens[len(self.tokens) - count :]

    def mask(self) -> torch.Tensor:
        """Return an int32 tensor [VOCABULARY / WORD] with the bits of the tokens that are allowed next."""
        is_off, place = self._is_off(), len(self.tokens)
        bits = torch.tensor([is_off or is_allowed(self.truth, place, token) for token in range(VOCABULARY)])
        return (bits.view(-1, WORD).long() << torch.arange(WORD)).sum(dim=1).to(torch.int32)

    def _is_off(self) -> bool:
        first = grammar_start(self.truth)
        end = first + len(self.tokens)
        self.truth.reach(end)
        return self.truth.tokens[first:end] != self.tokens


class Compiler:
    """In the place of a pool of threads: a grammar is ready in so many plannings as the trace says."""

    def __init__(self) -> None:
        self.wait = 0
        """The next grammar is ready in time for the planning after so many."""
        self._compiling: list[tuple[int, Future[Any], Callable[[], Any]]] = []
        """Plannings to go, what the request waits for, how to make it."""

    def submit(self, make: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Take a grammar to compile."""
        future: Future[Any] = Future()
        self._compiling.append((self.wait, future, lambda: make(*arguments)))
        return future

    def tick(self) -> None:
        """Finish the grammars that are due in the planning that follows."""
        going, self._compiling = self._compiling, []
        for wait, future, make in going:
            if wait:
                self._compiling.append((wait - 1, future, make))
            elif future.set_running_or_notify_cancel():
                try:
                    future.set_result(make())
                except GrammarError as error:  # as a thread does, with an error that is none of ours
                    future.set_exception(ValueError(str(error)))
