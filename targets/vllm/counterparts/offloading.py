"""vLLM's own `OffloadingConnector` with its CPU tier, on a machine without a GPU.

Lookups, keys, jobs, fences, the manager of the host's chunks (LRU or ARC) and the descriptors of every copy are vLLM's.
Ours are the device's queue (`Device`, `CopyStream`, `Event`) and the moments at which its copies happen:

    submitted  every second block of the job is copied, unless earlier jobs of that direction are not over yet
    ended      the rest, `ExternalLoad.delay` + 1 steps later, or when vLLM waits for the job

Jobs of one direction end in the order of their submission, as on vLLM's streams. Unlike a GPU the forward is over when
a job is submitted, so a copy cannot come too early; it comes as late as vLLM permits.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector
from vllm.utils.math_utils import round_up
from vllm.v1.kv_offload.base import OffloadingWorker, get_offload_block_hash, get_offload_group_idx
from vllm.v1.kv_offload.cpu import gpu_worker
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from ....reference.prefix_cache import Key
from ...base.observe import Content
from ...base.protocol import EngineError
from ...base.trace import Config
from ..options import options_of
from ..shadow.recorder import Recorder
from ..versions.wrapping import replaced
from .own_store import OwnStore, Page, TellsStore

SYNC_BYTES = 1 << 12
"""Bytes that are loaded before the forward of one step, at most, with offload=sync: those of a few small blocks."""


class Move(NamedTuple):
    """One copy of `size` bytes, between byte `inside` of a block of the device and byte `at` of a chunk of the host,
    in the pages of one tensor."""

    is_load: bool
    tensor: int
    block: int
    chunk: int
    inside: int
    at: int
    size: int


def copied(row: Any) -> Any:
    """Return a copy of a row of pages; a tensor's own is made much faster than `deepcopy`'s."""
    return row.clone() if isinstance(row, torch.Tensor) else deepcopy(row)


class Contents:
    """What the pages hold: bytes, of which shadow layers read tags."""

    def __init__(self, tensors: Sequence[torch.Tensor], host: Sequence[torch.Tensor]) -> None:
        self.tensors, self.host = tensors, host
        """The pages of the device [block, byte], and those of the host [chunk, byte]."""
        self.read: Mapping[int, tuple[Any, Any]] = dict(enumerate(zip(tensors, host, strict=True)))
        """Where shadow layers read, by tensor: rows of blocks, and rows of chunks."""

    def make(self, moves: Sequence[Move]) -> None:
        """Make the copies of a job, for all that the pages hold."""
        self.copy(moves, self.host)

    def copy(self, moves: Sequence[Move], host: Sequence[torch.Tensor]) -> None:
        """Copy the bytes of `moves` between the device and `host`, the tier of one memory."""
        with torch.inference_mode():
            for move in moves:
                on_device = self.tensors[move.tensor][move.block, move.inside : move.inside + move.size]
                on_host = host[move.tensor][move.chunk, move.at : move.at + move.size]
                destination, source = (on_device, on_host) if move.is_load else (on_host, on_device)
                destination.copy_(source)

    @contextmanager
    def in_null_block(self, tensors: Collection[int], chunk: int) -> Iterator[None]:
        """Let the null block hold what a chunk of the host holds in some tensors."""
        kept = {index: copied(self.read[index][0][0]) for index in tensors}
        for index in tensors:
            blocks, chunks = self.read[index]
            blocks[0] = chunks[chunk]
        try:
            yield
        finally:
            for index, row in kept.items():
                self.read[index][0][0] = row


@dataclass
class Copy:
    """The copies of one job that were not made yet, by block, in the order of the descriptors."""

    parts: dict[int, list[Move]]
    device: Device

    def run(self, blocks: Collection[int]) -> list[int]:
        """Make the copies of some blocks; return these blocks."""
        self.device.contents.make([move for block in blocks for move in self.parts.pop(block)])
        return list(blocks)


class Event:
    """A `torch.Event`: what its stream had to do when it was recorded."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.works: list[Copy] = []

    def record(self, stream: CopyStream) -> None:
        """Remember what the stream has to do."""
        self.works = list(stream.works)

    def query(self) -> bool:
        """Return True if that is done."""
        return not any(work.parts for work in self.works)

    def synchronize(self) -> None:
        """Let it be done."""
        for work in self.works:
            work.device.finish(work)

    def elapsed_time(self, end: Event) -> float:
        """Return no time."""
        return 0.0


