"""HiCache: SGLang's host tier. Pools, controller, locks, backups, demotion and load-back are SGLang's; streams, events
and the memory of the host are ours (host_copies.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...reference.prefix_cache import Key
from ..base.observe import Content, Loaded, SlotContent, StateContent
from .compat import parts, tree_api
from .compat.engine import ATTENTION, STATES, SglangEngine
from .host_copies import Operation, Transfers, attach
from .trees import nodes

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
        self._loaded: list[Loaded] = []

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
                self._loaded.append(Loaded(step, "", STATES, layer, -1, slot, temporal=True, conv=True))
        else:
            states.keys[layer][device] = self.keys[layer, host]
            states.values[layer][device] = self.values[layer, host]
            page, first = self.engine.sizes.page, self.engine.sizes.first_page
            for location in device[::page]:
                self._loaded.append(Loaded(step, "", ATTENTION, layer, -1, first + location // page, slots=page))

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
        yield from (record for record in self._loaded if record.step <= step)
        self._loaded = [record for record in self._loaded if record.step > step]

    def wait_for_states(self, layer: int) -> None:
        """Wait as SGLang's state layers do before they read."""
        self.engine.rows.mamba2_layer_cache(layer)

    def wait_for_keys(self, layer: int) -> None:
        """Wait as SGLang's attention layers do before they read."""
        self.engine.kv.get_key_buffer(self.engine.sizes.state_layers + layer)

    def stored(self) -> dict[Key, list[Content]]:
        """Return what nodes of the tree have on the host, except where the copy is under way."""
        found: dict[Key, list[Content]] = {}
        for node, depth, tags in nodes(self.cache):
            if node.write_through_pending_id is not None:
                continue
            kv, state = tree_api.host_values_of(node)
            page = self.engine.sizes.page
            for index in range(0, 0 if kv is None else len(kv), page):
                places, end = kv[index : index + page].tolist(), index + page
                key = Key(ATTENTION, depth + end, tags[end - 1])
                found[key] = [SlotContent(layer[places].tolist()) for layer in self.keys]
            if state is not None:
                (slot,) = state.tolist()
                found[Key(STATES, depth + len(tags), tags[-1])] = [
                    StateContent(int(temporal[slot]), tuple(window[slot].tolist()))
                    for temporal, window in zip(self.temporal, self.window, strict=True)
                ]
        return found

    def paths(self) -> Iterator[list[Any]]:
        """Yield the nodes that a copy under way has locked: keys and values of all, the state of the first."""
        for name, lock, *_ in (*self.cache.ongoing_write_through.values(), *self.cache.ongoing_load_back.values()):
            if lock is not None:
                yield tree_api.path_of(self.cache, name)

    def astray(self) -> dict[str, int]:
        """Return, for each pool of the host, how many places are neither free nor of exactly one node."""
        held = {STATES: Counter[int](), ATTENTION: Counter[int]()}
        for node, _, _ in nodes(self.cache):
            for group, places in zip((ATTENTION, STATES), tree_api.host_values_of(node), strict=True):
                held[group].update([] if places is None else places.tolist())
        return {
            f"host {name}": sum(held[group].values())
            - len(held[group])
            + abs(self.pools[group].size - self.pools[group].available_size() - len(held[group]))
            for group, name in ((STATES, "states"), (ATTENTION, "tokens"))
        }


def host_pools(cache: Any) -> dict[int, Any]:
    """Return the host's pools of states and of keys and values."""
    from sglang.srt.mem_cache.hicache_storage import PoolName

    group = cache.host_pool_group
    return {STATES: group.get_pool(PoolName.MAMBA), ATTENTION: group.get_pool(PoolName.KV)}
