"""Streams for copies between host and device: they run beside the kernels, in no order but that of fences.

Kernels run on the stream that is current, the copies of one side stream one after another. Key insight: a copy reads
its source when it runs, not when it is asked for. So a host that fills a buffer again too early sends tomorrow's
numbers, and kernels that do not wait read yesterday's.

Without a GPU the same rules hold in their least convenient form: no copy runs before somebody waits for it or for a
later one, and then those behind it may run or not, as a die says. A fence that is missing shows there as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import torch


class Fence(Protocol):
    """A point on some stream, behind a copy or behind kernels."""

    def hold_kernels(self) -> None:
        """Kernels that are launched from now on run behind it."""
        ...

    def hold_host(self) -> None:
        """Wait for it."""
        ...

    def hold_copies(self, stream: Any) -> None:
        """What is put on a GPU's stream from now on runs behind it."""
        ...


class SideStream(Protocol):
    """Where copies run."""

    def mark(self) -> Fence:
        """A point behind all kernels that were launched so far."""
        ...

    def copy(self, work: Callable[[], object], *after: Fence | None) -> Fence:
        """Let `work` (a copy that does not block) run behind the copies before it on this stream, and behind fences."""
        ...

    def finish(self) -> None:
        """Wait until every copy has run, and every kernel."""
        ...


class DeferredStream:
    """On a CPU, where kernels run as they are launched: copies wait until they are waited for."""

    def __init__(self) -> None:
        self._queued: deque[Callable[[], object]] = deque()
        self._ran = 0
        self._random = Random(0)

    def mark(self) -> Fence:
        """Kernels have run already."""
        return _Deferred(self, 0)

    def copy(self, work: Callable[[], object], *after: Fence | None) -> Fence:
        """See SideStream."""

        def ordered() -> None:
            for fence in after:
                if fence:
                    fence.hold_host()
            work()

        self._queued.append(ordered)
        return _Deferred(self, self._ran + len(self._queued))

    def finish(self) -> None:
        """See SideStream."""
        self._run_to(self._ran + len(self._queued))

    def reach(self, number: int) -> None:
        """Copy `number` must have run; nothing keeps the later ones from running, too."""
        if self._ran < number:
            everything = self._ran + len(self._queued)
            self._run_to(self._random.choice((number, everything)))

    def _run_to(self, number: int) -> None:
        while self._ran < number:
            self._queued.popleft()()
            self._ran += 1


class _Deferred:
    def __init__(self, stream: DeferredStream, number: int) -> None:
        self._stream = stream
        self._number = number

    def hold_kernels(self) -> None:
        self._stream.reach(self._number)

    def hold_host(self) -> None:
        self._stream.reach(self._number)

    def hold_copies(self, stream: Any) -> None:
        raise AssertionError("there is no GPU")


class CudaStream:
    """A stream of a GPU."""

    def __init__(self) -> None:
        make_stream: Any = torch.cuda.Stream
        self.stream = make_stream()

    def mark(self) -> Fence:
        """See SideStream."""
        return _Recorded(torch.cuda.current_stream())

    def copy(self, work: Callable[[], object], *after: Fence | None) -> Fence:
        """See SideStream."""
        for fence in after:
            if fence:
                fence.hold_copies(self.stream)
        with torch.cuda.stream(self.stream):
            work()
        return _Recorded(self.stream)

    def finish(self) -> None:
        """See SideStream."""
        torch.cuda.synchronize()


class _Recorded:
    def __init__(self, stream: Any) -> None:
        make_event: Any = torch.cuda.Event
        self._event = make_event()
        self._event.record(stream)

    def hold_kernels(self) -> None:
        torch.cuda.current_stream().wait_event(self._event)

    def hold_host(self) -> None:
        self._event.synchronize()

    def hold_copies(self, stream: Any) -> None:
        stream.wait_event(self._event)


def side_stream(device: torch.device | str) -> SideStream:
    """A new one."""
    return CudaStream() if torch.device(device).type == "cuda" else DeferredStream()
