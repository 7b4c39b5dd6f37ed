"""Structured output: a backend of grammars behind SGLang's `GrammarManager`, and a compiler that takes steps.

SGLang's own manager queues requests until their grammars are compiled; its scheduler cuts the overlap of steps for
them, its workers walk drafts down a grammar, and its result processor advances it and ends answers that are complete.
Only the backend (xgrammar, ...) is replaced, by the grammar of `reference.structured`, and its threads: a grammar is
compiled when the trace says so.

The server has a reasoning parser: SGLang's `ReasonerGrammarBackend` holds each grammar back until the token that ends
the reasoning of its request. Each request chooses that token freely, as it may among those of some models' parsers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.constrained import grammar_manager
from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, BaseGrammarObject, InvalidGrammarObject
from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarBackend
from sglang.srt.sampling.sampling_params import REQUEST_REASONING_END_TOKEN_IDS_KEY

from ...reference.structured import grammar_start
from ...reference.tokens import VOCABULARY, Truth
from ..base.grammars import WORD, AnswerGrammar, Compiler
from ..base.protocol import EngineError
from .compat import scheduler_api

DOES_NOT_COMPILE = "("
"""Specification of a grammar that is none."""
TICK = 1.0
"""Seconds that a poll of the queue may take."""


class NotAllowed(EngineError, ValueError):
    """A grammar is advanced by a token that it does not allow. SGLang's backends raise ValueError, too."""


class TokenGrammar(AnswerGrammar, BaseGrammarObject):
    """The grammar of one answer, or of what follows its reasoning."""

    def __init__(self, truth: Truth, stops: tuple[int, ...]) -> None:
        """It is complete at `Truth.closes_at`, and terminated there by a token of `stops`."""
        BaseGrammarObject.__init__(self)
        AnswerGrammar.__init__(self, truth)
        self.stops = stops

    def accept_token(self, token: int) -> None:
        """Advance by a token. Raises ValueError, with nothing changed, if it is not allowed."""
        if self.is_terminated():
            return
        self.current_token = token
        if not self.allows([token]):
            raise NotAllowed(f"token {token} is not allowed at place {len(self.tokens)}")
        self.tokens.append(token)

    def is_terminated(self) -> bool:
        """Return True if the grammar was complete, and a stop token followed."""
        place = self.truth.closes_at - grammar_start(self.truth)
        return 0 <= place < len(self.tokens) and self.tokens[place] in self.stops

    @staticmethod
    def allocate_vocab_mask(vocab_size: int, batch_size: int, device: Any) -> torch.Tensor:
        """Return a mask that allows everything."""
        return torch.full((batch_size, -(-vocab_size // WORD)), -1, dtype=torch.int32)

    def fill_vocab_mask(self, vocab_mask: torch.Tensor, idx: int) -> None:
        """Set the bits of the tokens that are allowed next."""
        vocab_mask[idx] = self.mask()

    @staticmethod
    def move_vocab_mask(vocab_mask: torch.Tensor, device: Any) -> torch.Tensor:
        """Return the mask: it is where the logits are."""
        return vocab_mask

    @staticmethod
    def apply_vocab_mask(logits: torch.Tensor, vocab_mask: torch.Tensor) -> None:
        """Leave the logits of allowed tokens, and nothing of the others."""
        bits = vocab_mask[:, :, None].long() >> torch.arange(WORD) & 1
        logits.masked_fill_(bits.flatten(1) == 0, float("-inf"))

    def copy(self) -> TokenGrammar:
        """Return the grammar where it is, as `GuidanceGrammar.copy` does: at its beginning only if this one is."""
        copied = TokenGrammar(self.truth, self.stops)
        copied.tokens += self.tokens
        return copied


def specification_of(truth: Truth, stops: tuple[int, ...]) -> str:
    """Return the specification of a request's grammar: that of requests with another answer is another."""
    answer = truth.tags[truth.prompt_length], truth.key, truth.withheld, truth.free_from - truth.prompt_length
    return repr((*answer, truth.reasons_until, truth.closes_at - truth.prompt_length, stops))


class Backend(BaseGrammarBackend):
    """Makes grammars."""

    # SGLang's backend for reasoning asks for them here, too.
    allocate_vocab_mask = staticmethod(TokenGrammar.allocate_vocab_mask)
    move_vocab_mask = staticmethod(TokenGrammar.move_vocab_mask)
    apply_vocab_mask = staticmethod(TokenGrammar.apply_vocab_mask)

    def __init__(self) -> None:
        self.asked: dict[str, tuple[Truth, tuple[int, ...]]] = {}
        """By specification: the answer and its stop tokens."""

    def dispatch_ebnf(self, key_string: str) -> BaseGrammarObject:
        """Return a grammar."""
        if key_string == DOES_NOT_COMPILE:
            return InvalidGrammarObject("the grammar does not compile")
        return TokenGrammar(*self.asked[key_string])


class Reasoner(ReasonerGrammarBackend):
    """Compiles grammars that hold behind the reasoning, in so many plannings as the trace says, without threads."""

    def __init__(self, backend: Backend) -> None:
        """If its request chooses no token, reasoning ends with one that the model never says."""
        detector = SimpleNamespace(
            get_think_end_token_ids=lambda tokenizer: [VOCABULARY],
            get_answer_frame=lambda: None,
            think_excluded_tokens=None,
        )
        super().__init__(backend, SimpleNamespace(detector=detector), None)
        self.executor = Compiler()


class _Clock:
    """The time of a poll: it is over when the poll sleeps."""

    def __init__(self) -> None:
        self._now = 0.0

    def perf_counter(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += 2 * TICK


class Grammars(grammar_manager.GrammarManager):
    """SGLang's manager without its constructor, which would need a tokenizer and other ranks."""

    def __init__(self, scheduler: Any) -> None:
        grammar_manager.time = _Clock()
        scheduler_api.be_first_rank()
        self.scheduler = scheduler
        self.server_args = scheduler.server_args
        self.grammar_queue: list[Any] = []
        self.grammars = Backend()
        self.grammar_backend = Reasoner(self.grammars)
        self._enable_strict_thinking = False
        self.grammar_sync_size, self.pp_rank, self.pp_size, self.pp_group = 1, 0, 1, None
        self.grammar_pp_sync_work_list: list[Any] = []
        self.SGLANG_GRAMMAR_POLL_INTERVAL = TICK
        self.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS = 10000

    def ask(self, request: Any, truth: Truth, stops: tuple[int, ...], wait: int, compiles: bool) -> None:
        """Ask for a structured answer: its grammar is ready in time for the planning after the next `wait`, or at once
        if SGLang keeps one of the same specification."""
        asked, sampling = self.grammars.asked, request.sampling_params
        specification = specification_of(truth, stops) if compiles else DOES_NOT_COMPILE
        asked[specification] = truth, stops
        self.grammar_backend.executor.wait = wait
        sampling.ebnf = specification
        request.require_reasoning = bool(truth.reasons_until)
        if truth.reasons_until:
            ends = {REQUEST_REASONING_END_TOKEN_IDS_KEY: [truth.reasons_until]}
            sampling.custom_params = (sampling.custom_params or {}) | ends
