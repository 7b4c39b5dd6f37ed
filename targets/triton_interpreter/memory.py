"""Loads and stores by address, and the arithmetic that generated kernels call.

Memory is seen through one view of the whole address space for each element type; nothing is read
until an address is used. The first page is left out, and every access is checked before it is made:
a pointer that comes from a tensor must stay inside a tensor of the launch (its storage), one that
was made from an integer (a pointer table) must not be null. What is inside the process's memory but
in no tensor is not noticed for those.
"""

from __future__ import annotations

import ctypes
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .host import Host
from .values import NUMPY, SIZE

PAGE = 4096
TOP = 1 << 47  # user space of x86-64 and (with 48-bit addresses) of arm64
_SPACE = (ctypes.c_uint8 * (TOP - PAGE)).from_address(PAGE)
_BYTES: NDArray[np.uint8] = np.frombuffer(memoryview(_SPACE), dtype=np.uint8)
VIEWS: dict[str, NDArray[Any]] = {name: _BYTES.view(NUMPY[name]) for name in SIZE}
_FORMATS = {"int1": "?", "fp32": "f", "fp64": "d"} | {
    f"{sign}int{8 << i}": (letter.upper() if sign else letter) for sign in ("", "u") for i, letter in enumerate("bhiq")
}
# Item access to a memoryview gives and takes Python numbers three times as fast as numpy does.
SCALARS: dict[str, Any] = {
    name: cast(Any, memoryview(_SPACE).cast("B")).cast(letter) for name, letter in _FORMATS.items()
}


FEW = 50  # so many that Python's own min and max are faster than numpy's


class Launch:
    """The arguments of the launch in progress, for messages and for the slow part of the checks."""

    kernel = ""
    tensors: tuple[Any, ...] = ()


def check(address: int, size: int, low: int) -> None:
    """Raise unless [address, address + size) may be touched through a pointer bounded by `low`."""
    if address >= PAGE and address + size <= TOP:
        if low == PAGE:
            return
        for tensor in Launch.tensors:
            storage = tensor.untyped_storage()
            begin = storage.data_ptr()
            if begin <= address and address + size <= begin + storage.nbytes():
                return
    raise Host.error(
        f"kernel {Launch.kernel}: {size} bytes at address {address:#x} are outside "
        + ("of every tensor of the launch" if low != PAGE else "of memory")
    )


def load(name: str, address: int, low: int) -> Any:
    """One element, when the fast check in the generated code did not pass."""
    return load_row(name, address, 1, low, 0)[0].item()


def store(name: str, address: int, value: Any, low: int) -> None:
    store_row(name, address, 1, value, low, 0)


def _row(name: str, address: int, count: int, low: int, high: int) -> NDArray[Any]:
    """`count` elements from an address, as they lie in memory."""
    size = SIZE[name]
    if not (low <= address and address + count * size <= high):
        check(address, count * size, low)
    if address % size:
        begin = address - PAGE
        return _BYTES[begin : begin + count * size].view(NUMPY[name])
    begin = (address - PAGE) // size
    return VIEWS[name][begin : begin + count]


def load_row(name: str, address: int, count: int, low: int, high: int) -> NDArray[Any]:
    if not count:
        return np.empty(0, NUMPY[name])
    return _row(name, address, count, low, high).copy()  # later stores must not change it


def store_row(name: str, address: int, count: int, value: Any, low: int, high: int) -> None:
    if count:
        _row(name, address, count, low, high)[:] = value


def _places(name: str, base: int, offsets: NDArray[Any], low: int, high: int) -> NDArray[Any]:
    """Indices into the view, from offsets in elements; checked."""
    size = SIZE[name]
    if base % size:
        raise Host.error(f"kernel {Launch.kernel}: scattered access at odd address {base:#x}")
    if len(offsets) < FEW:
        each = offsets.tolist()
        first, last = base + min(each) * size, base + max(each) * size
    else:
        first, last = base + int(offsets.min()) * size, base + int(offsets.max()) * size
    if not (low <= first and last + size <= high):
        check(first, last + size - first, low)
    return offsets.astype(np.int64, copy=False) + (base - PAGE) // size


def load_at(name: str, base: int, offsets: NDArray[Any], low: int, high: int) -> NDArray[Any]:
    if not offsets.size:
        return np.empty(0, NUMPY[name])
    found: NDArray[Any] = VIEWS[name][_places(name, base, offsets, low, high)]
    return found


def store_at(name: str, base: int, offsets: NDArray[Any], value: Any, low: int, high: int) -> None:
    if offsets.size:
        VIEWS[name][_places(name, base, offsets, low, high)] = value


def elements(name: str, addresses: NDArray[Any]) -> NDArray[Any]:
    """Addresses in bytes as offsets in elements from 0."""
    size = SIZE[name]
    if size == 1:
        return addresses
    if np.bitwise_or.reduce(addresses) & (size - 1):
        raise Host.error(f"kernel {Launch.kernel}: scattered access at an odd address")
    shifted: NDArray[Any] = addresses >> (size.bit_length() - 1)
    return shifted


def pick(value: Any, lanes: NDArray[Any]) -> Any:
    """The lanes of a block; a scalar is the same in all."""
    return value[lanes] if isinstance(value, np.ndarray) else value


def load_masked(
    name: str, base: int, offsets: NDArray[Any], mask: NDArray[Any], other: Any, low: int, high: int
) -> NDArray[Any]:
    result: NDArray[Any] = np.empty(len(offsets), NUMPY[name])
    result[:] = other
    lanes = mask.nonzero()[0]
    if lanes.size:
        result[lanes] = load_at(name, base, offsets[lanes], low, high)
    return result


def store_masked(
    name: str, base: int, offsets: NDArray[Any], value: Any, mask: NDArray[Any], low: int, high: int
) -> None:
    lanes = mask.nonzero()[0]
    if lanes.size:
        store_at(name, base, offsets[lanes], pick(value, lanes), low, high)


def load_row_masked(
    name: str, address: int, count: int, mask: NDArray[Any], other: Any, low: int, high: int
) -> NDArray[Any]:
    """Like load_masked, of elements that lie in a row."""
    if mask.all():
        return load_row(name, address, count, low, high)
    return load_masked(name, address, np.arange(count), mask, other, low, high)


def store_row_masked(name: str, address: int, count: int, value: Any, mask: NDArray[Any], low: int, high: int) -> None:
    if mask.all():
        store_row(name, address, count, value, low, high)
    else:
        store_masked(name, address, np.arange(count), value, mask, low, high)