class CopyStream:
    """A stream of the device."""

    def __init__(self) -> None:
        self.works: list[Copy] = []

    def wait_stream(self, stream: None) -> None:
        """Do nothing: the forward is over."""

    def wait_event(self, event: Event) -> None:
        """Do what the event stands for first."""
        self.works = list(event.works)


class Device:
    """vLLM's `current_platform` as its transfers use it: streams whose copies are made later."""

    Stream = CopyStream

    def __init__(self, finish: Callable[[Copy], None]) -> None:
        """`finish` makes the copies of a job that are left."""
        self.finish = finish
        self.contents: Contents
        self._submitted: Copy | None = None
        self._stream: CopyStream | None = None

    def is_xpu(self) -> bool:
        """Return False."""
        return False

    def current_stream(self) -> None:
        """Return nothing: there is no queue of forwards."""

    @contextmanager
    def stream(self, stream: CopyStream) -> Iterator[None]:
        """Add work to a stream."""
        self._stream = stream
        yield
        self._stream = None

    def enqueue(
        self,
        is_load: bool,
        sources: torch.Tensor,
        destinations: torch.Tensor,
        sizes: torch.Tensor,
        is_src_access_order_any: bool,
    ) -> None:
        """Take over the descriptors of a job, in the place of vLLM's operator."""
        parts: dict[int, list[Move]] = {}
        for source, destination, size in zip(sources.tolist(), destinations.tolist(), sizes.tolist(), strict=True):
            on_device, on_host = (destination, source) if is_load else (source, destination)
            tensor, block, inside = place_of(self.contents.tensors, on_device, size)
            of_host, chunk, at = place_of(self.contents.host, on_host, size)
            if tensor != of_host:
                raise EngineError("a transfer of the offloading connector copies pages of other layers")
            parts.setdefault(block, []).append(Move(is_load, tensor, block, chunk, inside, at, size))
        assert self._stream is not None
        self._submitted = Copy(parts, self)
        self._stream.works.append(self._submitted)

    def take(self) -> Copy | None:
        """Return the copies of the job that was submitted last, None if it had none."""
        submitted, self._submitted = self._submitted, None
        return submitted


def place_of(tensors: Sequence[torch.Tensor], pointer: int, size: int) -> tuple[int, int, int]:
    """Return (tensor, row, byte in it) where `size` bytes lie in one row."""
    for index, tensor in enumerate(tensors):
        row, inside = divmod(pointer - tensor.data_ptr(), tensor.stride(0))
        if 0 <= row < tensor.shape[0] and inside + size <= tensor.shape[1]:
            return index, row, inside
    raise EngineError("a transfer of the offloading connector leaves the pages of the caches")


class OnDevice(torch.Tensor):
    """A tensor that passes as one of a GPU."""

    is_cuda = True


@dataclass
class Job:
    """A job of vLLM's worker. `pages` has each block that it loads."""

    copy: Copy | None
    left: int
    pages: Mapping[int, Page] = dataclasses.field(default_factory=dict)


