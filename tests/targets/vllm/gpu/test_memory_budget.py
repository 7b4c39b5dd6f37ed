"""Engines are closed for good: on a fake device, memory stays flat however many configurations a worker meets."""

import random

import pytest

from hybridfuzz.targets.base.launch import WORKERS
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.vllm.gpu.memory_budget import BUDGET, MOST, Kept, budget


class Device:
    """A device, and the allocator of a process: a closed engine's memory is garbage until it is freed."""

    def __init__(self) -> None:
        self.engines: list[Engine] = []
        self.garbage = 0
        self.peak = 0
        self.closed: list[int] = []
        """Sizes, in order."""

    def used(self) -> int:
        return sum(engine.size for engine in self.engines) + self.garbage

    def free(self) -> None:
        self.garbage = 0

    def build(self, size: int) -> "Engine":
        self.engines.append(Engine(self, size))
        self.peak = max(self.peak, self.used())
        return self.engines[-1]


class Engine:
    def __init__(self, device: Device, size: int) -> None:
        self.device, self.size = device, size

    def close(self) -> None:
        self.device.engines.remove(self)
        self.device.garbage += self.size
        self.device.closed.append(self.size)


def test_memory_is_flat_over_many_configurations() -> None:
    """Eight workers had 51 GiB after four minutes."""
    device, draw = Device(), random.Random(1)
    kept = Kept[Engine](device, budget=100)
    for configuration in range(200):
        size = draw.randint(5, 20)
        one = kept.take(configuration, lambda size=size: device.build(size))  # type: ignore[misc]
        kept.give_back(one)
        assert device.used() <= 100
    assert device.peak <= 100 + 20  # the first of the largest size does not know yet that it is
    assert kept.built == 200
    assert 0 < len(device.engines) <= 100 // 5


def test_those_that_waited_longest_are_closed_first() -> None:
    device = Device()
    kept = Kept[Engine](device, budget=7)
    for key in (1, 2, 3):
        kept.give_back(kept.take(key, lambda key=key: device.build(key)))  # type: ignore[misc]
    kept.give_back(kept.take(1, lambda: pytest.fail("it was kept")))
    kept.give_back(kept.take("new", lambda: device.build(2)))
    assert device.closed == [2]  # room for one as large as the largest, 3
    assert kept.built == 4


def test_one_that_is_lent_is_never_closed() -> None:
    device = Device()
    kept = Kept[Engine](device, budget=1)
    large = kept.take("large", lambda: device.build(50))
    small = kept.take("small", lambda: device.build(1))
    assert device.closed == []
    kept.give_back(small)
    assert device.closed == [1]
    kept.give_back(large)
    assert (device.closed, device.used()) == ([1, 50], 0)


def test_garbage_is_freed_before_an_engine_is_closed() -> None:
    device = Device()
    kept = Kept[Engine](device, budget=10)
    kept.give_back(kept.take("one", lambda: device.build(4)))
    two = kept.take("two", lambda: device.build(2))
    device.garbage = 50  # what a trace left
    kept.give_back(two)
    assert (device.closed, device.used()) == ([], 6)


def test_one_that_is_not_sound_is_closed() -> None:
    device = Device()
    kept = Kept[Engine](device, budget=10)
    kept.discard(kept.take("one", lambda: device.build(4)))
    assert (device.closed, device.used()) == ([4], 0)
    kept.give_back(kept.take("one", lambda: device.build(4)))
    kept.forget()
    assert (device.used(), kept.built) == (0, 2)


def test_small_engines_are_bounded_by_number() -> None:
    device = Device()
    kept = Kept[Engine](device, budget=1 << 40)
    for key in range(3 * MOST):
        kept.give_back(kept.take(key, lambda: device.build(0)))
    assert len(device.engines) == MOST


def test_the_budget_is_a_share_of_the_device() -> None:
    assert budget(80 << 30, {}) == 40 << 30
    assert budget(80 << 30, {WORKERS: "8"}) == 5 << 30
    assert budget(80 << 30, {WORKERS: "8", BUDGET: "1.5"}) == 3 << 29
    with pytest.raises(TargetError, match="no number of GiB"):
        budget(80 << 30, {BUDGET: "much"})
