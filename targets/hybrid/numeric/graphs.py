"""Launches of one engine: eager, or as replay of a captured graph over persistent buffers.

Arrays are uploaded through staging while kernels of earlier steps run. An eager launch reads them in place. A replay
reads its persistent buffers, so every array of the step is first copied into them, in stream order. One graph serves
all steps of equal shape. Without a GPU an eager launch reads the same buffers.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .arrays import Shape, null_arrays
from .backend import Device
from .forward import Network, Results
from .kernels.staging import Lanes, Staging

Host = Mapping[str, NDArray[np.int32]]


class Packing:
    """Positions of arrays in one flat int32 buffer."""

    def __init__(self, arrays: Host) -> None:
        self.places: dict[str, slice] = {}
        self.size = 0
        for name, array in arrays.items():
            self.places[name] = slice(self.size, self.size + len(array))
            # Arrays start at multiples of 16 bytes: Triton compiles another kernel for unaligned ones.
            self.size += -(-len(array) // 4) * 4

    def pack(self, arrays: Host) -> NDArray[np.int32]:
        """Return all arrays in one buffer."""
        flat = np.zeros(self.size, np.int32)
        for name, place in self.places.items():
            flat[place] = arrays[name]
        return flat

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return views of the arrays in a packed buffer."""
        return {name: flat[place] for name, place in self.places.items()}


@contextmanager
def uploaded(arrays: Host, staging: Staging) -> Iterator[dict[str, Tensor]]:
    """Yield the arrays on the device, for kernels that are launched inside the context."""
    packing = Packing(arrays)
    slot = staging.put(packing.pack(arrays))
    yield packing.views(slot.take())
    slot.release()


class Captured:
    """A captured graph with its input buffer and results."""

    def __init__(self, arrays: Host, device: Device) -> None:
        self.packing = Packing(arrays)
        self.buffer = torch.zeros(self.packing.size, dtype=torch.int32, device=device.torch)
        self.views = self.packing.views(self.buffer)
        self.graph: Any = None
        self.results: Results | None = None

    def upload(self, arrays: Host, staging: Staging) -> None:
        """Replace the content of every view."""
        slot = staging.put(self.packing.pack(arrays))
        self.buffer.copy_(slot.take())
        slot.release()


class Launcher:
    """Runs the network of one engine."""

    def __init__(self, network: Network, device: Device, lanes: Lanes) -> None:
        self.network = network
        self.device = device
        self.lanes = lanes
        self.captured: dict[Shape, Captured] = {}

    def run(self, arrays: Host, shape: Shape, graph: bool) -> Results:
        """Run one forward."""
        if not graph:
            with uploaded(arrays, self.lanes.staging) as views:
                return self.network.run(views, shape)
        captured = self.captured.get(shape)
        if captured is None:
            captured = self.captured[shape] = self._capture(arrays, shape)
        captured.upload(arrays, self.lanes.staging)
        if captured.results is None:
            return self.network.run(captured.views, shape)
        captured.graph.replay()
        return captured.results

    def _capture(self, arrays: Host, shape: Shape) -> Captured:
        """Run once so that kernels are compiled, then capture; both with arrays that name no block."""
        captured = Captured(arrays, self.device)
        if not self.device.is_cuda:
            return captured
        captured.upload(null_arrays(arrays), self.lanes.staging)
        stream = self.lanes.capture
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.network.run(captured.views, shape)
        torch.cuda.current_stream().wait_stream(stream)
        captured.graph = torch.cuda.CUDAGraph()
        with no_collection(), torch.cuda.graph(captured.graph, stream=stream):
            captured.results = self.network.run(captured.views, shape)
        return captured


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable garbage collection: a capture would record the release of old engines' memory, or fail."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
