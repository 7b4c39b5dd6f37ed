"""vLLM's own `SimpleCPUOffloadConnector`, eager or lazy, with its blocks in host memory or in a file, without a GPU.

Lookups, the pool of host blocks, transfers, events, the copy loops, the descriptors of every copy and each access to
the file are vLLM's. Ours are streams, events, the driver's function that copies (`SimpleDevice.copy`), and when vLLM's
threads get to run:

    planned   every second block of an even load, before the forwards in flight: nothing orders a load and a forward
    launched  the thread takes up an even transfer, with all that is queued; every second one taken up is half copied
    ended     `ExternalLoad.delay` + 1 steps later, or when vLLM waits for it: the thread takes up what is still
              queued, and the rest is copied

Transfers of one direction end in the order of their launch, as on vLLM's streams. Unlike on a GPU the forward is over
when a store is launched, so a store cannot come too early. A file is read and written at once, by vLLM's own loops.
"""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain as chained
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import SimpleCPUOffloadConnector
from vllm.v1.simple_kv_offload import copy_backend, cuda_mem_ops, disk_backend
from vllm.v1.simple_kv_offload.sizing import gpu_total_bytes

from ....reference.prefix_cache import Key
from ...base.observe import Content, Loaded, Record
from ...base.protocol import EngineError
from ...base.trace import Config, ExternalLoad
from ..options import has_disk, options_of
from ..pool_reader import Pool, host_pool_of, ids_of, split
from ..shadow.recorder import Recorder
from ..versions.wrapping import replaced
from .offloading import Contents, Copy, CopyStream, Event, Move, place_of
from .own_store import OwnStore, Page, TellsStore

Parts = dict[int, list[Move]]
"""The copies of a transfer, by block of the device."""


class SimpleStream(CopyStream):
    """A `torch.cuda.Stream`, with a number for its handle."""

    def __init__(self, handle: int) -> None:
        super().__init__()
        self.cuda_stream = handle

    def wait_event(self, event: Event) -> None:
        """Do nothing: the forward is over."""


class SimpleStreams:
    """`torch.cuda.Stream`: makes streams, and finds them by their handles."""

    def __init__(self) -> None:
        self._made: list[SimpleStream] = []

    def __call__(self, priority: int = 0) -> SimpleStream:
        """Return a new stream."""
        self._made.append(SimpleStream(len(self._made)))
        return self._made[-1]

    def __getitem__(self, handle: int) -> SimpleStream:
        """Return the stream with a handle."""
        return self._made[handle]

    def priority_range(self) -> tuple[int, int]:
        """Return the least and the greatest priority."""
        return 0, 0


