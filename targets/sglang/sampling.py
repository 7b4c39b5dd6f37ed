"""Requests with a temperature: verifications that sample, and the coins that make a right one say what the model says.

A server samples by chance. Here chance is drawn so that the answer stays known: wherever the engine throws a coin, the
coin lies in the part of 0 to 1 for which the algorithm, on the probabilities that are right there, gives the token of
the reference: a right draft is accepted, a wrong one is not, and the token behind the last accepted one is the model's.
Where in that part follows from the tokens. What is right is computed here from tokens, parents and the parameters of
the request, never from the engine's tensors: probabilities of another row, of another temperature, or coins of another
place give other tokens, which S6 reports.

The model's choices at a place have the logits of `device.ranked`, but for one thing: where chance decides, the token of
the reference is not always the most likely one. With rejection sampling the draft model takes one token for nearly
certain, and what is drawn from its proposal is that token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import exp
from typing import NamedTuple

from ...reference.draft_trees import ROOT
from ...reference.tokens import VOCABULARY, mix, next_token, other_token

CHOICES = 8
"""Tokens that the model ranks at a place. The first has this logit, each next one less; all others have 0."""
PEAK = 20.0
"""Logit of what the draft model takes for right with rejection sampling; all others have 0."""
PLACES = 3
"""The reference's token is one of so many most likely ones."""
MARGIN, END = 1 / 256, 1 / 32
"""Shares of the interval that a coin is drawn from. `MARGIN` is left out at each end, since SGLang computes with 32
bits. Two of three coins lie within `END` of an end, where an interval that has moved a little shows."""
_TURNS = 1 << 20
Probabilities = Sequence[float]


class Sampling(NamedTuple):
    """What a client asks for; a temperature of 0 makes SGLang take the first choice (`top_k` 1, temperature 1)."""

    temperature: float = 0.0
    top_k: int = -1
    top_p: float = 1.0


GREEDY = Sampling()
ASKED_FOR = (GREEDY, Sampling(1.0), Sampling(2.0), Sampling(0.5, top_k=4), Sampling(1.0, top_p=0.9))


def sampling_of(name: str) -> Sampling:
    """Return what the client of a request asks for: one of five kinds."""
    return ASKED_FOR[sum(name.encode()) % len(ASKED_FOR)]


class Verified(NamedTuple):
    """Drafts of one request as they are verified.

    tag      of all that is known before the drafts; `key` is added to the content of each token
    parents  of the drafts
    fillers  how many of the last drafts pad a chain, which may be tried behind its first or its last token
    """

    tag: int
    key: int
    tokens: Sequence[int]
    parents: Sequence[int]
    fillers: int = 0


class Coins(NamedTuple):
    """One for each token of a verification, and one for the token behind the last that is accepted."""

    accepting: list[float]
    final: float


def more_likely(token: int, tag: int, sampling: Sampling) -> int:
    """Return the token with which the model's own one behind `tag` changes places, so that it is the first, the second
    or the third in likelihood; itself for a request without a temperature."""
    for _ in range(mix(tag, 13) % PLACES if sampling.temperature else 0):
        token = other_token(token)
    return token


def likely(tag: int, sampling: Sampling) -> Probabilities:
    """Return the probability of each token behind `tag`."""
    token = next_token(tag)
    return _likely(token, more_likely(token, tag, sampling), sampling)


@lru_cache(maxsize=1 << 12)
def _likely(said: int, first: int, sampling: Sampling) -> Probabilities:
    logits, token = [0.0] * VOCABULARY, said
    for logit in range(CHOICES, 0, -1):
        logits[token] = float(logit)
        token = other_token(token)
    logits[said], logits[first] = logits[first], logits[said]
    scale = sampling.temperature or 1.0
    found = _normal([exp(logit / scale) for logit in logits])
    ranked = sorted(found, reverse=True)
    top_k = sampling.top_k if sampling.temperature else 1
    if top_k > 0:
        found = _normal([one if one >= ranked[top_k - 1] else 0.0 for one in found])
        ranked = sorted(found, reverse=True)
    if sampling.top_p < 1:
        total, kept = 0.0, 0
        while total < sampling.top_p:
            total, kept = total + ranked[kept], kept + 1
        found = _normal([one if one >= ranked[kept - 1] else 0.0 for one in found])
    return found


@lru_cache(maxsize=1 << 12)
def proposed(token: int, sampling: Sampling) -> Probabilities:
    """Return the probability of each token where the draft model takes `token` for right."""
    scale = sampling.temperature or 1.0
    return _normal([exp(PEAK / scale) if one == token else 1.0 for one in range(VOCABULARY)])


def first_is_right(tag: int) -> bool:
    """Return True if the draft model takes the model's own token behind `tag` for right, as the first of its drafts.

    That draft is made in the step before, when nobody knows how many are to be right.
    """
    return mix(tag, 9) % 4 > 0


def coins_for(mode: str, chain: Verified, sampling: Sampling) -> Coins:
    """Return the coins with which a verification in a mode accepts what is right, and nothing else."""
    if mode == "target":
        return _of_tree(chain, sampling)
    return (_of_blocks if mode == "block" else _of_proposals)(chain, sampling)


