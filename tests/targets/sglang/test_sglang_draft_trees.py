"""Trees of drafts: what is proposed, and what kernels read of it."""

from types import SimpleNamespace

import pytest
import torch

from hybridfuzz.reference.draft_trees import ROOT, longest_path
from hybridfuzz.reference.tokens import Truth
from hybridfuzz.targets.sglang import draft_trees
from hybridfuzz.targets.sglang.batch_rows import Links
from hybridfuzz.targets.sglang.kernels import OutOfBounds

PARENTS = (ROOT, ROOT, 1)
"""Drafts 0 and 1 are behind the last known token, 2 behind draft 1."""
SEEN = [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]
CHILDREN, SIBLINGS = [1, -1, 3, -1], [-1, 2, -1, -1]


@pytest.mark.parametrize("right", [0, 1, 2, 3])
@pytest.mark.parametrize("breadth", [2, 3])
def test_as_many_drafts_as_asked_for_are_right_where_a_path_is_as_long(right: int, breadth: int) -> None:
    found = set()
    for length in range(2, 60):
        truth = Truth((("a", length),))
        tree = draft_trees.grow(truth, length, 6, breadth, right)
        truth.reach(length + 7)
        path = longest_path(tree.tokens, tree.parents, truth.tokens[length:])
        assert len(path) <= right
        found.add((len(path), path != list(range(len(path)))))
        for parent in set(tree.parents):
            behind = [token for token, one in zip(tree.tokens, tree.parents, strict=True) if one == parent]
            assert len(set(behind)) == len(behind)
    assert (right, False) in found
    assert ((right, True) in found) == (right > 0)


def test_a_short_match_is_filled_up_behind_the_last_known_token() -> None:
    right = fillers = 0
    for length in range(2, 60):
        truth = Truth((("a", length),))
        tree = draft_trees.grow(truth, length, 4, 1, 0, "any")
        assert tree.parents == (*range(ROOT, 3 - tree.fillers), *[ROOT] * tree.fillers)
        truth.reach(length + 1)
        fillers += tree.fillers > 0
        right += tree.fillers > 0 and tree.tokens[-1] == truth.tokens[length]
    assert 0 < right < fillers < 58


def test_a_token_sees_the_path_to_it() -> None:
    assert draft_trees.mask(PARENTS).astype(int).tolist() == SEEN


def test_links_are_followed_to_the_parent_of_each_token() -> None:
    assert draft_trees.linked_parents(CHILDREN, SIBLINGS) == (0, 0, 0, 2)


def verification(prefixes: list[int]) -> SimpleNamespace:
    """A verification of the same tree behind several prefixes."""
    lines = [[1] * prefix + line for prefix in prefixes for line in SEEN]
    return SimpleNamespace(
        custom_mask=torch.tensor([entry for line in lines for entry in line], dtype=torch.bool),
        positions=torch.tensor([prefix + sum(line) - 1 for prefix in prefixes for line in SEEN]),
        draft_token=torch.tensor([6, 7, 8, 9] * len(prefixes)),
        retrieve_next_token=torch.tensor([CHILDREN] * len(prefixes)),
        retrieve_next_sibling=torch.tensor([SIBLINGS] * len(prefixes)),
    )


def test_attention_reads_a_line_of_the_mask_for_each_token() -> None:
    given = verification([2, 3])
    proposals = [draft_trees.Proposal([7, 8, 9], PARENTS)] * 2
    first, second = draft_trees.seen_by_attention(given, [2, 3], proposals)
    assert first.visible == second.visible == ((0,), (0, 1), (0, 2), (0, 2, 3))
    assert (first.positions, second.positions) == ((2, 3, 3, 4), (3, 4, 4, 5))
    given.custom_mask[7] = False  # token 1 does not see the second token of the prefix
    assert draft_trees.seen_by_attention(given, [2, 3], proposals)[0].visible[1] is None
    with pytest.raises(OutOfBounds):
        draft_trees.seen_by_attention(given, [2, 9], proposals)


def test_a_draft_models_tree_is_known_by_its_links() -> None:
    assert draft_trees.drafted(verification([2, 3]), 2)[1] == draft_trees.Proposal([7, 8, 9], PARENTS)


def test_what_the_convolution_finds_is_stored_for_the_recurrence() -> None:
    stored = torch.full((2, 4), 9)
    metadata = SimpleNamespace(
        retrieve_next_token=torch.tensor([CHILDREN] * 2),
        retrieve_next_sibling=torch.tensor([SIBLINGS] * 2),
        retrieve_parent_token=stored,
    )
    assert draft_trees.linked(metadata, 1) == [Links((0, 0, 0, 2), (0, 0, 0, 2))]
    assert stored.tolist() == [[0, 0, 0, 2], [9, 9, 9, 9]]
    metadata.retrieve_parent_token = None
    assert draft_trees.linked(metadata, 1) == [Links((0, 0, 0, 2), (-1, 0, 1, 2))]


def test_without_links_each_token_comes_behind_the_one_before_it() -> None:
    names = ("retrieve_next_token", "retrieve_next_sibling", "retrieve_parent_token")
    assert draft_trees.linked(SimpleNamespace(**dict.fromkeys(names)), 2) == [None, None]
