"""Compile-time knowledge of values, and Triton's rules for types.

A type is Triton's own name for it ("int32", "fp32", "int1"), "ptr", or one of four that only a
compiler needs: "const" (a Python value, known now: Triton's interpreter keeps those weakly typed),
"w32" and "w64" (a Python int known only when the kernel runs, such as a loop variable: weakly typed
as well; a w32 is known to fit int32) and "tuple".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

NUMPY = {
    "int1": "bool",
    "int8": "int8",
    "uint8": "uint8",
    "int16": "int16",
    "uint16": "uint16",
    "int32": "int32",
    "uint32": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "fp32": "float32",
    "fp64": "float64",
}
SIZE = {"int1": 1, "fp32": 4, "fp64": 8} | {
    f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)
}
BITS = {name: 1 if name == "int1" else 8 * size for name, size in SIZE.items()}
WEAK = ("const", "w32", "w64")


class Unsupported(Exception):
    """A kernel with an operation that cannot be reproduced exactly: Triton's interpreter runs it."""


class Fails(Unsupported):
    """Triton's interpreter cannot do this either: it raises when it gets there."""


class Untruncatable(Exception):
    """A lane beyond a block's mask is observed: compile again with all lanes."""


@dataclass(frozen=True, eq=False)
class Value:
    """A scalar (n = 0) or a block of n lanes; `code` is a name or literal in the generated code.

    A block has one of three forms. *Lazy*: `make` gives the code of its first k lanes ("" for all),
    so nothing is computed until the number of lanes is known. *Full*: `code` has n lanes.
    *Cut*: `code` has only the first `lanes` lanes (a variable); the others all equal `tail()`, or,
    without a tail, are unknown and must never be looked at.
    """

    type: str
    code: str = ""
    n: int = 0
    shape: tuple[int, ...] = ()  # of a block of several dimensions, whose lanes are in C's order; such a one is not cut
    below: int = 0  # of a block: every lane is surely from 0 up to this; 0: unknown
    value: Any = None  # of a "const"; the members of a "tuple"
    make: Callable[[str], str] | None = None
    start: Value | None = None  # lazy only: the block is start + arange(n)
    lanes: str = ""
    tail: Callable[[], Value] | None = None
    whole: bool = False  # a cut mask: every lane before the cut is true
    element: str = ""  # of a "ptr": what it points to
    low: str = ""  # of a "ptr": the code of the bounds, [low, high)
    high: str = ""
    aligned: bool = False  # of a "ptr": surely to its element
    offset: Value | None = None  # of a block "ptr": in elements from `code`; None: 0, 1, 2, ...
    absolute: bool = False  # of a block "ptr": `offset` is the address, in bytes


def const(value: Any) -> Value:
    return Value("const", repr(value) if isinstance(value, int) else "", value=value)


def same_constant(a: Value, b: Value) -> bool:
    if a.type != "const" or b.type != "const" or type(a.value) is not type(b.value):
        return False
    return a.value is b.value or bool(a.value == b.value)


def is_float(type_: str) -> bool:
    return type_.startswith("fp")


def is_signed(type_: str) -> bool:
    return type_.startswith("int") and type_ != "int1"


def kind(type_: str) -> int:
    return 0 if type_ == "int1" else 2 if is_float(type_) else 1


def type_of(value: Any) -> str:
    """Return Triton's type of a Python number that is not combined with another type."""
    if isinstance(value, bool):
        return "int1"
    if isinstance(value, int):
        for type_, low, high in (
            ("int32", -(2**31), 2**31),
            ("uint32", 2**31, 2**32),
            ("int64", -(2**63), 2**63),
            ("uint64", 2**63, 2**64),
        ):
            if low <= value < high:
                return type_
        raise Unsupported(f"integer {value}")
    if isinstance(value, float):
        size = abs(value)
        usual = size in (0.0, float("inf")) or math.isnan(value) or 2**-126 <= size < 2**128 - 2**103
        return "fp32" if usual else "fp64"
    raise Unsupported(f"a {type(value).__name__} as a number")


def limits(type_: str) -> tuple[int, int]:
    bits = BITS[type_]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed(type_) else (0, (1 << bits) - 1)


def promote(a: str, b: str) -> str:
    """The integer type of a binary operation: C's usual arithmetic conversions."""
    if is_signed(a) == is_signed(b):
        return a if BITS[a] > BITS[b] else b
    unsigned, signed = (b, a) if is_signed(a) else (a, b)
    return unsigned if BITS[unsigned] >= BITS[signed] else signed


def weak_type(value: Value) -> str:
    """The type that a weakly typed value brings along."""
    if value.type == "const":
        return type_of(value.value)
    return "int32"  # its kind is what matters; `strong` refuses a w64 that would keep its type


def common_type(a: Value, b: Value, *, division: bool = False) -> str:
    """The type that Triton computes a binary operation in (TritonSemantic.computation_type_impl)."""
    weak = a.type in WEAK, b.type in WEAK
    left = weak_type(a) if weak[0] else a.type
    right = weak_type(b) if weak[1] else b.type
    if weak[0] != weak[1]:
        light, heavy = (left, right) if weak[0] else (right, left)
        if kind(light) <= kind(heavy):
            left = right = heavy
        elif "w64" in (a.type, b.type):
            raise Unsupported("a 64-bit loop variable that keeps its type")
    if "fp64" in (left, right):
        return "fp64"
    if is_float(left) or is_float(right):
        return "fp32"
    if division and is_signed(left) != is_signed(right):
        raise Unsupported("division of different signedness")
    return promote(left, right)
