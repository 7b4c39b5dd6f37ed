"""Two tree cores side by side: a difference in any answer is told, and what is only numbered differently is none."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
import torch

from hybridfuzz.targets.sglang.core_pair import CorePair


@dataclass
class Receipt:
    node_id: int
    component_lock_uuids: dict[str, int] = field(default_factory=dict)


class Freed(msgspec.Struct):
    device_frees: dict[str, list[Any]] = msgspec.field(default_factory=lambda: defaultdict(list))
    node_id: int | None = None


class Core:
    """A tree core whose nodes are numbered from `first` on."""

    page_size = 1

    def __init__(self, first: int) -> None:
        self.first = first
        self.locked: list[int] = []
        self.freed = [3, 1, 2]
        self.evictable = 5

    def root_node_handle(self) -> int:
        return self.first

    def begin_insert(self, tokens: list[int]) -> Freed:
        return Freed({"kv": [torch.tensor(tokens)]}, self.first + len(tokens))

    def inc_lock_ref(self, node_id: int) -> Receipt:
        self.locked.append(node_id - self.first)
        return Receipt(node_id, {"swa": self.first + 90})

    def dec_lock_ref(self, node_id: int, params: Receipt) -> tuple[int, int]:
        assert params.node_id == node_id
        return len(self.locked), params.component_lock_uuids["swa"] - self.first

    def evict_excess(self, tail_node_id: int, device_frees: dict[str, list[Any]]) -> None:
        device_frees["kv"].append(torch.tensor(self.freed))

    def all_values_flatten(self) -> torch.Tensor:
        return torch.tensor(self.freed)

    def evictable_size(self) -> int:
        return self.evictable


@pytest.fixture
def pair() -> CorePair:
    return CorePair(Core(100), Core(700))


def use(pair: CorePair) -> None:
    pair.root_node_handle()
    node = pair.begin_insert([1, 2]).node_id
    receipt = pair.inc_lock_ref(node)
    pair.dec_lock_ref(node, receipt)
    pair.evict_excess(node, defaultdict(list))
    pair.all_values_flatten()
    pair.evictable_size()


def test_cores_that_number_their_nodes_differently_agree(pair: CorePair) -> None:
    use(pair)
    compared, difference = pair.take()
    assert compared >= 7
    assert difference is None
    assert pair.python.locked == pair.rust.locked == [2]
    assert pair.take() == (0, None)


def test_the_first_core_answers(pair: CorePair) -> None:
    assert pair.root_node_handle() == 100
    assert pair.begin_insert([1]).device_frees["kv"][0].tolist() == [1]


def test_the_order_of_a_walk_and_of_what_is_freed_does_not_count(pair: CorePair) -> None:
    pair.rust.freed = [1, 2, 3]
    use(pair)
    assert pair.take()[1] is None


@pytest.mark.parametrize(
    ("name", "value", "operation"),
    [("evictable", 6, "evictable_size"), ("freed", [1, 2, 4], "device_frees"), ("locked", [9], "dec_lock_ref")],
)
def test_the_first_answer_that_differs_is_told(pair: CorePair, name: str, value: object, operation: str) -> None:
    setattr(pair.rust, name, value)
    use(pair)
    difference = pair.take()[1]
    assert difference is not None and difference.operation == operation


def test_behind_a_difference_only_the_first_core_goes_on(pair: CorePair) -> None:
    """The other one would be asked for nodes that it does not have."""
    pair.rust.evictable = 6
    pair.evictable_size()
    node = pair.begin_insert([1, 2]).node_id
    pair.inc_lock_ref(node)
    assert (pair.python.locked, pair.rust.locked) == ([2], [])


def test_one_node_of_one_core_cannot_be_two_of_the_other(pair: CorePair) -> None:
    pair.begin_insert([1, 2])
    pair.rust.first += 1
    pair.begin_insert([1, 2])
    difference = pair.take()[1]
    assert difference is not None
    assert difference.operation == "begin_insert" and "node_id=102" in difference.python
    assert "node_id=703" in difference.rust


def test_what_the_first_core_asks_itself_while_it_answers_is_not_asked_twice(pair: CorePair) -> None:
    """Its components hold the pair, and are part of the first core alone."""

    def asks(tokens: list[int]) -> int:
        pair.inc_lock_ref(101)
        return len(tokens)

    def answers(tokens: list[int]) -> int:
        return len(tokens)

    pair.python.begin_insert = asks
    pair.rust.begin_insert = answers
    assert pair.begin_insert([4]) == 1
    assert (pair.python.locked, pair.rust.locked) == ([1], [])


def test_settings_reach_both(pair: CorePair) -> None:
    pair.page_size = 4
    assert (pair.python.page_size, pair.rust.page_size, pair.page_size) == (4, 4, 4)


def test_a_result_that_nobody_carries_out_is_emptied(pair: CorePair) -> None:
    """SGLang asserts that what a result frees was freed before it goes."""
    kept: list[Freed] = []
    begin = pair.rust.begin_insert
    pair.rust.begin_insert = lambda tokens: kept.append(begin(tokens)) or kept[-1]
    pair.begin_insert([1])
    assert not kept[0].device_frees
