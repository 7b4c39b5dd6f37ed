"""Device work runs once for each memory of an engine, and the engine's own memory is what later code reads."""

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from hybridfuzz.targets.vllm.gpu import memories  # noqa: E402
from hybridfuzz.targets.vllm.gpu.memories import Memories  # noqa: E402


@pytest.fixture(autouse=True)
def _inactive() -> Iterator[None]:
    yield
    memories.activate(None)


def filled(count: int) -> tuple["torch.Tensor", Memories]:
    """Caches of 4 bytes that hold 1, and other memories that hold 2, 3, ..."""
    caches = torch.ones(4, dtype=torch.uint8)
    made = Memories([caches], count)
    for number, (other,) in enumerate(made.others):
        other.fill_(number + 2)
    return caches, made


def test_work_runs_on_each_memory_and_the_own_one_is_left() -> None:
    caches, made = filled(2)
    memories.activate(made)
    seen = [caches.tolist() for _ in memories.each()]
    assert seen == [[2] * 4, [3] * 4]
    assert caches.tolist() == [1] * 4


def test_what_the_work_stores_stays_in_its_memory() -> None:
    caches, made = filled(1)
    memories.activate(made)

    @memories.repeated
    def move() -> None:
        caches[0] = caches[1] + 10

    move()
    assert caches.tolist() == [11, 1, 1, 1]
    assert made.others[0][0].tolist() == [12, 2, 2, 2]


def test_arguments_are_the_same_for_each_memory() -> None:
    """vLLM's fused copies reset a count of accepted tokens where they moved a state: a second run has to see it too."""
    caches, made = filled(2)
    memories.activate(made)
    accepted = torch.tensor([3])

    @memories.repeated
    def move(counts: "torch.Tensor") -> None:
        caches[0] = counts[0]
        counts.fill_(1)

    move(accepted)
    assert accepted.tolist() == [1]
    assert [caches[0].item(), *[other[0].item() for (other,) in made.others]] == [3, 3, 3]


def test_an_error_puts_the_own_memory_back() -> None:
    caches, made = filled(1)

    @memories.repeated
    def fail() -> None:
        raise RuntimeError

    memories.activate(made)
    with pytest.raises(RuntimeError):
        fail()
    assert caches.tolist() == [1] * 4


def test_without_memories_work_runs_once() -> None:
    calls: list[int] = []
    memories.repeated(lambda: calls.append(1))()
    assert calls == [1]


def test_a_counterpart_has_the_shape_and_place_of_its_tensor() -> None:
    """A temporal state behind a window, in pages that are longer than both."""
    storage = torch.arange(24, dtype=torch.int32).view(torch.uint8)
    state = storage.view(torch.int32).as_strided((3, 2), (8, 1), 4)
    made = Memories([storage], 1)
    other = made.counterpart(state, 0)
    assert other.tolist() == state.tolist() == [[4, 5], [12, 13], [20, 21]]
    other.zero_()
    assert state[0].tolist() == [4, 5]
    assert [memory.view(torch.int32)[4].item() for (memory,) in made.others] == [0]