def _of_tree(chain: Verified, sampling: Sampling) -> Coins:
    """Target-only sampling: the children of a token are tried in turn, against the sum of their probabilities."""
    coins, node, tag = _any(chain), ROOT, chain.tag
    parents = chain.parents[: len(chain.parents) - chain.fillers]
    while True:
        said = next_token(tag)
        left, before, child = list(likely(tag, sampling)), 0.0, None
        for draft in [draft for draft, parent in enumerate(parents) if parent == node]:
            token = chain.tokens[draft]
            if token == said:
                child = draft
                break
            before += likely(tag, sampling)[token]
            left[token] = 0.0
        if child is None:
            break
        coins[node + 1] = _between(before, before + left[said], tag)
        node, tag = child, mix(tag, said + chain.key)
    # Wrong padding is rejected wherever it stands. That of a greedy request may be right: then any coin accepts it.
    filler, rests = chain.tokens[-1], [left]
    if chain.fillers and filler != said:
        before += chain.fillers * left[filler]
        rests.append([*left[:filler], 0.0, *left[filler + 1 :]])
    coins[node + 1] = _between(before, 1.0, tag)
    return Coins(coins, _final(rests, said, tag))


def _of_proposals(chain: Verified, sampling: Sampling) -> Coins:
    """Rejection sampling: a draft is accepted with the probability that it has, in proportion to the proposal's."""
    coins, tag = _any(chain), chain.tag
    for draft, token in enumerate(chain.tokens):
        said, guess = next_token(tag), proposed(token, sampling)
        most = min(likely(tag, sampling)[token] / guess[token], 1.0)
        if token != said:
            coins[draft] = _between(most, 1.0, tag)
            return Coins(coins, _final([_rest(likely(tag, sampling), guess)], said, tag))
        coins[draft] = _between(0.0, most, tag)
        tag = mix(tag, said + chain.key)
    return Coins(coins, _final([likely(tag, sampling)], next_token(tag), tag))


def _of_blocks(chain: Verified, sampling: Sampling) -> Coins:
    """Block verification (https://arxiv.org/abs/2403.10444): the longest prefix whose coin is small enough."""
    coins, right, tags = _any(chain), 0, [chain.tag]
    shares = [1.0]
    for token in chain.tokens:
        chances, guess = likely(tags[-1], sampling), proposed(token, sampling)
        shares.append(min(shares[-1] * chances[token] / guess[token], 1.0))
        right += right + 1 == len(tags) and token == next_token(tags[-1])
        tags.append(mix(tags[-1], token + chain.key))
    for length in range(max(right, 1), len(chain.tokens) + 1):  # once `right` are accepted, no other coin is thrown
        most = share = shares[length]
        if length < len(chain.tokens) and 0.0 < share < 1.0:
            rest = sum(_left_behind(chain, tags, length, share, sampling))
            most = rest / (rest + 1.0 - share)
        part = (0.0, most) if length == right else (most, 1.0)
        coins[length - 1] = _between(*part, tags[length])
    is_whole = right == len(chain.tokens)
    left = likely(tags[right], sampling) if is_whole else _left_behind(chain, tags, right, shares[right], sampling)
    return Coins(coins, _final([left], next_token(tags[right]), tags[right]))


def _left_behind(chain: Verified, tags: Sequence[int], length: int, share: float, sampling: Sampling) -> Probabilities:
    """Return what is left of each token's probability behind the first `length` drafts, which have a share."""
    chances = [share * one for one in likely(tags[length], sampling)]
    return _rest(chances, proposed(chain.tokens[length], sampling))


def _rest(chances: Probabilities, guess: Probabilities) -> Probabilities:
    return [max(one - other, 0.0) for one, other in zip(chances, guess, strict=True)]


def _normal(weights: Sequence[float]) -> Probabilities:
    total = sum(weights)
    return [weight / total for weight in weights]


def _final(rests: Sequence[Probabilities], said: int, tag: int) -> float:
    """Return a coin for which `said` is drawn by each of these weights, in the order of tokens."""
    least = max(sum(weights[:said]) / sum(weights) for weights in rests)
    most = min(sum(weights[: said + 1]) / sum(weights) for weights in rests)
    assert least < most, "the model's own token cannot be drawn"
    return _between(least, most, mix(tag, 10))


def _any(chain: Verified) -> list[float]:
    """Return coins for all tokens: those of places that are not reached may be any."""
    return [_between(0.0, 1.0, mix(chain.tag, 20 + place)) for place in range(len(chain.tokens) + 1)]


def _between(least: float, most: float, tag: int) -> float:
    """Return a coin between two numbers; where follows from the tag."""
    place = mix(tag, 11) % _TURNS / _TURNS
    first, last = ((0.0, END), (1 - END, 1.0), (0.0, 1.0))[mix(tag, 12) % 3]
    place = min(max(first + (last - first) * place, MARGIN), 1 - MARGIN)
    return least + (most - least) * place
