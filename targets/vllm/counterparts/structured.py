"""Structured output: a backend of grammars behind vLLM's `StructuredOutputManager`, and a compiler that takes steps.

vLLM's own manager compiles grammars, validates drafts, fills bitmasks and accepts tokens; its scheduler lets requests
wait for their grammars, and its runners mask the logits. Three parts are replaced: the backend (xgrammar, guidance,
...) by the grammar of `reference.structured`; the threads that compile (a grammar is ready when the trace says so);
and the model's reasoning parser, by one that is told the token that ends the reasoning.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from vllm.sampling_params import StructuredOutputsParams

from ....reference.tokens import VOCABULARY, Truth
from ...base.grammars import WORD, AnswerGrammar, Compiler, GrammarError

BACKEND = "stand-in"
DOES_NOT_COMPILE = "(does not compile)"
"""Specification of a grammar that no request has as its name."""


def constraints(name: str, compiles: bool) -> Any:
    """Return the parameters with which a request asks for the grammar of its own name, or for one that does not
    compile."""
    chosen = StructuredOutputsParams(grammar=name if compiles else DOES_NOT_COMPILE)
    chosen._backend = BACKEND
    return chosen


class AnswerReasoningParser:
    """Finds the end of the reasoning of one request, with the part of vLLM's interface `ReasoningParser` that its
    scheduler uses. It is like the parser of a model whose chat template opens the reasoning at the end of the prompt,
    or closes it there for a request without reasoning."""

    def __init__(self, tokenizer: Any, truth: Truth | None = None) -> None:
        """`truth`: that of a request with reasoning, as `reasoning_parser_kwargs` say."""
        self._truth = truth

    def is_reasoning_end(self, tokens: Sequence[int]) -> bool:
        """Return True if the reasoning has ended within `tokens`: the prompt and the answer so far."""
        truth = self._truth
        return truth is None or truth.reasons_until in tokens[truth.prompt_length :]

    def is_reasoning_end_streaming(self, tokens: Sequence[int], new: Sequence[int]) -> bool:
        """Return True if the reasoning ends with one of the new tokens."""
        return self._truth is None or self._truth.reasons_until in new


class TokenGrammar(AnswerGrammar):
    """The grammar of one request, with vLLM's interface `StructuredOutputGrammar`."""

    def __init__(self, truth: Truth, note_cut: Callable[[int], None]) -> None:
        super().__init__(truth)
        self._note_cut = note_cut

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Advance by tokens; return False, with nothing changed, if one of them is not allowed."""
        if self.allows(tokens) == len(tokens):
            self.tokens += tokens
            return True
        return False

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Return the first tokens that are allowed."""
        count = self.allows(tokens)
        self._note_cut(len(tokens) - count)
        return tokens[:count]

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        """Set the bits of the tokens that are allowed next."""
        bitmask[batch_index] = self.mask()

    def is_terminated(self) -> bool:
        """Return False: the answer may always go on."""
        return False

    def reset(self) -> None:
        """Begin again."""
        self.tokens.clear()


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
        self.manager.executor = self._compiler = Compiler()
        # vLLM chooses the class by a server's flag, and keeps the tokenizer for it.
        self.manager.reasoner_cls, self.manager.tokenizer = AnswerReasoningParser, None
        self.cut: dict[str, int] = {}

    def _note_cut(self, name: str, count: int) -> None:
        if count:
            self.cut[name] = self.cut.get(name, 0) + count

    def begin(self, request: Any, wait: int) -> None:
        """Begin to compile the grammar of a request, as before it is added to the scheduler. It is ready in time for
        the planning after the next `wait`."""
        self._compiler.wait = wait
        self.manager.grammar_init(request)

    def begin_planning(self) -> None:
        """Finish the grammars that are due in the planning that follows."""
        self._compiler.tick()

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
