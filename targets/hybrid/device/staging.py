"""Host integers on their way to the device, without waiting for it.

Ids travel through pinned memory with a copy that does not block (vLLM PR #35219). The pinned buffer must not be
rewritten before that copy has run, so there are several, each guarded by an event.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Staging:
    """A ring of `depth` buffers for up to `capacity` int64 values each.

    What `upload` returns is overwritten by the `depth`-th upload after it, in stream order: use it on the stream that
    is current at the upload. On a CPU there is nothing to wait for.
    """

    def __init__(self, capacity: int, device: torch.device | str, depth: int = 2) -> None:
        self._device = torch.device(device)
        cuda = self._device.type == "cuda"
        self._host = [torch.empty(capacity, dtype=torch.int64, pin_memory=cuda) for _ in range(depth)]
        self._there = [torch.empty(capacity, dtype=torch.int64, device=self._device) for _ in range(depth)]
        event: Any = torch.cuda.Event
        self._copied = [event() if cuda else None for _ in range(depth)]
        self._next = 0

    def upload(self, values: Sequence[int]) -> Tensor:
        """The values on the device, int64 [len(values)]; raises ValueError if they do not fit."""
        host, there, copied = self._host[self._next], self._there[self._next], self._copied[self._next]
        if len(values) > host.shape[0]:
            raise ValueError(f"{len(values)} values do not fit a staging buffer of {host.shape[0]}")
        self._next = (self._next + 1) % len(self._host)
        if copied is not None:
            copied.synchronize()
        host[: len(values)] = torch.tensor(values, dtype=torch.int64)
        there[: len(values)].copy_(host[: len(values)], non_blocking=True)
        if copied is not None:
            copied.record()
        return there[: len(values)]
