"""Small things that the host sends to the device and gets back: through pinned memory, on side streams.

An upload goes through a slot: a pinned buffer and one on the device. A slot is used again only when its last copy has
run (else that copy would send the new numbers) and behind the kernels that read it (else they would see them).
Uploads for a later step may so be on their way while an earlier one computes. Design: ids of blocks to zero in vLLM
PR #35219.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .streams import Fence, SideStream, side_stream


class Slot:
    """One upload at a time, of any size; `Staging` hands it out."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._copied: Fence | None = None
        self._read: Fence | None = None
        """Behind the kernels that read the last content."""
        self._host = torch.empty(0, dtype=torch.uint8)
        self._there = torch.empty(0, dtype=torch.uint8)
        self._content = self._there

    def fill(self, values: NDArray[Any]) -> None:
        """Begin to send `values`."""
        held = torch.from_numpy(np.ascontiguousarray(values).reshape(-1))
        size = held.numel() * held.element_size()
        self._prepare(size)
        self._host[:size].copy_(held.view(torch.uint8))
        self.send(self._host[:size], held.dtype)

    def fill_from(self, page: Tensor, written: Fence | None) -> None:
        """Begin to send a contiguous page of bytes on the host, which does not change once it was written."""
        self._prepare(page.numel())
        self.send(page.view(-1), torch.uint8, written)

    def send(self, source: Tensor, dtype: torch.dtype, written: Fence | None = None) -> None:
        """Ask for the copy."""
        there = self._there[: len(source)]
        self._copied = self._staging.side.copy(lambda: there.copy_(source, non_blocking=True), self._read, written)
        self._content = there.view(dtype)

    def _prepare(self, size: int) -> None:
        if self._copied:
            self._copied.hold_host()
        if size > len(self._there):
            room, device = 2 * size, self._staging.device
            self._host = torch.empty(room, dtype=torch.uint8, pin_memory=device.type == "cuda")
            self._there = torch.empty(room, dtype=torch.uint8, device=device)
            self._read = self._staging.side.mark()

    def take(self) -> Tensor:
        """What was sent, flat, for kernels that are launched from now on, until `release`."""
        assert self._copied
        self._copied.hold_kernels()
        return self._content

    def release(self) -> None:
        """No kernel that is launched from now on reads it."""
        self._read = self._staging.side.mark()
        self._staging.free.append(self)


class Staging:
    """From the host to the device."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.side: SideStream = side_stream(device)
        self.free: deque[Slot] = deque(Slot(self) for _ in range(2))
        """Slots in the order of their release; more are made when all are in use."""

    def put(self, values: NDArray[Any]) -> Slot:
        """Begin to send `values`."""
        slot = self._next_slot()
        slot.fill(values)
        return slot

    def put_page(self, page: Tensor, written: Fence | None) -> Slot:
        """Begin to send a contiguous page of bytes, which is on the host (pinned) and does not change once written."""
        slot = self._next_slot()
        slot.fill_from(page, written)
        return slot

    def _next_slot(self) -> Slot:
        return self.free.popleft() if self.free else Slot(self)


class PendingDownload:
    """Values that are on their way to the host."""

    def __init__(self, downloads: Downloads, tensors: Sequence[Tensor]) -> None:
        self._mail = downloads
        self._shapes = [(str(one.dtype).removeprefix("torch."), tuple(one.shape)) for one in tensors]
        self._flat = torch.cat([one.reshape(-1).view(torch.uint8) for one in tensors])
        """A copy, made in the order of kernels: what they overwrite next is out of danger."""
        self._host = downloads.buffer(len(self._flat))
        host, flat = self._host[: len(self._flat)], self._flat
        self._copied = downloads.side.copy(lambda: host.copy_(flat, non_blocking=True), downloads.side.mark())

    def open(self) -> list[NDArray[Any]]:
        """Wait for the values, once."""
        self._copied.hold_host()
        everything, values, start = self._host[: len(self._flat)].numpy().copy(), [], 0
        self._mail.free.append(self._host)
        for kind, shape in self._shapes:
            end = start + int(np.prod(shape)) * np.dtype(kind).itemsize
            values.append(everything[start:end].view(kind).reshape(shape))
            start = end
        return values


class Downloads:
    """From the device to the host, in one transfer for many tensors."""

    def __init__(self, device: torch.device | str) -> None:
        self.side: SideStream = side_stream(device)
        self.pinned = torch.device(device).type == "cuda"
        self.free: deque[Tensor] = deque()
        """Buffers on the host whose content was taken out."""

    def buffer(self, size: int) -> Tensor:
        """At least `size` bytes that nobody else uses."""
        held = self.free.popleft() if self.free else torch.empty(0, dtype=torch.uint8)
        return held if len(held) >= size else torch.empty(2 * size, dtype=torch.uint8, pin_memory=self.pinned)

    def send(self, tensors: Sequence[Tensor]) -> PendingDownload:
        """Begin to fetch values; at least one tensor."""
        return PendingDownload(self, tensors)


class Lanes:
    """All ways between one host and one device.

    early    what is sent for planned steps
    staging  what is sent for the step that runs
    mail     what comes back
    capture  a GPU's stream for nothing but captures
    """

    def __init__(self, device: torch.device | str) -> None:
        self.early, self.staging, self.downloads = Staging(device), Staging(device), Downloads(device)
        make_stream: Any = torch.cuda.Stream
        self.capture: Any = make_stream() if self.downloads.pinned else None

    def finish(self) -> None:
        """Wait for everything that is on its way."""
        for side in (self.early.side, self.staging.side, self.downloads.side):
            side.finish()


@cache
def _lanes_of_the_gpu() -> Lanes:
    return Lanes("cuda")


def lanes(device: torch.device | str) -> Lanes:
    """New ones on a CPU; one set for all engines of a process on a GPU.

    torch has 32 streams and deals them out in turn. A later one is soon somebody's capture stream, and pinned memory
    that was copied on a stream that captures now cannot be used again: its event belongs to the graph.
    """
    return _lanes_of_the_gpu() if torch.device(device).type == "cuda" else Lanes(device)
