"""Coins with which a right verification says what the model says, and a wrong one does not."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from hybridfuzz.reference.draft_trees import ROOT, longest_path
from hybridfuzz.reference.tokens import Truth, other_token
from hybridfuzz.targets.sglang import draft_trees, kernels
from hybridfuzz.targets.sglang.sampling import (
    ASKED_FOR,
    GREEDY,
    Coins,
    Sampling,
    Verified,
    coins_for,
    first_is_right,
    likely,
    proposed,
    sampling_of,
)

DRAFTS = 3
PLACES = range(2, 40)


def chain_of(truth: Truth, known: int, right: int, breadth: int = 1) -> Verified:
    if breadth > 1:
        tree = draft_trees.grow(truth, known, DRAFTS * breadth, breadth, right)
        return Verified(truth.tag(known), 0, tree.tokens, tree.parents)
    return Verified(truth.tag(known), 0, truth.drafts(known, DRAFTS, right), range(ROOT, DRAFTS - 1))


def tags_of(chain: Verified) -> list[int]:
    """Return the tag behind each token of a verification."""
    tags = [chain.tag]
    for token, parent in zip(chain.tokens, chain.parents, strict=True):
        tags.append(draft_trees.mix(tags[parent + 1], token))
    return tags


def tried_in_turn(chain: Verified, coins: Coins, chances: torch.Tensor) -> list[int]:
    """Return what the stand-in for SGLang's kernel samples: accepted drafts, and the token behind them."""
    count = len(chain.tokens) + 1
    children, siblings = [-1] * count, [-1] * count
    for draft, parent in reversed(list(enumerate(chain.parents, start=1))):
        siblings[draft], children[parent + 1] = children[parent + 1], draft
    predicts, accepted = torch.zeros(count, dtype=torch.int32), torch.full((1, count), -1, dtype=torch.int32)
    number = torch.zeros(1, dtype=torch.int32)
    kernels.tree_speculative_sampling_target_only(
        predicts, accepted, number, torch.tensor([[1, *chain.tokens]]), torch.arange(count)[None],
        torch.tensor([children]), torch.tensor([siblings]), *kernels._thrown([coins]), chances[None],
        torch.zeros_like(chances)[None], 1.0, 1.0, deterministic=True,
    )  # fmt: skip
    nodes = accepted[0, : int(number[0]) + 1].tolist()
    return predicts[nodes].tolist()


def tables(chain: Verified, sampling: Sampling) -> torch.Tensor:
    return torch.tensor([likely(tag, sampling) for tag in tags_of(chain)])


@pytest.mark.parametrize("sampling", ASKED_FOR)
@pytest.mark.parametrize("breadth", [1, 2, 3])
@pytest.mark.parametrize("right", range(DRAFTS + 1))
def test_right_drafts_are_accepted_and_the_models_token_follows(sampling: Sampling, breadth: int, right: int) -> None:
    truth = Truth((("a", 2),))
    truth.reach(80)
    for known in PLACES:
        chain = chain_of(truth, known, right, breadth)
        wanted = truth.tokens[known : known + DRAFTS + 1]
        path = longest_path(chain.tokens, chain.parents, wanted)
        said = tried_in_turn(chain, coins_for("target", chain, sampling), tables(chain, sampling))
        assert said == wanted[: len(path) + 1]


@pytest.mark.parametrize("own", [Sampling(1.0), Sampling(1.0, top_p=0.9)])
@pytest.mark.parametrize("wrong", [Sampling(2.0), Sampling(0.5), Sampling(1.0, top_k=1), Sampling(1.0, top_k=2)])
def test_probabilities_of_another_request_say_something_else(own: Sampling, wrong: Sampling) -> None:
    truth = Truth((("a", 2),))
    truth.reach(80)
    differs = 0
    for known, right in product(PLACES, range(DRAFTS + 1)):
        chain = chain_of(truth, known, right)
        coins, wanted = coins_for("target", chain, own), truth.tokens[known : known + right + 1]
        assert tried_in_turn(chain, coins, tables(chain, own)) == wanted
        differs += tried_in_turn(chain, coins, tables(chain, wrong)) != wanted
    assert differs > 30


def test_a_request_without_a_temperature_gets_the_first_choice_whatever_the_coins() -> None:
    truth = Truth((("a", 2),))
    truth.reach(80)
    for known, right in product(PLACES, range(DRAFTS + 1)):
        chain = chain_of(truth, known, right)
        coins = coins_for("target", chain, sampling_of("a"))
        assert tried_in_turn(chain, coins, tables(chain, GREEDY)) == truth.tokens[known : known + right + 1]


