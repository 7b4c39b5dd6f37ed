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

from .arrays import Shape, that_touch_nothing
from .backend import Device
from .forward import Network, Results

Host = Mapping[str, NDArray[np.int32]]


class Buffers:
    """One int32 buffer on the device, its pinned twin on the host, and a view of it for each array."""

    def __init__(self, arrays: Host, device: Device) -> None:
        self.sizes = [(name, len(array)) for name, array in arrays.items()]
        total = sum(self._room(size) for _, size in self.sizes)
        self.host = torch.empty(total, dtype=torch.int32, pin_memory=device.is_cuda)
        self.there = torch.empty(total, dtype=torch.int32, device=device.torch)
        self.views: dict[str, Tensor] = {}
        start = 0
        for name, size in self.sizes:
            self.views[name] = self.there[start : start + size]
            start += self._room(size)

    @staticmethod
    def _room(size: int) -> int:
        """Every array begins at a multiple of 16 bytes: Triton compiles another kernel for one that does not."""
        return -(-size // 4) * 4

    def upload(self, arrays: Host) -> None:
        """New content for every view. The host waits for results before it uploads again, so no event is needed."""
        host, start = self.host.numpy(), 0
        for name, size in self.sizes:
            host[start : start + size] = arrays[name]
            start += self._room(size)
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
        self.captured: dict[Shape, Captured] = {}

    def run(self, arrays: Host, shape: Shape, graph: bool) -> Results:
        """One forward."""
        if not graph:
            buffers = Buffers(arrays, self.device)
            buffers.upload(arrays)
            return self.network.run(buffers.views, shape)
        captured = self.captured.get(shape)
        if captured is None:
            captured = self.captured[shape] = self._capture(arrays, shape)
        captured.buffers.upload(arrays)
        if captured.results is None:
            return self.network.run(captured.buffers.views, shape)
        captured.graph.replay()
        return captured.results

    def _capture(self, arrays: Host, shape: Shape) -> Captured:
        """Run once for the compiler, then record; both with arrays that touch nothing."""
        captured = Captured(Buffers(arrays, self.device))
        if not self.device.is_cuda:
            return captured
        captured.buffers.upload(that_touch_nothing(arrays))
        make_stream: Any = torch.cuda.Stream
        stream = make_stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.network.run(captured.buffers.views, shape)
        torch.cuda.current_stream().wait_stream(stream)
        captured.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured.graph):
            captured.results = self.network.run(captured.buffers.views, shape)
        return captured