class HostWorker(OffloadingWorker):
    """vLLM's `CPUOffloadingWorker` on a `Device`."""

    def __init__(self, spec: HostSpec, kv_caches: Any) -> None:
        self.store = spec.store
        self._groups = [group.group_id for group in spec.config.groups]
        self.device = Device(self._finish)
        on_device = [replace(one, tensor=one.tensor.as_subclass(OnDevice)) for one in kv_caches.tensors]
        self._inner = spec.create_worker(replace(kv_caches, tensors=on_device))
        self.references = dict(zip(self._groups, kv_caches.group_data_refs, strict=True))
        self._loads: list[Job] = []
        self._saves: list[Job] = []
        inner = self._inner
        self.device.contents = Contents([one.tensor for one in kv_caches.tensors], inner._store_handler.dst_tensors)
        for handler in (inner._store_handler, inner._load_handler, inner._expedited_load_handler):
            handler._swap_blocks_batch = functools.partial(self.device.enqueue, not handler.gpu_to_cpu)
        self.store.worker = self

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Begin to copy blocks to the host."""
        return self._submit(job_id, self._saves, {}, src_spec, dst_spec)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        """Begin to copy blocks to the device."""
        pages, blocks = dict[int, Page](), iter(dst_spec.block_ids.tolist())
        name = self.store.names[job_id]
        step = self.store.steps.get(name, 0)
        for group, size, first in zip(self._groups, dst_spec.group_sizes, dst_spec.block_indices, strict=True):
            pages |= {next(blocks): Page(step, name, group, first + index) for index in range(size)}
        return self._submit(job_id, self._loads, pages, src_spec, dst_spec, expedited=expedited)

    def _submit(self, job_id: int, jobs: list[Job], pages: Any, source: Any, destination: Any, **more: bool) -> bool:
        with self._on_device():
            submit = self._inner.submit_load if jobs is self._loads else self._inner.submit_store
            done: bool = submit(job_id, source, destination, **more)
        copy, name = self.device.take(), self.store.names.pop(job_id)
        job = Job(copy, self.store.delay(name), pages)
        if copy and not any(other.copy and other.copy.parts for other in jobs):
            self._run(job, [block for index, block in enumerate(copy.parts) if (index + job_id) % 2])
        jobs.append(job)
        return done

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        with replaced((gpu_worker, "current_platform", self.device), (torch, "Event", Event)):
            yield

    def _finish(self, work: Copy) -> None:
        for job in (*self._saves, *self._loads):
            if job.copy is work:
                self._run(job, list(work.parts))

    def _run(self, job: Job, blocks: Collection[int]) -> None:
        """Make the copies of some blocks; record those that are loaded."""
        assert job.copy is not None
        for block in job.copy.run(blocks):
            if block in job.pages:
                for record in self.store.loaded(job.pages[block], block):
                    self.store.recorder.note(record)

    def get_finished(self) -> list[Any]:
        """Let one step pass, and report the jobs that are over."""
        for jobs in (self._saves, self._loads):
            for job in jobs:
                job.left -= 1
            while jobs and jobs[0].left <= 0:
                if jobs[0].copy:
                    self._run(jobs[0], list(jobs[0].copy.parts))
                del jobs[0]
        with self._on_device():
            finished: list[Any] = self._inner.get_finished()
        return finished

    def to_save(self) -> Iterator[int]:
        """Yield the blocks that are still to be copied to the host."""
        for job in self._saves:
            yield from job.copy.parts if job.copy else ()

    def wait(self, job_ids: set[int]) -> None:
        """Let jobs be over."""
        with self._on_device():
            self._inner.wait(job_ids)

    def shutdown(self) -> None:
        """Let all jobs be over."""
        with self._on_device():
            self._inner.shutdown()

    def pages(self, group: int, chunk: int) -> tuple[Content, ...]:
        """Return what a chunk of the host holds for the layers of a group: read in the place of the null block."""
        tensors = {one.tensor_idx for one in self.references[group]}
        layers = self.store.layers
        with self.device.contents.in_null_block(tensors, chunk):
            return tuple(layers[group, index].read(0) for index in range(self.store.layout.groups[group].layers))


class HostSpec(CPUOffloadingSpec):
    """vLLM's CPU tier with room for the trace's number of chunks, and with a worker that needs no GPU."""

    def __init__(self, config: Any) -> None:
        self.store: OffloadedStore = config.extra_config["store"]
        blocks = config.worker_kv_bytes_per_block * config.cache.blocks_per_chunk
        room = self.store.chunks * round_up(blocks, self.BLOCK_SIZE_ALIGNMENT)
        super().__init__(replace(config, extra_config={**config.extra_config, "cpu_bytes_to_use": room}))

    def _uses_shared_region(self) -> bool:
        """Return False, also on a GPU: the tier is this process's own memory."""
        return False

    def get_worker(self, kv_caches: Any) -> HostWorker:
        """Return the worker."""
        return HostWorker(self, kv_caches)


