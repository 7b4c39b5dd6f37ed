"""Delays on the device's streams, so that work for which nobody waits comes too late.

Work on two streams, or on a stream and the host, is ordered by events alone. A tiny model leaves the device idle: what
nobody waits for is done in time all the same, and a missing wait stays unseen. With `jitter=yes` a kernel that does
nothing keeps a stream busy

* behind each event that is recorded on it or that it waits for. In a captured graph this is a node of the graph, and
  happens in each replay;
* behind each copy to the host that this package makes in the middle of a step. Such a copy leaves the stream empty,
  where on a server the device is behind the host by the rest of a forward.

The oracles are the same. The idea is that of SGLang's jitter for its cache consistency tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from random import Random
from typing import Any

import torch

BEHIND_EVENT = 200
"""Microseconds, at most: several of a tiny model's kernels."""
BEHIND_READ = 800
"""Microseconds, at most: more than the host needs from the sampler to the inputs of the next step."""
CYCLES = 1_800
"""Of a device in a microsecond, about."""


class Jitter:
    """Delays of random length. `spin` keeps the current stream busy for so many cycles of the device."""

    def __init__(self, seed: int = 0, spin: Callable[[int], None] = torch.cuda._sleep) -> None:
        self._random = Random(seed)
        self._spin = spin
        self.delays = 0
        """How many there were."""

    def delay(self, longest: int) -> None:
        """Keep the current stream busy for at most so many microseconds."""
        self.delays += 1
        self._spin(self._random.randrange(longest * CYCLES))


_active: list[Jitter] = []


@contextmanager
def active(jitter: Jitter | None) -> Iterator[None]:
    """Delay the work of a block (None: do not)."""
    _active[:] = [jitter] if jitter else []
    try:
        yield
    finally:
        _active.clear()


def behind_read() -> None:
    """The current stream is empty, since the host has waited for a copy: let it fall behind."""
    if _active:
        _active[0].delay(BEHIND_READ)


@cache
def install() -> None:
    """Watch events of CUDA's streams, once per process."""
    torch.cuda.Event.record = followed(torch.cuda.Event.record)  # type: ignore[method-assign]
    torch.cuda.Event.wait = followed(torch.cuda.Event.wait)  # type: ignore[method-assign]


def followed(call: Callable[..., None]) -> Callable[..., None]:
    """Wrap a method of an event that is given a stream (None: the current one): a delay on that stream follows."""

    def wrapper(self: Any, stream: Any = None) -> None:
        call(self, stream)
        if _active:
            with torch.cuda.stream(stream):
                _active[0].delay(BEHIND_EVENT)

    return wrapper
