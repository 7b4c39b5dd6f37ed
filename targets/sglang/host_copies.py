"""Copies between HiCache's host and the device, in place of SGLang's streams and kernels.

An operation runs layer by layer, either as soon as it may ("early"), or as late as SGLang allows ("late"): when a
forward waits for its layer, when the scheduler waits for its end, or a turn later ("slow": four turns). One that waits
for the forward stream waits for what was launched before it.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from .compat import scheduler_api


class Event:
    """An event of a stream: over once its operation has copied `layers` layers, and if it has no operation."""

    def __init__(self, operation: Operation | None = None, layers: int = 0, **options: Any) -> None:
        self.operation, self.layers = operation, layers

    def record(self, stream: Any = None) -> None:
        """Do nothing: events of operations are set when they are submitted."""

    def query(self) -> bool:
        """Return True if the event is over."""
        return self.operation is None or self.operation.done >= self.layers

    def synchronize(self) -> None:
        """Wait."""
        if self.operation is not None:
            self.operation.advance(self.layers)


class Stream:
    """A stream of copies. `fenced`: the next operation waits for the forward stream."""

    def __init__(self) -> None:
        self.fenced = False
        self.operations: list[Operation] = []

    def wait_stream(self, other: Any) -> None:
        """Let the next operation wait for the forwards that were launched so far."""
        self.fenced = True


class Operation:
    """Copies between device and host, `layers` times one layer; `after` is the launch that it waits for."""

    def __init__(self, stream: Stream, layers: int, copy: Callable[[int], None], after: Any) -> None:
        self.stream, self.layers, self.copy, self.after = stream, layers, copy, after
        self.done = self.age = 0
        stream.operations.append(self)

    def advance(self, layers: int) -> None:
        """Run the first `layers` layers, and before them what was submitted to the same stream earlier."""
        while self.stream.operations and self.stream.operations[0] is not self and self.done < self.layers:
            first = self.stream.operations[0]
            first.advance(first.layers)
        if self.done < layers and self.after is not None:
            self.after.synchronize()
        while self.done < layers:
            self.copy(self.done)
            self.done += 1
        if self.done == self.layers and self in self.stream.operations:
            self.stream.operations.remove(self)


class Transfers:
    """In place of `L2TransferEngine`: copies between SGLang's device tensors and memory of its own."""

    def __init__(self, io_backend: str) -> None:
        self.device_to_host_stream, self.host_to_device_stream = Stream(), Stream()
        self.tier: Any = None
        """The `HostTier`."""

    def submit_device_to_host(self, transfers: list[Any]) -> Any:
        """Submit a backup of all layers at once."""

        placed = [(transfer, places_of(transfer)) for transfer in transfers]

        def copy(_: int) -> None:
            for transfer, places in placed:
                for layer in range(self.tier.layers(transfer)):
                    self.tier.store(transfer, places, layer)

        return self._completion(self._operation(self.device_to_host_stream, 1, copy))

    def submit_host_to_device(
        self, transfers: list[Any], *, transfer_layer_id_max: int, start_event: Any = None, on_layer_done: Any = None
    ) -> Any:
        """Submit a load. Layer by layer: a forward waits for each layer where it needs it."""
        step, placed = self.tier.device.step, [(transfer, places_of(transfer)) for transfer in transfers]

        def copy(layer: int) -> None:
            for transfer, places in placed:
                local = transfer.layer_mapper(layer)
                if local is not None:
                    self.tier.load(transfer, places, local, step)

        stream = self.host_to_device_stream
        operation = self._operation(stream, transfer_layer_id_max, copy)
        for layer, event in enumerate(on_layer_done.__self__.load_events if on_layer_done else ()):
            event.operation, event.layers = operation, layer + 1
        return self._completion(operation)

    def _operation(self, stream: Stream, layers: int, copy: Callable[[int], None]) -> Operation:
        pending = self.tier.device.pending
        after = pending[-1] if stream.fenced and pending else None
        stream.fenced = False
        return Operation(stream, layers, copy, after)

    def _completion(self, operation: Operation) -> Any:
        self.tier.settle()
        end = Event(operation, operation.layers)
        return SimpleNamespace(start_event=Event(), finish_event=end, timing_enabled=False)


def places_of(transfer: Any) -> list[int]:
    """Return where the device's contents of a transfer are, when it is submitted (`_resolve_device_indices`)."""
    translate = getattr(transfer.device_pool, "host_transfer_translate", None)
    places: list[int] = (translate(transfer.device_indices) if translate else transfer.device_indices).tolist()
    return places


def attach(cache: Any, parameters: Any, arguments: Any, storage: Any) -> None:
    """Attach the host tier to a tree; `storage` is the `FileStorage` behind it, None for none."""
    from sglang.srt.managers import cache_controller
    from sglang.srt.mem_cache.pool_host import base, common

    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0  # scaled: a server reserves 10 GiB; these pools are kilobytes
    common.ALLOC_MEMORY_FUNCS["cpu"] = _plain
    cache_controller.L2TransferEngine = Transfers
    current = SimpleNamespace(wait_event=lambda event: event.synchronize())
    cache_controller.device_module = SimpleNamespace(Event=Event, Stream=Stream, current_stream=lambda: current)
    if storage is not None:
        storage.prepare(cache_controller)
    with scheduler_api.only_rank():
        cache.init_hicache(arguments, parameters)
    # On a GPU, backups to page_first use a kernel that takes the indices as they are. SGLang turns it off on a CPU.
    for entry in cache.host_pool_group.entries:
        entry.host_pool.can_use_write_back_jit |= _has_kernel(entry.host_pool)
    cache.host_pool_group._refresh_transfer_capabilities()
    # The server's only tree lives as long as the process; ours would never be freed.
    atexit.unregister(cache.shutdown)
    cache.load_back_threshold = 1  # scaled: 10 tokens
    if getattr(cache, "buffer_pipeline", None) is not None:
        cache.buffer_pipeline.max_staged_admission_defers = 3  # scaled: 32 turns


def _has_kernel(pool: Any) -> bool:
    """Return True if a GPU copies a pool of keys and values to the host by a kernel that stages pages."""
    return pool.layout == "page_first" and getattr(pool, "device_rows_packed", False)


def _plain(dims: Any, *, dtype: Any, device: str, **options: Any) -> Any:
    import torch

    return torch.empty(dims, dtype=dtype, device=device)
