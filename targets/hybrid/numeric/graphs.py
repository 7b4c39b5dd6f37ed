"""Launches of one engine: eager, or by replaying a captured graph over persistent buffers.

A replay reads whatever the buffers hold, so every array of the step goes into the buffers first. One graph
serves all steps of equal shape. Without a GPU the same buffers are read by an eager launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .arrays import Shape
from .backend import Device
from .forward import Network, Results

Host = Mapping[str, NDArray[np.int32]]


class Buffers:
    """One int32 buffer on the device, its pinned twin on the host, and a view of it for each array."""

    def __init__(self, arrays: Host, device: Device) -> None:
        self.sizes = [(name, len(array)) for name, array in arrays.items()]
        total = sum(size for _, size in self.sizes)
        self.host = torch.empty(total, dtype=torch.int32, pin_memory=device.is_cuda)
        self.there = torch.empty(total, dtype=torch.int32, device=device.torch)
        self.views: dict[str, Tensor] = {}
        start = 0
        for name, size in self.sizes:
            self.views[name] = self.there[start : start + size]
            start += size

    def upload(self, arrays: Host) -> None:
        """New content for every view. The host waits for results before it uploads again, so no event is needed."""
        np.concatenate([arrays[name] for name, _ in self.sizes], out=self.host.numpy())
        self.there.copy_(self.host, non_blocking=True)


class Captured:
    """A graph and what it reads and writes."""

    def __init__(self, buffers: Buffers) -> None:
        self.buffers = buffers
        self.graph: Any = None
        self.results: Results | None = None


class Launcher:
    """Runs the network of one engine."""

    def __init__(self, network: Network, device: Device) -> None:
        self.network = network
        self.device = device
        self.captured: dict[tuple[Shape, tuple[tuple[str, int], ...]], Captured] = {}

    def run(self, arrays: Host, shape: Shape, graph: bool) -> Results:
        """One forward."""
        if not graph:
            buffers = Buffers(arrays, self.device)
            buffers.upload(arrays)
            return self.network.run(buffers.views, shape)
        key = shape, tuple((name, len(array)) for name, array in arrays.items())
        captured = self.captured.get(key)
        if captured is None:
            captured = self.captured[key] = Captured(Buffers(arrays, self.device))
        captured.buffers.upload(arrays)
        if not self.device.is_cuda:
            return self.network.run(captured.buffers.views, shape)
        return self._replay(captured, shape)

    def _replay(self, captured: Captured, shape: Shape) -> Results:
        raise NotImplementedError
