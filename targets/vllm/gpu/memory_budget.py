"""Keeps what is expensive to build, within a budget of device memory: whatever has waited longest is closed first.

The budget is for all that this process has on the device, as its allocator counts it, so that it also bounds what an
engine brings along (graphs, workspaces, references). The engine in use counts towards it but is never
closed, so one large engine can exceed it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, Protocol, TypeVar

from ...base.launch import WORKERS
from ...base.protocol import TargetError

MOST = 16
"""Engines and references that wait, at most, however small they are."""
SHARE = 0.5
"""Of the device's memory, for the engines of all workers. The rest: contexts, other memories, what a trace needs."""
BUDGET = "HYBRIDFUZZ_GPU_MEMORY"
"""Environment variable: GiB for each worker."""


class Closable(Protocol):
    """What is kept."""

    def close(self) -> None:
        """Let go of everything. It is not used again."""


class Allocator(Protocol):
    """The memory of a device, as this process sees it."""

    def used(self) -> int:
        """Return the bytes that this process has allocated."""

    def free(self) -> None:
        """Collect garbage, and give unused memory back to the device."""


Kind = TypeVar("Kind", bound=Closable)


class Kept(Generic[Kind]):
    """Lends engines, and keeps those that are given back. `built` counts those that had to be built."""

    def __init__(self, allocator: Allocator, budget: int, most: int = MOST) -> None:
        self.built = 0
        self._allocator = allocator
        self._budget = budget
        self._most = most
        self._free: OrderedDict[Hashable, Kind] = OrderedDict()
        self._keys: dict[int, Hashable] = {}
        """Keys of those that are lent, by id."""
        self._largest = 0
        """Bytes of the largest one that was built."""

    def take(self, key: Hashable, build: Callable[[], Kind]) -> Kind:
        """Return the one with this key, built if none is free, after room was made for one as large as any so far."""
        one = self._free.pop(key, None)
        if one is None:
            self._close_beyond(self._budget - self._largest)
            self.built += 1
            before = self._allocator.used()
            one = build()
            self._largest = max(self._largest, self._allocator.used() - before)
        self._keys[id(one)] = key
        return one

    def give_back(self, one: Kind) -> None:
        """Keep one for later. A second one with the same key takes the first one's place."""
        key = self._keys.pop(id(one))
        double = self._free.pop(key, None)
        self._free[key] = one
        if double is not None:
            self._close(double)
        self._close_beyond(self._budget)

    def discard(self, one: Kind) -> None:
        """Close one that was lent and is not sound any more."""
        del self._keys[id(one)]
        self._close(one)

    def forget(self) -> None:
        """Close all that wait: the next ones are new."""
        while self._free:
            self._close(self._free.popitem(last=False)[1])

    def _close_beyond(self, most: int) -> None:
        while len(self._free) > self._most:  # its memory is collected once it is needed: collecting takes long
            self._free.popitem(last=False)[1].close()
        if self._free and self._allocator.used() > most:
            self._allocator.free()  # what nothing refers to any more goes first
        while self._free and self._allocator.used() > most:
            self._close(self._free.popitem(last=False)[1])

    def _close(self, one: Kind) -> None:
        one.close()
        del one
        self._allocator.free()


def budget(total: int, variables: Mapping[str, str]) -> int:
    """Return the bytes for the engines of this process, on a device of `total` bytes."""
    if wanted := variables.get(BUDGET):
        try:
            gib = float(wanted)
        except ValueError:
            raise TargetError(f"{BUDGET}={wanted} is no number of GiB") from None
        return int(gib * (1 << 30))
    return int(total * SHARE) // max(int(variables.get(WORKERS) or 1), 1)
