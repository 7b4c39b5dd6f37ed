"""Structured output: a backend of grammars behind vLLM's `StructuredOutputManager`, and a compiler that takes steps.

vLLM's own manager compiles grammars, validates drafts, fills bitmasks and accepts tokens; its scheduler lets requests
wait for their grammars, and its runners mask the logits. Only the backend (xgrammar, guidance, ...) is replaced, by the
grammar of `reference.structured`, and the threads that compile: a grammar is ready when the trace says so.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import torch
from vllm.sampling_params import StructuredOutputsParams

from ....reference.structured import allowed, is_allowed
from ....reference.tokens import VOCABULARY, Truth

BACKEND = "stand-in"
DOES_NOT_COMPILE = "(does not compile)"
"""Specification of a grammar that no request has as its name."""
WORD = 32
"""Tokens in one number of a bitmask."""


def constraints(name: str, compiles: bool) -> Any:
    """Return the parameters with which a request asks for the grammar of its own name, or for one that does not
    compile."""
    chosen = StructuredOutputsParams(grammar=name if compiles else DOES_NOT_COMPILE)
    chosen._backend = BACKEND
    return chosen


class GrammarError(ValueError):
    """A grammar does not compile."""


class TokenGrammar:
    """The grammar of one request, with vLLM's interface `StructuredOutputGrammar`."""

    def __init__(self, truth: Truth, note_cut: Callable[[int], None]) -> None:
        self.truth = truth
        self.tokens: list[int] = []
        """Tokens of the answer that were accepted so far."""
        self._note_cut = note_cut

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advance by tokens; return False, with nothing changed, if one of them is not allowed."""
        if self._is_off() or allowed(self.truth, len(self.tokens), tokens) == len(tokens):
            self.tokens += tokens
            return True
        return False

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Return the first tokens that are allowed."""
        count = len(tokens) if self._is_off() else allowed(self.truth, len(self.tokens), tokens)
        self._note_cut(len(tokens) - count)
        return tokens[:count]

    def rollback(self, num_tokens: int) -> None:
        """Take tokens back."""
        del self.tokens[len(self.tokens) - num_tokens :]

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        """Set the bits of the tokens that are allowed next."""
        place = len(self.tokens)
        is_off = self._is_off()
        row = [0] * bitmask.shape[1]
        for token in range(VOCABULARY):
            if is_off or is_allowed(self.truth, place, token):
                row[token // WORD] |= 1 << token % WORD
        signed = [word - (1 << WORD) if word >> WORD - 1 else word for word in row]
        bitmask[batch_index] = torch.tensor(signed, dtype=bitmask.dtype)

    def is_terminated(self) -> bool:
        """Return False: the answer may always go on."""
        return False

    def reset(self) -> None:
        """Begin again."""
        self.tokens.clear()

    def _right(self, place: int) -> int:
        self.truth.reach(self.truth.prompt_length + place + 1)
        return self.truth.tokens[self.truth.prompt_length + place]

    def _is_off(self) -> bool:
        return any(token != self._right(place) for place, token in enumerate(self.tokens))


class Backend:
    """Compiles grammars, with vLLM's interface `StructuredOutputBackend`. The specification is a request's name."""

    def __init__(self, truths: Mapping[str, Truth], note_cut: Callable[[str, int], None]) -> None:
        self._truths = truths
        self._note_cut = note_cut

    def compile_grammar(self, request_type: Any, grammar_spec: str, **_: Any) -> TokenGrammar:
        """Return the grammar of a request. Raises GrammarError for one that does not compile."""
        if grammar_spec == DOES_NOT_COMPILE:
            raise GrammarError("the grammar does not compile")
        return TokenGrammar(self._truths[grammar_spec], lambda count: self._note_cut(grammar_spec, count))

    def allocate_token_bitmask(self, max_num_seqs: int) -> torch.Tensor:
        """Return a bitmask with a row for each token that may be sampled."""
        return torch.full((max_num_seqs, -(-VOCABULARY // WORD)), -1, dtype=torch.int32)

    def destroy(self) -> None:
        """Nothing to free."""


class StructuredOutputs:
    """The structured output of one engine: what `EngineCore` does about it around a step.

    cut  request -> drafts that its grammar refused since the last planning
    """

    def __init__(self, scheduler: Any, truths: Mapping[str, Truth]) -> None:
        self.scheduler = scheduler
        self.manager = scheduler.structured_output_manager
        self.manager.backend, self.manager.backend_name = Backend(truths, self._note_cut), BACKEND
        self.manager.executor = self
        self.cut: dict[str, int] = {}
        self._wait = 0
        self._compiling: list[tuple[int, Future[Any], Callable[[], Any]]] = []
        """Plannings to go, what the request waits for, how to make it."""

    def _note_cut(self, name: str, count: int) -> None:
        if count:
            self.cut[name] = self.cut.get(name, 0) + count

    def begin(self, request: Any, wait: int) -> None:
        """Begin to compile the grammar of a request, as before it is added to the scheduler. It is ready in time for
        the planning after the next `wait`."""
        self._wait = wait
        self.manager.grammar_init(request)

    def submit(self, make: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Take a grammar to compile, in the place of a pool of threads."""
        future: Future[Any] = Future()
        self._compiling.append((self._wait, future, lambda: make(*arguments)))
        return future

    def begin_planning(self) -> None:
        """Finish the grammars that are due in the planning that follows."""
        going = self._compiling
        self._compiling = []
        for wait, future, make in going:
            if wait:
                self._compiling.append((wait - 1, future, make))
                continue
            try:
                future.set_result(make())
            except GrammarError as error:  # as a thread does, with an error that is none of ours
                future.set_exception(ValueError(str(error)))

    def masks(self, plan: Any) -> Any:
        """Return the bitmasks of a step for the worker, as for another process; None if it has none."""
        masks = self.scheduler.get_grammar_bitmask(plan)
        return None if masks is None else pickle.loads(pickle.dumps(masks))

    def late_masks(self, plan: Any, worker: Any, speculates: bool) -> Any:
        """Return the bitmasks of a step that waited for the results of the one before: its drafts are validated now."""
        drafts = worker.runner.take_draft_token_ids() if speculates else None
        if drafts is not None:
            self.scheduler.update_draft_token_ids_in_output(drafts, plan)
        return self.masks(plan)