@pytest.mark.parametrize("sampling", ASKED_FOR)
def test_the_models_token_is_the_first_to_third_in_likelihood(sampling: Sampling) -> None:
    truth = Truth((("a", 2),))
    truth.reach(80)
    ranks, kept = set(), set()
    for known in PLACES:
        chances = likely(truth.tag(known), sampling)
        assert sum(chances) == pytest.approx(1)
        ranks.add(sorted(chances, reverse=True).index(chances[truth.tokens[known]]))
        kept.add(sum(chance > 0 for chance in chances))
    assert ranks == ({0, 1, 2} if sampling.temperature else {0})
    assert kept == {1 if not sampling.temperature else 4 if sampling.top_k == 4 else 3 if sampling.top_p < 1 else 128}


@pytest.mark.parametrize("mode", ["rejection", "block"])
@pytest.mark.parametrize("sampling", ASKED_FOR)
@pytest.mark.parametrize("right", range(DRAFTS + 1))
def test_a_draft_is_measured_against_the_proposal(mode: str, sampling: Sampling, right: int) -> None:
    """As Leviathan (one by one) and Sun et al. (in a block) have it, in few words."""
    truth = Truth((("a", 2),))
    truth.reach(80)
    for known in PLACES:
        chain = chain_of(truth, known, right)
        coins, tags, shares = coins_for(mode, chain, sampling), tags_of(chain), [1.0]
        rests: list[list[float]] = []
        for place, token in enumerate(chain.tokens):
            chances, guess = likely(tags[place], sampling), proposed(token, sampling)
            scale = shares[-1] if mode == "block" else 1.0
            rests.append([max(scale * one - other, 0.0) for one, other in zip(chances, guess, strict=True)])
            shares.append(min(scale * chances[token] / guess[token], 1.0))
        rests.append(list(likely(tags[-1], sampling)))
        accepted = 0
        for place, coin in enumerate(coins.accepting[:DRAFTS], start=1):
            share = shares[place]
            if mode == "rejection":
                if coin >= share:
                    break
                accepted = place
                continue
            most = share
            if place < DRAFTS and 0 < share < 1:
                most = sum(rests[place]) / (sum(rests[place]) + 1 - share)
            accepted = place if coin < most else accepted
        assert accepted == right
        left, total, drawn = coins.final * sum(rests[accepted]), 0.0, -1
        while total <= left:
            drawn += 1
            total += rests[accepted][drawn]
        assert drawn == truth.tokens[known + right]


def test_a_padding_draft_is_rejected_behind_either_end_of_a_chain() -> None:
    """The corpus puts it behind the first token, kernels of a chain behind the last one."""
    truth = Truth((("a", 2),))
    truth.reach(80)
    sampling = Sampling(2.0)
    for known, right in product(PLACES, range(DRAFTS)):
        drafts = truth.drafts(known, DRAFTS - 1, right)
        parents = tuple(range(ROOT, DRAFTS - 2))
        chain = Verified(truth.tag(known), 0, [*drafts, draft_trees.PADDING], (*parents, ROOT), fillers=1)
        wanted = truth.tokens[known : known + right + 1]
        coins = coins_for("target", chain, sampling)
        for parent in (ROOT, DRAFTS - 2):
            shown = chain._replace(parents=(*parents, parent))
            assert tried_in_turn(shown, coins, tables(shown, sampling)) == wanted


def test_the_k_most_likely_tokens_and_the_fewest_with_a_share_are_kept() -> None:
    probs = torch.tensor([[0.1, 0.4, 0.3, 0.2], [0.7, 0.1, 0.1, 0.1]])
    found = kernels.top_k_renorm_prob(probs, torch.tensor([2, 1 << 30], dtype=torch.int32))
    torch.testing.assert_close(found, torch.tensor([[0, 4 / 7, 3 / 7, 0], [0.7, 0.1, 0.1, 0.1]]))
    found = kernels.top_p_renorm_prob(probs, torch.tensor([0.65, 0.6]))
    torch.testing.assert_close(found, torch.tensor([[0, 4 / 7, 3 / 7, 0], [1.0, 0, 0, 0]]))


def test_a_proposal_has_one_token_that_is_nearly_certain() -> None:
    for sampling in ASKED_FOR:
        guess = proposed(7, sampling)
        assert max(guess) == guess[7] > 0.9
        assert guess[other_token(7)] > 0
    assert {first_is_right(tag) for tag in range(1, 40)} == {True, False}