class OffloadedStore(OwnStore):
    """What OffloadingConnector stores and loads."""

    def __init__(self, config: Config, recorder: Recorder) -> None:
        super().__init__(config, recorder)
        self.worker: HostWorker
        self.worker_side: Any = None
        self.scheduler: Any = None
        self.manager: Any = None
        self.names: dict[int, str] = {}
        """Request of each job that the worker does not know yet."""
        self._offered: set[bytes] = set()
        """Keys that the manager took and may still hold."""

    def watch(self, scheduler: Any) -> None:
        """Keep the connector's scheduler side and its manager, and note which keys the manager takes."""
        self.scheduler, self.manager = scheduler, self.manager_of(scheduler)
        manager = self.manager
        prepare = manager.prepare_store

        def prepare_store(*arguments: Any, **keywords: Any) -> Any:
            output = prepare(*arguments, **keywords)
            self._offered.update(output.keys_to_store if output else ())
            return output

        manager.prepare_store = prepare_store

    def manager_of(self, scheduler: Any) -> Any:
        """Return the manager of the host's memory."""
        return scheduler.manager

    @property
    def spec(self) -> Mapping[str, Any]:
        """What vLLM's configuration says of the tier."""
        return {"spec_name": HostSpec.__name__, "spec_module_path": __name__}

    def held(self) -> dict[bytes, Any]:
        """Return the chunks that the manager holds, by key."""
        held = {key: chunk for key in self._offered if (chunk := self.manager._policy.get(key)) is not None}
        self._offered = set(held)
        return held

    def has_jobs(self) -> bool:
        """Return True if transfers are under way, which may go on behind the end of their requests."""
        return bool(self.scheduler.has_pending_push_work())

    def to_save(self) -> Collection[int]:
        """Return the blocks of stores that are under way, or that vLLM's worker submits in the next step."""
        waiting = [source.block_ids.tolist() for _, source, _ in self.worker_side._unsubmitted_store_jobs]
        return {*self.worker.to_save(), *itertools.chain.from_iterable(waiting)}

    def knows(self, name: str) -> bool:
        """Return True if the connector still keeps something for a request."""
        return name in self.scheduler._req_status

    def miscounted(self) -> int:
        """Return by how many chunks the manager's counters differ from the chunks that it holds."""
        manager, chunks = self.manager, list(self.held().values())
        ids = {chunk.chunk_id for chunk in chunks}
        free = manager._free_list
        return sum(
            abs(counted - right)
            for counted, right in (
                (manager._num_write_pending_chunks, sum(not chunk.is_ready for chunk in chunks)),
                (manager._num_evictable_cache_chunks, sum(chunk.ref_cnt == 0 for chunk in chunks)),
                (manager._num_allocated_chunks - len(free), len(chunks)),
                (len(ids), len(chunks)),
                (len(ids.union(free)), len(ids) + len(free)),
            )
        )

    def leftovers(self) -> dict[str, int]:
        """Return what the connector keeps for requests and jobs."""
        own = self.scheduler
        return {
            "requests of the offloading connector": len(own._req_status),
            "jobs of the offloading connector": len(own._jobs) + len(own._reset_fence),
            "blocks fenced by the offloading connector": len(own._block_id_to_pending_jobs),
            "keys that the offloading connector loads": len(own._chunks_being_loaded or ()),
            "chunks in use in host memory": sum(chunk.ref_cnt != 0 for chunk in self.held().values()),
        }

    def stored(self, keys: Any) -> Mapping[Key, Sequence[Content]]:
        """Return what later loads may find. `keys` names hashes."""
        found = {
            keys.key(get_offload_group_idx(key), get_offload_block_hash(key)): chunk.chunk_id
            for key, chunk in self.held().items()
            if chunk.is_ready
        }
        return {key: self.named(key, self.worker.pages(key.group, chunk)) for key, chunk in found.items()}


class ObservedConnector(TellsStore, OffloadingConnector):
    """vLLM's connector; notes which loads it plans."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self.store: OffloadedStore = vllm_config.kv_transfer_config.kv_connector_extra_config["store"]
        if self.connector_scheduler:
            self.store.watch(self.connector_scheduler)
        else:
            self.store.worker_side = self.connector_worker

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note a load."""
        super().update_state_after_alloc(request, blocks, num_external_tokens)
        if num_external_tokens:
            name = request.request_id
            is_sync = name in self.scheduler._current_batch_sync_loads
            self.store.plan(name, self.store.hits[name], num_external_tokens, is_sync)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """Note whose jobs the worker gets."""
        metadata = super().build_connector_meta(scheduler_output)
        for job_id, job in (*metadata.load_jobs.items(), *metadata.store_jobs.items()):
            self.store.names[job_id] = job.req_id
        return metadata


def connect_own(vllm_config: Any, config: Config, store: OffloadedStore) -> OffloadedStore:
    """Add the connector to vLLM's configuration; return its store."""
    from vllm.config import KVTransferConfig

    options = options_of(config)
    vllm_config.kv_transfer_config = KVTransferConfig(
        kv_connector=ObservedConnector.__name__,
        kv_connector_module_path=__name__,
        kv_role="kv_both",
        kv_connector_extra_config={
            "store": store,
            **store.spec,
            "eviction_policy": options.eviction,
            "offload_prompt_only": options.offload != "all",
            "sync_load_budget_bytes": SYNC_BYTES if options.offload == "sync" else 0,
        },
        kv_load_failure_policy=options.load_failure,
    )
    return store