class CopyThread:
    """A thread of vLLM's that runs when it is told to."""

    def __init__(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> None:
        del daemon
        self.run = partial(target, *args)

    def start(self) -> None:
        """Do nothing yet."""

    def join(self, timeout: float) -> None:
        """Do nothing any more."""

    def is_alive(self) -> bool:
        """Return False."""
        return False


THREADS = SimpleNamespace(Thread=CopyThread)
"""What vLLM's backends take of `threading`."""
PLATFORM = SimpleNamespace(set_device=lambda device: None)
"""What they take of `current_platform`."""


class SimpleDevice:
    """The device's queues. `note` is told which blocks of the device were loaded."""

    def __init__(self, note: Callable[[int], None]) -> None:
        self.streams = SimpleStreams()
        self.contents: SimpleDevice = self
        self.early: Parts = {}
        """Copies of the next load that were made already."""
        self.tensors: Sequence[torch.Tensor] = ()
        self.host: Mapping[bool, Sequence[torch.Tensor]] = {}
        """The tensors that stores (False) write to, and loads (True) read."""
        self.changes = 0
        """Copies to the host that were made."""
        self._note = note
        self._taken: Parts | None = None
        self._copies = 0

    @contextmanager
    def here(self) -> Iterator[None]:
        """Let vLLM work with this device."""
        with replaced(
            (torch, "Event", Event),
            (torch.cuda, "Stream", self.streams),
            (torch.cuda, "current_stream", lambda: SimpleStream(-1)),
            (cuda_mem_ops, "_batch_memcpy", (self.copy, 1)),
            (copy_backend, "current_platform", PLATFORM),
            (copy_backend, "threading", THREADS),
            (disk_backend, "current_platform", PLATFORM),
            (disk_backend, "threading", THREADS),
            (disk_backend, "pin_tensor", lambda tensor: None),
        ):
            yield

    def copy(self, to: int, of: int, sizes: int, count: int, *more: Any) -> int:
        """Take over descriptors, in the place of the driver's function: `to`, `of` and `sizes` are addresses of
        `count` numbers."""
        numbers = [(ctypes.c_uint64 * count).from_address(address)[:] for address in (to, of, sizes)]
        parts: Parts = {}
        for move in map(self._move, *numbers):
            parts.setdefault(move.block, []).append(move)
        if self._taken is not None:
            self._taken |= parts
        else:
            self._enqueue(self.streams[more[-1]], parts)
        return 0

    def _move(self, to: int, of: int, size: int) -> Move:
        is_load = any(0 <= to - one.data_ptr() < one.numel() for one in self.tensors)
        on_device, on_host = (to, of) if is_load else (of, to)
        tensor, block, inside = place_of(self.tensors, on_device, size)
        of_host, chunk, at = place_of(self.host[is_load], on_host, size)
        if tensor != of_host:
            raise EngineError("a transfer of the simple offloading connector copies pages of other layers")
        return Move(is_load, tensor, block, chunk, inside, at, size)

    def _enqueue(self, stream: SimpleStream, parts: Parts) -> None:
        if any(move.is_load for moves in parts.values() for move in moves):
            for block, moves in self.early.items():
                if parts.get(block) == moves:
                    del parts[block]
            self.early = {}
        stream.works = [work for work in stream.works if work.parts]
        work = Copy(parts, self)  # type: ignore[arg-type]
        stream.works.append(work)
        self._copies += 1
        if len(stream.works) == 1 and self._copies % 2:
            self._run(work, list(parts)[::2])

    def finish(self, work: Copy) -> None:
        """Make the copies of a transfer that are left."""
        self._run(work, list(work.parts))

    def _run(self, work: Copy, blocks: Collection[int]) -> None:
        for block in blocks:
            is_load = work.parts[block][0].is_load
            work.run([block])
            if is_load:
                self._note(block)

    def make(self, moves: Sequence[Move]) -> None:
        """Make copies."""
        for is_load, host in self.host.items():
            own = [move for move in moves if move.is_load is is_load]
            Contents(self.tensors, host).copy(own, host)
            self.changes += len(own) * (not is_load)

    def taken(self, launch: Callable[[], None]) -> Parts:
        """Return the copies that a call of vLLM's would enqueue."""
        self._taken = {}
        with self.here():
            launch()
        parts, self._taken = self._taken, None
        return parts


@dataclass
class Transfer:
    """A transfer that was launched, by vLLM's number, with the steps that are left."""

    event: int
    left: int


class DiskPages:
    """The pages of one tensor in the file of vLLM's backend, by slot."""

    def __init__(self, backend: Any, index: int) -> None:
        self._backend = backend
        sizes = backend._per_tensor_bpb
        self._first, self._size = sum(sizes[:index]), sizes[index]

    def __getitem__(self, slot: int) -> torch.Tensor:
        """Read a page."""
        at = slot * self._backend._total_block_bytes + self._first
        return torch.frombuffer(bytearray(os.pread(self._backend._fd, self._size, at)), dtype=torch.int8)


class HostSide:
    """vLLM's worker on a `SimpleDevice`."""

    def __init__(self, store: SimpleStore, inner: Any) -> None:
        self.store, self.inner = store, inner
        self.device = SimpleDevice(self._note)
        self.jobs: dict[bool, list[Transfer]] = {False: [], True: []}
        """Transfers under way, by direction: True for loads."""
        self._contents: Contents

    def begin(self) -> None:
        """Learn where vLLM keeps its pages, once it has registered them."""
        inner, backend = self.inner, self.inner._backend
        self.device.tensors = tensors = [*inner.gpu_kv_caches.values()]
        if inner.disk_mode:
            buffers = {False: backend._store_buffer_caches, True: backend._load_buffer_caches}
            self.device.host = {is_load: [*caches.values()] for is_load, caches in buffers.items()}
            rows: Any = [DiskPages(backend, index) for index in range(len(tensors))]
        else:
            rows = [*inner.cpu_kv_caches.values()]
            self.device.host = {False: rows, True: rows}
        self._contents = Contents(tensors, rows)

    def launched(self, is_load: bool) -> None:
        """Note that vLLM has launched the transfer of this step, if there is one."""
        metadata = self.inner._connector_metadata
        event = metadata.load_event if is_load else metadata.store_event
        if event < 0:
            return
        self.jobs[is_load].append(Transfer(event, self.store.durations.pop((is_load, event))))
        if event % 2 == 0:
            self._run_threads()

    def _run_threads(self) -> None:
        backend = self.inner._backend
        threads: tuple[tuple[Any, Any], ...]
        if self.inner.disk_mode:
            threads = (backend._store_queue, backend._store_thread), (backend._load_queue, backend._load_thread)
        else:
            threads = ((backend._queue, backend._thread),)
        with self.device.here():
            for queue, thread in threads[:: -1 if self.store.step % 2 else 1]:
                queue.put(None)
                thread.run()

    def pass_step(self) -> None:
        """Let one step pass, and transfers be over that are due."""
        for is_load, jobs in self.jobs.items():
            for job in jobs:
                job.left -= 1
            while jobs and jobs[0].left <= 0:
                self._end(is_load, jobs.pop(0))

    def _end(self, is_load: bool, job: Transfer) -> None:
        self._run_threads()
        for event, recorded in self.inner._load_events if is_load else self.inner._store_events:
            if event <= job.event:
                recorded.synchronize()
        if is_load:
            self.store.due.remove(job.event)

    def early(self, metadata: Any) -> Iterator[int]:
        """Make every second copy of a load that was planned just now; yield its blocks."""
        if self.inner.disk_mode or metadata.load_event % 2 or self.store.due != [metadata.load_event]:
            return
        params = self.inner._backend._load_params
        blocks = metadata.load_cpu_blocks, metadata.load_gpu_blocks
        parts = self.device.taken(lambda: cuda_mem_ops.copy_blocks(*blocks, params))
        for block in [*parts][::2]:
            self.device.early[block] = parts[block]
            self.device.make(parts[block])
            yield block

    def _note(self, block: int) -> None:
        for record in self.store.arrived(block):
            self.store.recorder.note(record)

    def pages(self, group: int, chunk: int) -> tuple[Content, ...]:
        """Return what a block of the host holds for the layers of a group: read in the place of the null block."""
        layers = self.store.layers
        with self._contents.in_null_block(range(len(self.device.tensors)), chunk):
            return tuple(layers[group, index].read(0) for index in range(self.store.layout.groups[group].layers))

    def leftovers(self) -> dict[str, int]:
        """Return what vLLM's worker keeps for transfers."""
        inner = self.inner
        events = inner._load_events, inner._store_events
        pending = inner._pending_load_event_indices, inner._pending_store_event_indices, inner._completed_store_events
        return {"transfers of the connector's worker": sum(map(len, (*events, *pending)))}


class SimpleStore(OwnStore):
    """What SimpleCPUOffloadConnector stores and loads."""

    def __init__(self, config: Config, recorder: Recorder) -> None:
        super().__init__(config, recorder)
        self.side: HostSide
        self.durations: dict[tuple[bool, int], int] = {}
        """(is a load, vLLM's number) -> steps, of transfers that are not launched yet."""
        self.due: list[int] = []
        """Loads that were planned and are not over."""
        self._manager: Any = None
        self._pool: Pool
        self._planned: Any = None
        """The latest metadata."""
        self._places: dict[int, Page] = {}
        """Where blocks stand that are to be loaded."""
        self._latest = 0
        """The delay that was announced last: transfers that are no request's take as long."""
        self._read: dict[tuple[Key, int], tuple[Content, ...]] = {}
        self._changes = 0
        self.folder = TemporaryDirectory(prefix="disk-") if has_disk(config) else None

    def watch(self, manager: Any) -> None:
        """Keep vLLM's scheduler side."""
        self._manager = manager
        self._pool = host_pool_of(manager.cpu_coordinator)

    def announce(self, event: ExternalLoad, tokens: Sequence[int]) -> None:
        """Let the transfers of a request take as long as the event says."""
        super().announce(event, tokens)
        self._latest = event.delay

    def begin_planning(self, step: int) -> None:
        """Note that `step` is planned next."""
        super().begin_planning(step)
        self._planned = None

    def place(self, name: str, tables: Sequence[Sequence[int]]) -> None:
        """Note where the blocks stand that a request's load writes; `tables` are its own."""
        state = self._manager._reqs_to_load.get(name)
        to_load = set(state.transfer_meta.gpu_block_ids) if state else ()
        for group, table in enumerate(tables):
            for column, block in enumerate(table):
                if block in to_load:
                    self._places[block] = Page(self.step, name, group, column)

    def ordered(self, metadata: Any) -> None:
        """Note the transfers that the worker launches in this step."""
        self._planned = metadata
        reqs = {True: self._manager._load_event_to_reqs, False: self._manager._store_event_to_reqs}
        for is_load, event in ((True, metadata.load_event), (False, metadata.store_event)):
            if event >= 0:
                names = reqs[is_load].get(event, ())
                self.durations[is_load, event] = max([self.delay(name) for name in names], default=self._latest + 1)
        if metadata.load_event >= 0:
            self.due.append(metadata.load_event)

    def early(self) -> Sequence[Record]:
        """Load half of the pages of the load that was planned just now, before the forwards in flight."""
        if self._planned is None or self._planned.load_event < 0:
            return ()
        return [record for block in self.side.early(self._planned) for record in self.arrived(block)]

    def arrived(self, block: int) -> Iterator[Loaded]:
        """Yield the record of each layer of a block that was loaded."""
        if page := self._places.pop(block, None):
            yield from self.loaded(page, block)

    def has_jobs(self) -> bool:
        """Return True if transfers are under way, which may go on behind the end of their requests."""
        return bool(self._manager.has_pending_stores())

    def knows(self, name: str) -> bool:
        """Return True if the connector still keeps something for a request."""
        return any(name in kept for kept in self._by_request())

    def _by_request(self) -> Iterator[Mapping[str, Any]]:
        own = self._manager
        yield from (own._reqs_to_store, own._reqs_to_load, own._abandoned_reqs_to_load, own._pending_cpu_hits)

    def _loads(self) -> Iterator[Any]:
        """Yield the loads that are planned or under way: each has references to its blocks."""
        own = self._manager
        for state in (*own._reqs_to_load.values(), *own._abandoned_reqs_to_load.values()):
            yield state.transfer_meta

    def _saves(self) -> Iterator[Any]:
        """Yield the stores that are planned or under way: each has references to its blocks."""
        own = self._manager
        yield from (*own._store_event_to_blocks.values(), *own._abandoned_store_event_to_blocks.values())
        yield from own._pending_finished_stores

    def loading(self) -> Collection[int]:
        """Return the blocks that loads refer to."""
        return [block for load in self._loads() for block in load.gpu_block_ids]

    def saving(self) -> Collection[int]:
        """Return the blocks that stores refer to."""
        return [block for save in self._saves() for block in save.gpu_block_ids]

    def miscounted(self) -> int:
        """Return by how many blocks the host's pool differs from what transfers and lookups hold."""
        hits = chained.from_iterable(hit[0] for hit in self._manager._pending_cpu_hits.values())
        held = Counter(ids_of(chained.from_iterable(hits)))
        held.update(block for one in chained(self._loads(), self._saves()) for block in one.cpu_block_ids)
        references, free = self._pool.references(), Counter(self._pool.free())
        found = {label: set(blocks) for label, blocks in self._pool.cached()}
        usable = range(1, len(references))  # the first block is the null block
        return sum(
            (
                sum(references[block] != held[block] for block in usable),
                sum(free[block] != (not held[block]) for block in usable),
                sum(block not in found.get(label, ()) for block, label in self._pool.labels()),
            )
        )

    def leftovers(self) -> dict[str, int]:
        """Return what the connector keeps for requests and transfers."""
        own = self._manager
        transfers = own._load_event_to_reqs, own._store_event_to_reqs, own._store_event_pending_counts
        return {
            "requests of the simple offloading connector": sum(map(len, self._by_request())),
            "transfers of the simple offloading connector": len([*self._saves()]) + sum(map(len, transfers)),
            "blocks that are being stored": len(own._in_flight_store_gpu_blocks),
            **self.side.leftovers(),
        }

    def stored(self, keys: Any) -> Mapping[Key, Sequence[Content]]:
        """Return what later loads may find. `keys` names hashes."""
        if self._changes != self.side.device.changes:
            self._changes = self.side.device.changes
            self._read.clear()
        found = {keys.key(*split(label)): next(iter(blocks)) for label, blocks in self._pool.cached()}
        return {key: self._content(key, chunk) for key, chunk in found.items()}

    def _content(self, key: Key, chunk: int) -> tuple[Content, ...]:
        if (key, chunk) not in self._read:
            self._read[key, chunk] = self.named(key, self.side.pages(key.group, chunk))
        return self._read[key, chunk]

    def close(self) -> None:
        """Close the file, if there is one."""
        if self.folder:
            self.side.inner._backend.shutdown()
            self.folder.cleanup()


class ObservedSimpleConnector(TellsStore, SimpleCPUOffloadConnector):
    """vLLM's connector; notes which transfers it plans, and launches them on a `SimpleDevice`."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        given = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.store: SimpleStore = given["store"]
        # One more block is the null block of the host's pool.
        room = gpu_total_bytes(kv_cache_config) // kv_cache_config.num_blocks * (self.store.chunks + 1)
        given |= {"cpu_bytes_to_use": room, "disk_capacity_bytes": room}
        is_worker = role is KVConnectorRole.WORKER
        if not is_worker:  # as `EngineCore._initialize_kv_caches`
            blocks = self.store.side.inner.num_cpu_blocks
            vllm_config.cache_config.simple_cpu_offload_num_blocks = blocks
        super().__init__(vllm_config, role, kv_cache_config)
        if is_worker:
            self.store.side = HostSide(self.store, self.worker_handler)
        else:
            self.store.watch(self.scheduler_manager)

    # The scheduler's side.

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note a load."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens:
            name = request.request_id
            self.store.plan(name, self.store.hits[name], num_external_tokens, is_sync=False)
            self.store.place(name, blocks.get_block_ids())

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Note the transfers that the worker gets."""
        metadata = super().build_connector_meta(scheduler_output)
        self.store.ordered(metadata)
        return metadata

    # The worker's side.

    def register_kv_caches(self, kv_caches: Any) -> None:
        """Let vLLM make its streams and threads."""
        with self.store.side.device.here():
            super().register_kv_caches(kv_caches)
        self.store.side.begin()

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Let vLLM wait for transfers."""
        with self.store.side.device.here():
            super().handle_preemptions(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **keywords: Any) -> None:
        """Launch a load."""
        with self.store.side.device.here():
            super().start_load_kv(forward_context, **keywords)
        self.store.side.launched(is_load=True)

    def wait_for_save(self) -> None:
        """Launch a store."""
        with self.store.side.device.here():
            super().wait_for_save()
        self.store.side.launched(is_load=False)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Let one step pass, and report the transfers that are over."""
        self.store.side.pass_step()
        with self.store.side.device.here():
            finished: tuple[set[str] | None, set[str] | None] = super().get_finished(finished_req_ids)
        return finished


def connect_simply(vllm_config: Any, config: Config, store: SimpleStore) -> SimpleStore:
    """Add the connector to vLLM's configuration; return its store."""
    from vllm.config import KVTransferConfig

    options = options_of(config)
    # Whether the folder's file system takes O_DIRECT is no property of the trace.
    disk = {"disk_path": f"{store.folder.name}/kv", "use_page_cache": True} if store.folder else {}
    vllm_config.kv_transfer_config = KVTransferConfig(
        kv_connector=ObservedSimpleConnector.__name__,
        kv_connector_module_path=__name__,
        kv_role="kv_both",
        kv_connector_extra_config={
            "store": store,
            "lazy_offload": options.lazy_offload == "yes",
            "kv_offload_backend": options.kv_offload_backend,
            **disk,
        },
        kv_load_failure_policy=options.load_failure,
    )
    return store
