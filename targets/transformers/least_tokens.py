"""Answers with a minimum number of tokens (`min_new_tokens`): the library's own processor holds stop tokens back."""

from __future__ import annotations

import torch
from transformers import MinNewTokensLengthLogitsProcessor

from ...reference.tokens import FIRST_TOKEN, VOCABULARY, Truth


def greedy(token: int, truth: Truth, known: int) -> int:
    """Return what `generate` samples greedily behind the first `known` tokens of a request, where the model's first
    choice is `token`."""
    if not truth.withheld:
        return token
    least = truth.free_from - truth.prompt_length
    processor = MinNewTokensLengthLogitsProcessor(truth.prompt_length, least, list(truth.withheld))
    return int(processor(torch.tensor([truth.tokens[:known]]), _scores(token)).argmax())


def _scores(token: int) -> torch.Tensor:
    """Return the scores [1, vocabulary] of a model whose choices are `token`, `other_token` of it, and so on."""
    size = VOCABULARY - FIRST_TOKEN
    scores = torch.full((1, VOCABULARY), -float("inf"))
    ranks = (torch.arange(FIRST_TOKEN, VOCABULARY) - token) % size
    scores[0, FIRST_TOKEN:] = -ranks.float()
    return scores
