"""HiCache: SGLang's host tier. Pools, controller, locks, backups, demotion and load-back are SGLang's; streams, events
and the memory of the host are ours (host_copies.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from ..base.observe import Loaded
from ..base.protocol import EngineStalled
from .compat import parts
from .compat.engine import ATTENTION, STATES, WINDOW, SglangEngine
from .host_copies import Event, Operation, Transfers, attach

TURNS = {"early": 0, "late": 1, "slow": 4}
"""Turns until a copy runs that nothing waits for. On a server one locked its states for 57 s (#40128)."""
MOST_ROUNDS = 1000
"""Of copies and operations, each of which may be followed by another one."""
NOTHING = -1
"""In places of the host to which nothing was copied."""


class Places:
    """The tensors of one of SGLang's pools of the host as arrays over the same memory, by layer and place.

    page   tokens of a page if places have two dimensions, page and token, 0 if they have one
    parts  of states the recurrent state and the window of the convolution, otherwise keys and values
    """

    def __init__(self, pool: Any, group: int) -> None:
        self.page = pool.page_size if pool.layout == "page_first_direct" and group != STATES else 0
        if group == STATES:  # [place, layer, 1, ...]
            temporal, window = pool.temporal_buffer.numpy(), pool.conv_buffer[0].numpy()
            self.parts = [temporal.reshape(temporal.shape[:2]).T, window[:, :, 0, 0].swapaxes(0, 1)]
        else:  # [key or value, page or place, layer, ..., 1, 1]
            self.parts = [part[..., 0, 0].swapaxes(0, 1) for part in pool.kv_buffer.numpy()]
        self.layers = len(self.parts[0])
        for part in self.parts:
            part[...] = NOTHING

    def index(self, layer: int, places: Any) -> tuple[Any, ...]:
        """Return the index of places of a layer in each part."""
        return (layer, places // self.page, places % self.page) if self.page else (layer, places)

    def read(self, part: int, layer: int, places: Any) -> Any:
        """Return what places of a layer hold."""
        return self.parts[part][self.index(layer, places.numpy())].tolist()


def device_parts(states: Any, group: int) -> tuple[Any, Any]:
    """Return the arrays of the device that the parts of a pool of the host are copied from."""
    if group == WINDOW:
        return states.window_keys, states.window_values
    return (states.temporal, states.window) if group == STATES else (states.keys, states.values)


class HostTier:
    """The host tier of one engine."""

    def __init__(self, engine: SglangEngine, device: Any, storage: Any = None) -> None:
        """`storage` is the class of what is behind the host, None for nothing."""
        self.engine, self.device = engine, device
        self.states = engine.states
        self.cache = engine.cache
        parameters = parts.tree_parameters(engine.sizes, engine.rows, engine.allocator)
        parameters.tree_components = engine.cache.tree_components
        self.storage = storage and storage(engine.sizes)
        attach(engine.cache, parameters, engine.arguments, self.storage)
        self.controller = engine.cache.cache_controller
        if self.storage is not None:
            self.storage.attach(self.controller)
        self.transfers: Transfers = self.controller.l2_transfer_engine
        self.transfers.tier = self
        self.patience = TURNS[engine.sizes.copies]
        forward = object() if engine.sizes.overlap else None
        self.controller.load_fence_stream = self.controller.write_fence_stream = forward
        engine.memory.pin_during_copies(self.controller)
        self.pools = host_pools(self.cache)
        self.places = {group: Places(pool, group) for group, pool in self.pools.items()}
        self._waits: list[Event] = []
        """Of the loads that the forward that runs waits for, by layer."""
        self._loaded: list[tuple[int, Loaded]] = []
        """Records of loads, each with its step."""

    def group_of(self, name: Any) -> int:
        """Return the group whose pool of the host has a name."""
        return self._group(self.cache.host_pool_group.get_pool(name))

    def _group(self, pool: Any) -> int:
        return next(group for group, one in self.pools.items() if one is pool)

    def layers(self, transfer: Any) -> int:
        """Return the number of layers of a transfer's pool."""
        return self.places[self._group(transfer.host_pool)].layers

    def store(self, transfer: Any, device: list[int], layer: int) -> None:
        """Copy a layer from places of the device to the host."""
        group = self._group(transfer.host_pool)
        places = self.places[group]
        for host, cells in zip(places.parts, device_parts(self.states, group), strict=True):
            host[places.index(layer, transfer.host_indices.numpy())] = cells[layer][device]

    def load(self, transfer: Any, device: list[int], layer: int, step: int) -> None:
        """Copy a layer from the host to places of the device, and record it."""
        group, ids = self._group(transfer.host_pool), transfer.device_indices.tolist()
        places, sizes = self.places[group], self.engine.sizes
        for host, cells in zip(places.parts, device_parts(self.states, group), strict=True):
            cells[layer][device] = host[places.index(layer, transfer.host_indices.numpy())]
        for location in ids if group == STATES else ids[:: sizes.page]:
            if group == STATES:
                loaded = Loaded(step, "", STATES, layer, -1, location, temporal=True, conv=True)
            else:
                loaded = Loaded(step, "", group, layer, -1, self._page(group, location), slots=sizes.page)
            self._loaded.append((step, loaded))

    def _page(self, group: int, location: int) -> int:
        """Return the number of a page by the location of a token as a load names it: in a unified memory an id of keys
        and values, and a place of windows, whose pages are bound to their ids before they are loaded."""
        sizes = self.engine.sizes
        if group == WINDOW:
            return sizes.first_window_page + self.engine.memory.window_page_at(location)
        return sizes.first_page + location // sizes.page

    def _operations(self) -> list[Operation]:
        streams = self.transfers.device_to_host_stream, self.transfers.host_to_device_stream
        return [operation for stream in streams for operation in stream.operations]

    def settle(self) -> None:
        """Run what may run, if copies run early: its launch has been executed."""
        for operation in [] if self.patience else self._operations():
            if operation.after not in self.device.pending:
                operation.advance(operation.layers)

    def tick(self, idle: bool) -> None:
        """End a turn, without a batch if it was `idle`: copies that are not early run turns after their submission."""
        if self.storage is not None:
            self.storage.tick(idle)
        for operation in self._operations():
            operation.age += 1
            if operation.age > self.patience:
                operation.advance(operation.layers)
        self.settle()

    def finish(self, waiting: Collection[Any] = ()) -> None:
        """Run all copies and all operations of the storage, with what the tree does about them. What is fetched for
        requests that wait ends when they are looked at; until then its memory on the host is taken, and writes may
        wait for it. Raises EngineStalled if the others do not end."""
        for _ in range(MOST_ROUNDS):
            for operation in self._operations():
                operation.advance(operation.layers)
            if self.storage is not None:
                self.storage.finish()
            self.cache.check_hicache_events()
            if self.is_done(waiting):
                return
        if self.is_done(waiting, but_writes=True) and not self.is_done((), but_writes=True):
            return
        raise EngineStalled(f"the host tier is not done after {MOST_ROUNDS} rounds of copies and operations")

    def is_done(self, waiting: Collection[Any] = (), *, but_writes: bool = False) -> bool:
        """Return True if no copy and no operation of the storage is under way, except for requests in `waiting`, and,
        with `but_writes`, except writes that are still queued."""
        cache, pipeline = self.cache, self.cache.buffer_pipeline
        moves = [cache.ongoing_write_through, cache.ongoing_load_back]
        handles = set()
        if self.storage is not None:
            handles = {request.cache_request_handle for request in waiting}
            moves += [cache.ongoing_backup, set(cache.ongoing_prefetch) - handles]
        if pipeline is not None and not pipeline.is_idle():
            if not handles and not but_writes:
                return False
            moves += [pipeline.ongoing_write_through, pipeline.ongoing_buffer_load_back, pipeline.ongoing_backup]
            moves += [set(pipeline.staged_prefetches) - handles, [] if but_writes else pipeline.pending_write_queue]
        return not any(moves)

    def prefetched(self) -> int:
        """Return how many tokens count against the limit of those that prefetches may occupy on the host."""
        return int(self.controller.prefetch_tokens_occupied) if self.storage is not None else 0

    def miscounted(self) -> int:
        """Return by how many bytes a storage is wrong about the room that its files take."""
        return self.storage.miscounted() if self.storage is not None else 0

    def waited_for(self, consumer: int) -> tuple[int, list[Event]]:
        """Return what a forward waits for if its batch names a load, -1 for none: its number, and its events so far.

        A batch that decodes keeps the number of its prompts' load. By the time that it runs, a later load may have that
        number.
        """
        events = self.controller.layer_done_counter.events
        return consumer, [] if consumer < 0 else [
            Event(one.operation, one.layers) for one in events[consumer].load_events
        ]

    def begin(self, loads: tuple[int, list[Event]]) -> None:
        """Begin a forward, which waits for loads as they were when it was launched."""
        self.controller.layer_done_counter.set_consumer(loads[0])
        self._waits = loads[1]

    def _wait(self, wait: Callable[[], object]) -> None:
        """Let SGLang's code wait, for the loads of the forward that runs."""
        counter = self.controller.layer_done_counter
        if not self._waits:
            wait()
            return
        number = counter.events[counter.consumer_index]
        current, number.load_events = number.load_events, self._waits
        try:
            wait()
        finally:
            number.load_events = current

    def loaded(self, step: int) -> Iterator[Loaded]:
        """Yield, once, what was loaded for steps up to this one."""
        yield from (record for of, record in self._loaded if of <= step)
        self._loaded = [(of, record) for of, record in self._loaded if of > step]

    def wait_for(self, layer: int, group: int) -> None:
        """Wait as SGLang's layer with this id, of this group, does before it reads."""
        rows, keys = self.engine.rows, self.engine.kv
        self._wait(lambda: rows.mamba2_layer_cache(layer) if group == STATES else keys.get_key_buffer(layer))


def host_pools(cache: Any) -> dict[int, Any]:
    """Return the host's pools of states, and of keys and values."""
    from sglang.srt.mem_cache.hicache_storage import PoolName

    names = {STATES: PoolName.MAMBA, ATTENTION: PoolName.KV, WINDOW: PoolName.SWA}
    group = cache.host_pool_group
    return {number: group.get_pool(name) for number, name in names.items() if name in group.entry_map}
