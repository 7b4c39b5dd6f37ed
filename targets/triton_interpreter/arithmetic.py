"""Arithmetic for generated kernels, bit for bit the same as in Triton's interpreter.

Scalars are Python numbers: an int inside its type's range, a float that its type can hold. Blocks
are numpy arrays. numpy is asked in Triton's own way (same function, same element type) wherever
rounding, signed zeros, NaN or division by zero could tell the difference.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .values import NUMPY, limits


class IntegerOverflow(RuntimeError):
    """A number for which Triton raises, or a block index that would wrap: neither is reproduced."""


class KernelFailure(RuntimeError):
    """A kernel reached an operation that Triton's interpreter cannot execute either."""


def fail(reason: str) -> None:
    raise KernelFailure(reason)


LIMITS = {type_: limits(type_) for type_ in NUMPY}


def wrap(type_: str, value: int) -> int:
    """Two's complement."""
    low, high = LIMITS[type_]
    return (value - low) % (high - low + 1) + low


def fit(type_: str, value: int) -> int:
    """Check a Python int that is combined with a tensor. Triton raises if it does not fit."""
    low, high = LIMITS[type_]
    if low <= value <= high:
        return value
    raise IntegerOverflow(f"Scalar {value} is out of range for type {type_}")


def overflow(value: int) -> None:
    raise IntegerOverflow(f"a block of indices from {value} passes the end of int32")


def single(value: float) -> float:
    """Rounded to float32; exact for + - * / of two float32 that were computed in float64."""
    return ctypes.c_float(value).value


def divide_int(a: int, b: int) -> int:
    """Towards zero, as C does; by zero it is zero, as numpy has it."""
    if b == 0:
        return 0
    quotient = abs(a) // abs(b)
    return quotient if (a >= 0) == (b >= 0) else -quotient


def modulo_int(a: int, b: int) -> int:
    return a - divide_int(a, b) * b if b else 0


def repeated(lanes: NDArray[Any], shape: tuple[int, ...], larger: tuple[int, ...]) -> NDArray[Any]:
    """The lanes of a block of some shape that is repeated along its dimensions of length 1."""
    return np.broadcast_to(lanes.reshape(shape), larger).reshape(-1)


def divide_block(a: Any, b: Any) -> Any:
    return (a - np.fmod(a, b)) // b


def block(type_: str, value: Any) -> NDArray[Any]:
    """A scalar as numpy sees it in Triton's interpreter: an array of one."""
    return np.array([value], NUMPY[type_])


def divide_float(type_: str, a: float, b: float) -> float:
    return float((block(type_, a) / block(type_, b))[0])


def apply(function: Any, type_: str, *values: float) -> float:
    return float(function(*(block(type_, value) for value in values))[0])


def convert(value: Any, source: str, target: str) -> Any:
    """The conversions between int and float where C's rules (or undefined behaviour) matter."""
    return block(source, value).astype(NUMPY[target])[0].item()


def filled(type_: str, n: int, value: Any) -> NDArray[Any]:
    return np.full(n, value, NUMPY[type_])


def extended(part: NDArray[Any], n: int, tail: Any) -> NDArray[Any]:
    """All lanes of a block that was cut after its mask."""
    if len(part) == n:
        return part
    result = np.empty(n, part.dtype)
    result[len(part) :] = tail
    result[: len(part)] = part
    return result


def high_product(a: Any, b: Any) -> NDArray[Any]:
    """umulhi of uint32 blocks."""
    product = np.asarray(a, np.uint64) * np.asarray(b, np.uint64) >> np.uint64(32)
    return product.astype(np.uint32)


def float_max(x: NDArray[Any]) -> float:
    return float(np.fmax.reduce(x))  # what np.nanmax calls


def float_min(x: NDArray[Any]) -> float:
    return float(np.fmin.reduce(x))


def float_argmax(x: NDArray[Any]) -> int:
    place = int(np.argmax(x))
    return place if x[place] == x[place] else int(np.nanargmax(x))


def float_argmin(x: NDArray[Any]) -> int:
    place = int(np.argmin(x))
    return place if x[place] == x[place] else int(np.nanargmin(x))


def cut_max(x: NDArray[Any]) -> float:
    """The maximum of a block whose lanes beyond x are all -inf (x may be empty)."""
    value = float(np.fmax.reduce(x)) if len(x) else float("-inf")
    return float("-inf") if math.isnan(value) else value


def cut_argmax(x: NDArray[Any]) -> int:
    """Its first place: a lane that is NaN counts as -inf."""
    if not len(x):
        return 0
    place = int(np.argmax(x))
    return place if x[place] == x[place] else int(np.argmax(np.where(np.isnan(x), -np.inf, x)))
