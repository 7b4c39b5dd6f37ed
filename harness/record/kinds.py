"""Kinds of values, and relations between numbers: what two runs can be compared by although their numbers differ.

A trace that is one token longer has other numbers everywhere; a count that is zero, a flag that no row has, or two
lengths that agree are differences in kind (predicates of statistical debugging: Liblit et al. 2005).

Kinds are told apart for None, booleans, integers (0, 1, negative, larger), containers (empty, one member, more), and
arrays of integers or booleans of NumPy and of torch on a CPU (their size, which of these kinds they contain, and
whether they are sorted). Everything else is "other". Arrays are recognized without importing either library.

The values belong to an engine: none of its own methods is called, such as the order of one of its enumerations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, pairwise
from typing import Any

ELEMENTS = 512
"""Elements of an array that are looked at."""
NUMBERS = 40
"""Numbers of one function that are compared with each other, the first ones by name."""


_INTEGERS = ("int", "uint", "bool")
_CONTAINERS = (str, list, tuple, dict, set, frozenset)


def kind(value: object) -> str:
    """Return the kind of a value."""
    value = plain(value)
    if value is None or isinstance(value, bool):
        return str(value)
    if type(value) is int:
        return _integer(value)
    if (length := _length(value, _CONTAINERS)) is not None:
        return _amount(length)
    numbers = _elements(value)
    return "other" if numbers is None else _array(numbers)


def number(value: object) -> int | None:
    """Return an integer as it is, the length of a list, tuple or dict, and None for anything else."""
    value = plain(value)
    if type(value) is int:
        return value
    return _length(value, (list, tuple, dict))


def plain(value: Any) -> object:
    """Return an integer or boolean of NumPy, or of a class derived from `int`, as Python's own, and any other value
    unchanged."""
    if issubclass(type(value), int):
        return value if type(value) is bool else int.__int__(value)
    if type(value).__module__ == "numpy" and type(value).__name__.startswith(_INTEGERS):
        return value.item()
    return value


def relations(numbers: Mapping[str, int]) -> set[str]:
    """Return the order of each two numbers, as "a < b"."""
    named = [(name, numbers[name]) for name in sorted(numbers)[:NUMBERS]]
    return {
        f"{one} {'<' if x < y else '>' if x > y else '='} {other}" for (one, x), (other, y) in combinations(named, 2)
    }


def _length(value: Any, containers: Sequence[type[Any]]) -> int | None:
    for container in containers:
        if issubclass(type(value), container):
            length: int = container.__len__(value)
            return length
    return None


def _elements(value: Any) -> Sequence[int] | None:
    """Return the first elements of an array of integers or booleans, None for anything else."""
    array = (type(value).__module__, type(value).__name__)
    if array != ("numpy", "ndarray") and (array != ("torch", "Tensor") or value.device.type != "cpu"):
        return None
    if not str(value.dtype).removeprefix("torch.").startswith(_INTEGERS):
        return None
    first: list[int] = value.reshape(-1)[:ELEMENTS].tolist()
    return first


def _array(elements: Sequence[int]) -> str:
    amount = f"array, {_amount(len(elements))}"
    if not elements:
        return amount
    if isinstance(elements[0], bool):
        return f"{amount}: {'all' if all(elements) else 'some' if any(elements) else 'none'}"
    found = {_integer(element) for element in elements}
    return f"{amount}: {' '.join(sorted(found))}, {_order(elements)}"


def _integer(value: int) -> str:
    return str(value) if value in (0, 1) else "negative" if value < 0 else "larger"


def _amount(length: int) -> str:
    return "empty" if length == 0 else "one" if length == 1 else "more"


def _order(elements: Sequence[int]) -> str:
    pairs = set(pairwise(elements))
    if all(one == other for one, other in pairs):
        return "equal"
    if all(one <= other for one, other in pairs):
        return "ascending"
    return "descending" if all(one >= other for one, other in pairs) else "unsorted"
