"""HiCache: SGLang's host tier. Pools, controller, locks, backups, demotion and load-back are SGLang's; streams, events
and the memory of the host are ours (host_copies.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..base.observe import Loaded
from .compat import parts
from .compat.engine import ATTENTION, STATES, SglangEngine
from .host_copies import Operation, Transfers, attach

NOTHING = -1
"""In places of the host to which nothing was copied."""


class HostTier:
    """The host tier of one engine."""

    def __init__(self, engine: SglangEngine, device: Any) -> None:
        self.engine, self.device = engine, device
        self.states = engine.states
        self.cache = engine.cache
        parameters = parts.tree_parameters(engine.sizes, engine.rows, engine.allocator)
        parameters.tree_components = engine.cache.tree_components
        attach(engine.cache, parameters, engine.arguments)
        self.controller = engine.cache.cache_controller
        self.transfers: Transfers = self.controller.l2_transfer_engine
        self.transfers.tier = self
        self.late = engine.sizes.late_copies
        forward = object() if engine.sizes.overlap else None
        self.controller.load_fence_stream = self.controller.write_fence_stream = forward
        self.pools = host_pools(self.cache)
        layers, slots = engine.sizes.state_layers, self.pools[STATES].size
        self.temporal = np.full((layers, slots), NOTHING)
        self.window = np.full((layers, slots, engine.sizes.window), NOTHING)
        tokens = engine.sizes.attention_layers, self.pools[ATTENTION].size
        self.keys, self.values = np.full(tokens, NOTHING), np.full(tokens, NOTHING)
        self._loaded: list[tuple[int, Loaded]] = []
        """Records of loads, each with its step."""

    def _group(self, transfer: Any) -> int:
        return STATES if transfer.host_pool is self.pools[STATES] else ATTENTION

    def layers(self, transfer: Any) -> int:
        """Return the number of layers of a transfer's pool."""
        sizes = self.engine.sizes
        return sizes.state_layers if self._group(transfer) == STATES else sizes.attention_layers

    def store(self, transfer: Any, layer: int) -> None:
        """Copy a layer from the device to the host."""
        host, device, states = transfer.host_indices.tolist(), transfer.device_indices.tolist(), self.states
        if self._group(transfer) == STATES:
            self.temporal[layer, host] = states.temporal[layer, device]
            self.window[layer, host] = states.window[layer, device]
        else:
            self.keys[layer, host] = states.keys[layer][device]
            self.values[layer, host] = states.values[layer][device]

    def load(self, transfer: Any, layer: int, step: int) -> None:
        """Copy a layer from the host to the device, and record it."""
        host, device, states = transfer.host_indices.tolist(), transfer.device_indices.tolist(), self.states
        if self._group(transfer) == STATES:
            states.temporal[layer, device] = self.temporal[layer, host]
            states.window[layer, device] = self.window[layer, host]
            for slot in device:
                loaded = Loaded(step, "", STATES, layer, -1, slot, temporal=True, conv=True)
                self._loaded.append((step, loaded))
        else:
            states.keys[layer][device] = self.keys[layer, host]
            states.values[layer][device] = self.values[layer, host]
            page, first = self.engine.sizes.page, self.engine.sizes.first_page
            for location in device[::page]:
                loaded = Loaded(step, "", ATTENTION, layer, -1, first + location // page, slots=page)
                self._loaded.append((step, loaded))

    def _operations(self) -> list[Operation]:
        streams = self.transfers.device_to_host_stream, self.transfers.host_to_device_stream
        return [operation for stream in streams for operation in stream.operations]

    def settle(self) -> None:
        """Run what may run, if copies run early: its launch has been executed."""
        for operation in [] if self.late else self._operations():
            if operation.after not in self.device.pending:
                operation.advance(operation.layers)

    def tick(self) -> None:
        """End a turn: late copies run a turn after that of their submission."""
        for operation in self._operations():
            operation.age += 1
            if operation.age > 1:
                operation.advance(operation.layers)
        self.settle()

    def finish(self) -> None:
        """Run all copies."""
        for operation in self._operations():
            operation.advance(operation.layers)

    def begin(self, consumer: int) -> None:
        """Begin a forward whose batch names the load that it waits for, -1 for none."""
        self.controller.layer_done_counter.set_consumer(consumer)

    def loaded(self, step: int) -> Iterator[Loaded]:
        """Yield, once, what was loaded for steps up to this one."""
        yield from (record for of, record in self._loaded if of <= step)
        self._loaded = [(of, record) for of, record in self._loaded if of > step]

    def wait_for_states(self, layer: int) -> None:
        """Wait as SGLang's state layers do before they read."""
        self.engine.rows.mamba2_layer_cache(layer)

    def wait_for_keys(self, layer: int) -> None:
        """Wait as SGLang's attention layers do before they read."""
        self.engine.kv.get_key_buffer(self.engine.sizes.state_layers + layer)


def host_pools(cache: Any) -> dict[int, Any]:
    """Return the host's pools of states and of keys and values."""
    from sglang.srt.mem_cache.hicache_storage import PoolName

    group = cache.host_pool_group
    return {STATES: group.get_pool(PoolName.MAMBA), ATTENTION: group.get_pool(PoolName.KV)}
