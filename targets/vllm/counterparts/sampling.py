"""Sampling parameters that a request's own output obeys, and that would change the output of another request.

The V1 runner keeps them in the rows of its batch and moves them with a request, the V2 runner in slots that requests
have one after another. A row with another request's parameters samples a wrong token: the tokens that it needs are bad
words or not allowed there, or sampling is random. A row that lacks its own samples a decoy (`base.decoys`). With random
sampling `top_k` or `min_p` leaves only the likeliest token. vLLM refuses `min_p` and `logit_bias` with drafts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from vllm.sampling_params import SamplingParams

from ....reference.tokens import FIRST_TOKEN, VOCABULARY, Truth
from ...base.decoys import Decoys
from ...base.trace import Config, Turn, least_tokens
from ..options import is_v2, varies_sampling
from ..shadow_config import has_budgets
from .thinking_budgets import budget_of

BAD_WORDS = 8
"""A request on the V2 runner has about so many, besides those for decoys."""
BEYOND = 3
"""Tokens that a client asks for beyond the context."""


def _words(truth: Truth, decoys: Mapping[int, int]) -> list[list[int]]:
    """Return bad words that rule out decoys, given by position: each only behind the token before it, except at the
    start of an answer, where vLLM sees no token before it."""
    first = truth.prompt_length
    words = {(token,) if place == first else (truth.tokens[place - 1], token) for place, token in decoys.items()}
    return [list(word) for word in sorted(words)]


def sampling_parameters(config: Config, turn: Turn, truth: Truth, decoys: Decoys) -> SamplingParams:
    """Return the parameters of a request, or of a session's turn, whose prompt is that of `truth`."""
    most = max_new_tokens = turn.max_new_tokens
    # In a script, too, whose turns have no stop strings.
    before = getattr(turn, "string_before", 0)
    asked = least_tokens(turn), before, turn.structured > 0, turn.reasoning
    stops = list(truth.stop_tokens(turn.stop_at, *asked))
    ends: dict[str, Any] = {"stop_token_ids": stops or None}
    if stops and (before or getattr(turn, "stop_string", False)):
        from .stop_strings import stopped_by

        ends = stopped_by(stops, turn.name)
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
        min_tokens=least,
        prompt_logprobs=scored,
        structured_outputs=constrained,
        **ends,
    )
    if not varies_sampling(config):
        return greedy
    # The last verification, and a step in flight behind it, also sample where the answer would go on.
    beyond = (1 + config.async_depth) * (1 + config.num_speculative_tokens)
    end = truth.prompt_length + max_new_tokens + beyond
    truth.reach(end)
    needed = set(truth.tokens[truth.prompt_length : end])
    others = [token for token in range(FIRST_TOKEN, VOCABULARY) if token not in needed]
    ruled_out = decoys.add(truth, end, needed)
    budget, forced = budget_of(turn.name, truth, end) if has_budgets(config) else (None, set[int]())
    forms = ("allowed", "bad words") if config.num_speculative_tokens else ("allowed", "bad words", "bias")
    further, kind = divmod(crc32(turn.name.encode()), 2 * len(forms))
    chosen = greedy
    if kind % 2:  # random sampling with one choice
        chosen = SamplingParams(
            max_tokens=most, temperature=2.0, ignore_eos=True, min_tokens=least, prompt_logprobs=scored,
            structured_outputs=constrained, **ends,
        )  # fmt: skip
        if further % 2 and not config.num_speculative_tokens:
            chosen.min_p = 1.0
        else:
            chosen.top_k, chosen.top_p = 1, 0.9
    chosen.thinking_token_budget = budget
    form = forms[kind // 2]
    if form == "allowed":
        chosen.allowed_token_ids = sorted(needed)
    elif form == "bias":
        chosen.logit_bias = dict.fromkeys(others, -100.0)
    else:
        # The V2 runner has kernels for them, which are interpreted: one program for each bad word, and for each block
        # of a prompt that counts for penalties.
        few = others[:: len(others) // BAD_WORDS + 1] if is_v2(config) else others
        given = set(ruled_out.values())
        # Where the budget leaves one token, it alone rules the decoy out.
        words = _words(truth, {place: token for place, token in ruled_out.items() if place not in forced})
        chosen._bad_words_token_ids = words + [[token] for token in few if token not in given]
        chosen.logprobs = 1
        if kind % 2 or not is_v2(config):
            chosen.presence_penalty = chosen.frequency_penalty = 1e-3
            chosen.repetition_penalty = 1.0 + 1e-3
    return chosen
