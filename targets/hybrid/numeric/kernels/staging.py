"""Uploads and downloads of small arrays through pinned memory, on side streams.

An upload goes through a slot: a pinned buffer and one on the device. A slot is reused only when its last copy has run
(else that copy would send the new values) and after the kernels that read it (else they would read the new values).
So uploads for a later step may run while an earlier one computes. Source of the design: the ids of blocks to zero in
vLLM PR #35219.
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
    """Buffers of one upload at a time, of any size; made by `Staging`."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._copied: Fence | None = None
        self._read: Fence | None = None
        """Fence after the kernels that read the last content."""
        self._host = torch.empty(0, dtype=torch.uint8)
        self._there = torch.empty(0, dtype=torch.uint8)
        self._content = self._there

    def fill(self, values: NDArray[Any]) -> None:
        """Start the upload of `values`."""
        held = torch.from_numpy(np.ascontiguousarray(values).reshape(-1))
        size = held.numel() * held.element_size()
        self._prepare(size)
        self._host[:size].copy_(held.view(torch.uint8))
        self.send(self._host[:size], held.dtype)

    def fill_from(self, page: Tensor, written: Fence | None) -> None:
        """Start the upload of a contiguous page of bytes on the host, which does not change once written."""
        self._prepare(page.numel())
        self.send(page.view(-1), torch.uint8, written)

    def send(self, source: Tensor, dtype: torch.dtype, written: Fence | None = None) -> None:
        """Issue the copy."""
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
        """Return the uploaded content, flat, for kernels launched from now on until `release`."""
        assert self._copied
        self._copied.hold_kernels()
        return self._content

    def release(self) -> None:
        """Free the slot: no kernel launched from now on reads it."""
        self._read = self._staging.side.mark()
        self._staging.free.append(self)


class Staging:
    """Uploads from the host to the device."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self.side: SideStream = side_stream(device)
        self.free: deque[Slot] = deque(Slot(self) for _ in range(2))
        """Slots in the order of their release; more are made when all are in use."""

    def put(self, values: NDArray[Any]) -> Slot:
        """Start the upload of `values`."""
        slot = self._next_slot()
        slot.fill(values)
        return slot

    def put_page(self, page: Tensor, written: Fence | None) -> Slot:
        """Start the upload of a contiguous page of bytes on the host (pinned), which does not change once written."""
        slot = self._next_slot()
        slot.fill_from(page, written)
        return slot

    def _next_slot(self) -> Slot:
        return self.free.popleft() if self.free else Slot(self)


class PendingDownload:
    """Values in transfer to the host."""

    def __init__(self, downloads: Downloads, tensors: Sequence[Tensor]) -> None:
        self._mail = downloads
        self._shapes = [(str(one.dtype).removeprefix("torch."), tuple(one.shape)) for one in tensors]
        self._flat = torch.cat([one.reshape(-1).view(torch.uint8) for one in tensors])
        """A copy, made in the order of kernels, which later kernels do not overwrite."""
        self._host = downloads.buffer(len(self._flat))
        host, flat = self._host[: len(self._flat)], self._flat
        self._copied = downloads.side.copy(lambda: host.copy_(flat, non_blocking=True), downloads.side.mark())

    def wait(self) -> list[NDArray[Any]]:
        """Wait for the values and return them; may be called once."""
        self._copied.hold_host()
        everything, values, start = self._host[: len(self._flat)].numpy().copy(), [], 0
        self._mail.free.append(self._host)
        for kind, shape in self._shapes:
            end = start + int(np.prod(shape)) * np.dtype(kind).itemsize
            values.append(everything[start:end].view(kind).reshape(shape))
            start = end
        return values


class Downloads:
    """Downloads from the device to the host, in one transfer for many tensors."""

    def __init__(self, device: torch.device | str) -> None:
        self.side: SideStream = side_stream(device)
        self.pinned = torch.device(device).type == "cuda"
        self.free: deque[Tensor] = deque()
        """Free buffers on the host."""

    def buffer(self, size: int) -> Tensor:
        """Return a free buffer of at least `size` bytes."""
        held = self.free.popleft() if self.free else torch.empty(0, dtype=torch.uint8)
        return held if len(held) >= size else torch.empty(2 * size, dtype=torch.uint8, pin_memory=self.pinned)

    def send(self, tensors: Sequence[Tensor]) -> PendingDownload:
        """Start the download of one or more tensors."""
        return PendingDownload(self, tensors)


class Lanes:
    """All transfers between the host and one device.

    early      uploads for planned steps
    staging    uploads for the running step
    downloads  results
    capture    stream of a GPU that is used only for captures
    """

    def __init__(self, device: torch.device | str) -> None:
        self.early, self.staging, self.downloads = Staging(device), Staging(device), Downloads(device)
        make_stream: Any = torch.cuda.Stream
        self.capture: Any = make_stream() if self.downloads.pinned else None

    def finish(self) -> None:
        """Wait for all transfers."""
        for side in (self.early.side, self.staging.side, self.downloads.side):
            side.finish()


@cache
def _lanes_of_the_gpu() -> Lanes:
    return Lanes("cuda")


def lanes(device: torch.device | str) -> Lanes:
    """Return new lanes on a CPU, and one set for all engines of a process on a GPU.

    torch has 32 streams and assigns them in turn, so a side stream of a later engine may be the capture stream of an
    earlier one. Pinned memory that was copied on a stream that now captures cannot be reused: its event belongs to the
    graph.
    """
    return _lanes_of_the_gpu() if torch.device(device).type == "cuda" else Lanes(device)
