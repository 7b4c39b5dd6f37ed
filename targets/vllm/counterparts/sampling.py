"""Sampling parameters that leave a request's own output unchanged, and would change that of another request.

The V1 runner keeps them in the rows of its batch and moves them with a request. A row with another request's parameters
samples a wrong token: those that it needs are bad words or not allowed there, or sampling is random.
"""

from __future__ import annotations

from zlib import crc32

from vllm.sampling_params import SamplingParams

from ....reference.tokens import FIRST_TOKEN, VOCABULARY, Truth
from ...base.trace import Config, Turn, least_tokens
from ..options import varies_sampling

BEYOND = 3
"""Tokens that a client asks for beyond the context."""


def sampling_parameters(config: Config, turn: Turn, truth: Truth) -> SamplingParams:
    """Return the parameters of a request, or of a session's turn, whose prompt is that of `truth`."""
    most = max_new_tokens = turn.max_new_tokens
    # In a script, too, whose turns have no stop strings.
    asked = least_tokens(turn), 0, turn.structured > 0, turn.reasoning
    stops = list(truth.stop_tokens(turn.stop_at, *asked)) or None
    if truth.prompt_length + max_new_tokens == config.max_model_len:
        most += BEYOND  # the context ends the answer there, whatever its client asks for
    least = min(turn.min_tokens, most)
    constrained, fails = None, getattr(turn, "bad_grammar", 0)
    if turn.structured or fails:
        from .structured import constraints

        constrained = constraints(turn.name, compiles=not fails)
    scored = 0 if getattr(turn, "prompt_logprobs", False) else None
    greedy = SamplingParams(
        max_tokens=most,
        temperature=0.0,
        ignore_eos=True,
        stop_token_ids=stops,
        min_tokens=least,
        prompt_logprobs=scored,
        structured_outputs=constrained,
    )
    if not varies_sampling(config):
        return greedy
    end = truth.prompt_length + max_new_tokens
    truth.reach(end)
    needed = set(truth.tokens[truth.prompt_length : end])
    others = [token for token in range(FIRST_TOKEN, VOCABULARY) if token not in needed]
    kind = crc32(turn.name.encode()) % 4
    chosen = greedy
    if kind % 2:  # random sampling with one choice
        chosen = SamplingParams(
            max_tokens=most, temperature=2.0, top_k=1, top_p=0.9, ignore_eos=True, stop_token_ids=stops,
            min_tokens=least, prompt_logprobs=scored, structured_outputs=constrained,
        )  # fmt: skip
    if kind < 2:
        chosen.allowed_token_ids = sorted(needed)
    else:
        chosen._bad_words_token_ids = [[token] for token in others]
        chosen.logprobs = 1
        chosen.presence_penalty = chosen.frequency_penalty = 1e-3
        chosen.repetition_penalty = 1.0 + 1e-3
    return chosen
