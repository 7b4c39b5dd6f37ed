"""Side streams for copies between host and device, ordered with the kernels only by fences.

Kernels run on the current stream, the copies of one side stream one after another. A copy reads its source when it
runs, not when it is issued. If the host refills a buffer too early, the copy sends the new values; kernels that do not
wait for a copy read the old ones.

On a CPU the same rules hold in the worst case: a copy runs only when it, or a later one, is waited for, and a random
choice decides whether the copies after it run as well. So a missing fence is visible there, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

import torch


class Fence(Protocol):
    """A point on a stream, after a copy or after kernels."""

    def hold_kernels(self) -> None:
        """Make kernels that are launched from now on run after it."""
        ...

    def hold_host(self) -> None:
        """Wait for it on the host."""
        ...

    def hold_copies(self, stream: Any) -> None:
        """Make work that is put on a GPU's stream from now on run after it."""
        ...


class SideStream(Protocol):
    """A stream on which copies run."""

    def mark(self) -> Fence:
        """Return a point after all kernels launched so far."""
        ...

    def copy(self, work: Callable[[], object], *after: Fence | None) -> Fence:
        """Run `work` (a non-blocking copy) after the earlier copies of this stream and after the fences."""
        ...

    def finish(self) -> None:
        """Wait until every copy has run, and every kernel."""
        ...


class DeferredStream:
    """Side stream on a CPU, where kernels run as they are launched: copies run when they are waited for."""

    def __init__(self) -> None:
        self._queued: deque[Callable[[], object]] = deque()
        self._ran = 0
        self._random = Random(0)

    def mark(self) -> Fence:
        """Return a reached point: kernels have run already."""
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
        """Run the copies up to `number`, and at random all later ones."""
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
        raise AssertionError("a CPU has no GPU stream")


class CudaStream:
    """Side stream on a GPU."""

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
    """Return a new side stream of a device."""
    return CudaStream() if torch.device(device).type == "cuda" else DeferredStream()
