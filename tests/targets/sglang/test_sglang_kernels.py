"""Speculation's kernels in plain Torch say what SGLang's kernels say."""

import pytest
import torch

from hybridfuzz.targets.sglang import kernels

NONE = -1


def verify(children: list[int], siblings: list[int], candidates: list[int], said: list[int]) -> tuple[list[int], int]:
    """Accepted nodes of one tree (the root is one), and how many besides it."""
    count = len(candidates)
    predicts, accepted = torch.zeros(count, dtype=torch.int32), torch.full((1, count), NONE, dtype=torch.int32)
    number = torch.zeros(1, dtype=torch.int32)
    kernels.verify_tree_greedy_func(
        predicts,
        accepted,
        number,
        torch.tensor([candidates]),
        torch.arange(count)[None],
        torch.tensor([children]),
        torch.tensor([siblings]),
        torch.tensor([said]),
    )
    nodes = [node for node in accepted[0].tolist() if node != NONE]
    assert predicts[nodes].tolist() == [said[node] for node in nodes]
    return nodes, int(number[0])


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_a_chain_is_accepted_up_to_the_first_wrong_draft(right: int) -> None:
    said = [11, 12, 13, 14]
    candidates = [10, *[token if index < right else 99 for index, token in enumerate(said[:3])]]
    assert verify([1, 2, 3, NONE], [NONE] * 4, candidates, said) == (list(range(right + 1)), right)


def test_a_tree_is_walked_to_the_sibling_that_the_model_says() -> None:
    """Node 0 has children 1 and 2; 2 has child 3."""
    assert verify([1, NONE, 3, NONE], [NONE, 2, NONE, NONE], [10, 20, 21, 22], [21, 0, 22, 23]) == ([0, 2, 3], 2)


def test_each_draft_of_a_chain_follows_the_one_before() -> None:
    positions, links = torch.zeros(6, dtype=torch.int64), torch.zeros((3, 2, 3), dtype=torch.int64)
    kernels.build_tree_kernel_efficient_func(None, None, torch.tensor([7, 3]), None, positions, *links, 1, 2, 3, None)
    index, child, sibling = links.tolist()
    assert positions.tolist() == [7, 8, 9, 3, 4, 5]
    assert (index, child, sibling) == ([[0, 1, 2], [3, 4, 5]], [[1, 2, NONE]] * 2, [[NONE] * 3] * 2)


def test_a_tree_of_a_draft_model_is_built_as_its_kernel_does() -> None:
    """Two guesses behind each token. Of the first request 0 and 1 are behind the root, 2 and 3 behind draft 1; of the
    second also draft 4, behind 1, and 6 behind that one. Places of what was followed: `parents`, the root first."""
    count, lengths = 5, torch.tensor([2, 1])
    chosen = torch.tensor([[0, 1, 4, 5], [0, 1, 4, 6]])
    parents = torch.tensor([[NONE, 0, 1, 4, 5], [NONE, 0, 1, 4, 2]])
    mask = torch.ones(count * (2 + count) + count * (1 + count), dtype=torch.bool)
    positions, links = torch.zeros(10, dtype=torch.int64), torch.full((3, 2, count), NONE)
    kernels.build_tree_kernel_efficient_func(parents, chosen, lengths, mask, positions, *links, 2, 3, count, 0)
    index, child, sibling = links.tolist()
    assert index == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert child == [[1, NONE, 3, NONE, NONE], [1, NONE, 3, 4, NONE]]
    assert sibling == [[NONE, 2, NONE, 4, NONE], [NONE, 2, NONE, NONE, NONE]]
    assert positions.tolist() == [2, 3, 3, 4, 4, 1, 2, 2, 3, 4]
    first, second = mask[:35].reshape(5, 7).int().tolist(), mask[35:].reshape(5, 6).int().tolist()
    assert first[1:] == [[1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 1, 0, 0], [1, 1, 1, 0, 1, 1, 0], [1, 1, 1, 0, 1, 0, 1]]
    assert second[3:] == [[1, 1, 0, 1, 1, 0], [1, 1, 0, 1, 1, 1]]


def test_the_last_accepted_token_of_each_request_is_relayed() -> None:
    bonus = torch.zeros(2, dtype=torch.int64)
    kernels.fill_bonus_tokens_func(torch.tensor([[5, 6, 0], [7, 0, 0]]), torch.tensor([2, 1]), bonus, 3, 2)
    assert bonus.tolist() == [6, 7]
    tokens, absent = kernels.gather_spec_extras(torch.tensor([1]), bonus, None)
    assert (tokens.tolist(), absent) == ([7], None)


def test_a_draft_model_writes_behind_what_is_computed() -> None:
    table, located = torch.arange(20).reshape(2, 10), torch.zeros(4, dtype=torch.int64)
    rows, lengths = torch.tensor([1, 0]), torch.tensor([2, 5])
    kernels.assign_draft_cache_locs_contiguous_func(rows, table, lengths, located, 1, 2)
    assert located.tolist() == [12, 13, 5, 6]


def test_locations_are_packed_request_by_request() -> None:
    table = torch.arange(20).reshape(2, 10)
    rows, start, end = torch.tensor([1, 0]), torch.tensor([2, 5]), torch.tensor([4, 8])
    located = kernels.assign_extend_cache_locs_func(rows, table, start, end, batch_size=2, draft_token_num=3, device="")
    assert located.tolist() == [12, 13, 5, 6, 7]
    kernels.assign_req_to_token_pool_func(rows, table, start, end, torch.tensor([90, 91, 92, 93, 94]), 2)
    assert table[1, 2:4].tolist() == [90, 91]
    assert table[0, 5:8].tolist() == [92, 93, 94]
    front = torch.zeros(6, dtype=torch.int64)
    kernels.fill_front_out_cache_loc_func(torch.tensor([1, 2]), torch.tensor([5, 6, 7, 8]), front)
    assert front.tolist() == [5, 7, 8, 0, 0, 0]
    kernels.fill_accept_out_cache_loc_func(torch.tensor([[0, NONE], [2, 3]]), torch.tensor([5, 6, 7, 8]), front, 6)
    assert front.tolist() == [5, 7, 8, 0, 0, 0]
