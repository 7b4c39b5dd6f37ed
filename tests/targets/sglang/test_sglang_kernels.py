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
