"""Kinds tell values apart by what makes a difference in behaviour, not by their size."""

from collections.abc import Sequence
from enum import IntEnum

import pytest

from hybridfuzz.harness.record.kinds import ELEMENTS, NUMBERS, kind, number, relations


class Array:
    """An array as `kinds` knows it, by the name of its class and module: neither library is a dependency."""

    def __init__(self, elements: Sequence[object], dtype: str) -> None:
        self.elements, self.dtype, self.device = list(elements), dtype, self
        self.type = "cpu"

    def reshape(self, length: int) -> "Array":
        assert length == -1
        return self

    def __getitem__(self, part: slice) -> "Array":
        return Array(self.elements[part], self.dtype)

    def tolist(self) -> list[object]:
        return self.elements


def array(elements: Sequence[object], dtype: str = "int64", library: str = "numpy", device: str = "cpu") -> Array:
    name = "ndarray" if library == "numpy" else "Tensor"
    made = type(name, (Array,), {"__module__": library})(elements, dtype)
    made.type = device
    return made


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [
        (3, 4, True),
        (0, 1, False),
        (-1, -7, True),
        (-1, 0, False),
        (False, 0, False),
        (None, False, False),
        ([1, 2], [3, 4, 5], True),
        ([], [3], False),
        ({}, {1: 2}, False),
        ("r1", "r2", True),
        (1.5, object(), True),
        (array([3, 5]), array([4, 9, 12]), True),
        (array([3, 5]), array([5, 3]), False),
        (array([3, 5]), array([3, 3]), False),
        (array([3, 5]), array([-1, 5]), False),
        (array([False, False], "bool"), array([False] * 3, "bool"), True),
        (array([False, False], "bool"), array([True, False], "bool"), False),
        (array([True, True], "bool"), array([True, False], "bool"), False),
        (array([3, 5]), array([3, 5], "torch.int32", "torch"), True),
        (array([3], "torch.int32", "torch"), array([3], "torch.int32", "torch", "cuda"), False),
        (array([0.5], "float32"), object(), True),
    ],
)
def test_kinds(first: object, second: object, alike: bool) -> None:
    assert (kind(first) == kind(second)) == alike


def test_arrays_of_the_libraries_are_recognized() -> None:
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    assert kind(numpy.array([3, 5])) == kind(torch.tensor([[4, 7]])) == kind(array([3, 5]))
    assert kind(torch.tensor([False, True])) == kind(array([False, True], "bool"))
    assert kind(torch.tensor([0.5])) == "other"
    assert [number(each) for each in (numpy.int32(4), numpy.bool_(True), torch.tensor(4))] == [4, None, None]


def test_numbers_of_numpy_are_those_of_python() -> None:
    scalar = type("int64", (), {"__module__": "numpy", "item": lambda self: 0})()
    assert (kind(scalar), number(scalar)) == ("0", 0)


def test_no_method_of_an_engine_is_called() -> None:
    """SGLang's `CaptureHiddenMode` compares its `value` with that of the other: each watched run ended in a crash."""

    class Mode(IntEnum):
        FULL = 2

        def __lt__(self, other: int) -> bool:
            raise AssertionError

        __gt__ = __eq__ = __lt__  # type: ignore[assignment]
        __hash__ = int.__hash__

    class Rows(list[int]):
        def __len__(self) -> int:
            raise AssertionError

    found = {"mode": number(Mode.FULL), "rows": number(Rows([1])), "one": 1}
    assert found == {"mode": 2, "rows": 1, "one": 1}
    assert {type(value) for value in found.values()} == {int}
    assert (kind(Mode.FULL), kind(Rows())) == ("larger", "empty")


def test_only_the_first_elements_of_an_array_are_read() -> None:
    assert kind(array([2] * ELEMENTS)) == kind(array([2] * ELEMENTS + [-1]))


def test_numbers_and_lengths_are_compared_with_each_other() -> None:
    assert [number(value) for value in (7, [1, 2], (), {}, True, None, "text", {1})] == [
        7, 2, 0, 0, None, None, None, None,
    ]  # fmt: skip
    assert relations({"a": 1, "b": 2, "c": 1}) == {"a < b", "a = c", "b > c"}
    assert len(relations({f"n{index:03}": index for index in range(NUMBERS + 9)})) == NUMBERS * (NUMBERS - 1) // 2
