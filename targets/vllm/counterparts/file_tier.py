"""A file system tier behind the host's memory: vLLM's `TieringOffloadingSpec` with its `FileSystemTierManager`.

Lookups, promotions, cascades, names of files and every access to them are vLLM's. Ours are the host's memory, which is
a buffer of this process instead of a file in /dev/shm, the folder, which is the engine's own, and when the work of the
tier's threads is done:

    lookups  at the end of the planning that asked for them, or of the next one if the step is odd
    jobs     at the end of the planning that submitted them, or one step later for a request with `ExternalLoad.delay`

In every second step loads run before stores. With tier=faults another process cleans the folder: before each load
whose job number is a multiple of `FAULT_PERIOD`, one of its files is removed or cut off.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering import async_lookup
from vllm.v1.kv_offload.tiering import spec as tiering
from vllm.v1.kv_offload.tiering.async_lookup import LookupPhase
from vllm.v1.kv_offload.tiering.fs import manager as fs
from vllm.v1.kv_offload.tiering.fs.manager import FileSystemTierManager
from vllm.v1.kv_offload.tiering.fs.thread_pool import DualQueueThreadPool
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from ...base.trace import Config
from ..options import options_of
from ..shadow.recorder import Recorder
from ..versions.wrapping import replaced
from .offloading import HostSpec, OffloadedStore

FAULT_PERIOD = 3
"""With tier=faults, loads whose job number is a multiple of this meet a file that was removed or cut off."""


class HostRegion(SharedOffloadRegion):
    """The host's memory [chunk, byte]: one buffer for the scheduler's side and the worker's."""

    def __init__(self, memory: mmap.mmap, chunks: int, rank: int | None, row_bytes: int, page_bytes: int) -> None:
        """`row_bytes` is the size of a chunk with its padding, `page_bytes` that of the pages of a worker in it."""
        self.num_chunks, self._row_stride = chunks, row_bytes
        self.rank, self.cpu_page_size = rank, page_bytes
        self._worker_offset = (rank or 0) * page_bytes
        self._worker_area_end = self._worker_offset + page_bytes
        self._base = torch.frombuffer(memoryview(memory), dtype=torch.int8)
        self._views: list[torch.Tensor] = []
        self._canonical_offset = 0
        self.is_pinned, self.pinned_addresses = False, list[int]()
        self.mmap_obj = self.fd = None
        self._creator = False


class LateThread:
    """A thread whose work is done when it is waited for."""

    def __init__(self, target: Callable[[], None], name: str, daemon: bool) -> None:
        del name, daemon
        self.join = target

    def start(self) -> None:
        """Do nothing yet."""


class Threads:
    """What `async_lookup` takes of `threading`."""

    Thread = LateThread


class FileJob(NamedTuple):
    """A job of the pool that no thread has seen yet. `enqueue` gives it to the pool."""

    left: int
    enqueue: Callable[[], None]


class FilePool(DualQueueThreadPool):
    """vLLM's pool of threads for files, without a thread: this process does their work (`pass_step`)."""

    def __init__(self, n_read_threads: int, n_write_threads: int, thread_name_prefix: str) -> None:
        del n_read_threads, n_write_threads
        self._is_over = False
        super().__init__(0, 0, thread_name_prefix)
        self.delay = 0
        """Steps for which the next job is kept."""
        self._tasks: list[FileJob] = []

    @property
    def _stop(self) -> bool:
        """True if `_worker` has to return, which waits for further work otherwise."""
        return self._is_over or not (self._load_q or self._store_q)

    @_stop.setter
    def _stop(self, is_over: bool) -> None:
        self._is_over = is_over

    def enqueue_load(self, job_id: int, n_tasks: int, tasks: Any) -> None:
        """Keep a job for some steps."""
        self._tasks.append(FileJob(self.delay, partial(super().enqueue_load, job_id, n_tasks, tasks)))

    def enqueue_store(self, job_id: int, n_tasks: int, tasks: Any) -> None:
        """Keep a job for some steps."""
        self._tasks.append(FileJob(self.delay, partial(super().enqueue_store, job_id, n_tasks, tasks)))

    def pass_step(self, *, loads_first: bool) -> None:
        """Let one step pass: do the work that is due."""
        for task in self._tasks:
            if not task.left:
                task.enqueue()
        self._tasks = [task._replace(left=task.left - 1) for task in self._tasks if task.left]
        self._worker(loads_first)

    def wait_idle(self) -> None:
        """Do all work."""
        for task in self._tasks:
            task.enqueue()
        self._tasks.clear()
        self._worker(True)
        super().wait_idle()


class Files(FileSystemTierManager):
    """vLLM's tier of files, without threads."""

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, **more: Any) -> None:
        self.store: TieredStore = offloading_spec.extra_config["store"]
        own = (fs, "DualQueueThreadPool", FilePool), (async_lookup, "threading", Threads)
        # Whether the folder's file system takes O_DIRECT is no property of the trace.
        with replaced(*own, (fs, "probe_o_direct", lambda folder: False)):
            super().__init__(offloading_spec, primary_kv_view, tier_type, **more)

    def _keep(self, job: Any) -> None:
        self._pool.delay = min(self.store.delays.get(job.req_context.req_id, 0), 1)

    def submit_store(self, job_metadata: Any) -> None:
        """Begin to write files."""
        self._keep(job_metadata)
        super().submit_store(job_metadata)

    def submit_load(self, job_metadata: Any) -> None:
        """Begin to read files, one of which another process may have removed or cut off."""
        self._keep(job_metadata)
        if self.store.has_faults and not job_metadata.job_id % FAULT_PERIOD:
            keys = list(job_metadata.keys)
            page = Path(self.file_mapper.get_file_name(keys[len(keys) // 2]))
            if job_metadata.job_id % 2:
                page.unlink(missing_ok=True)
            elif page.exists():
                page.write_bytes(page.read_bytes()[:-1])
        super().submit_load(job_metadata)

    def on_schedule_end(self, context: Any) -> None:
        """Let a step pass."""
        is_odd = bool(self.store.step % 2)
        super().on_schedule_end(context)
        if not is_odd:
            self._look_up()
        self._pool.pass_step(loads_first=is_odd)

    def _look_up(self) -> None:
        """Do the work of the thread that looks for files."""
        self._lookup_manager._lookup_queue.put(None)
        self._lookup_manager._worker()

    @property
    def is_looking(self) -> bool:
        """True while a file is looked for."""
        phases = {one.phase for one in self._lookup_manager._lookup_state.values()}
        return bool(phases & {LookupPhase.PENDING, LookupPhase.IN_FLIGHT})

    def leftovers(self) -> dict[str, int]:
        """Return what the tier keeps for requests and jobs. A lookup under way is forgotten when its result comes."""
        lookups = self._lookup_manager
        asked = [one for one in lookups._lookup_state.values() if one.phase is not LookupPhase.IN_FLIGHT]
        return {
            "lookups of the file tier": len(asked) + len(lookups._req_keys),
            "jobs of the file tier": len({*self._load_job_keys, *self._job_block_counts, *self._load_progress}),
        }


class TieredSpec(HostSpec, TieringOffloadingSpec):
    """vLLM's tiers, on memory of this process."""

    @contextmanager
    def _in_this_process(self) -> Iterator[None]:
        store: TieredStore = self.extra_config["store"]

        def region(
            engine_id: str, num_chunks: int, rank: int | None, kv_bytes_per_chunk: int, cpu_page_size: int
        ) -> HostRegion:
            del engine_id
            memory = store.memory_of(num_chunks * kv_bytes_per_chunk)
            return HostRegion(memory, num_chunks, rank, kv_bytes_per_chunk, cpu_page_size)

        with replaced((tiering, "SharedOffloadRegion", region)):
            yield

    def get_manager(self) -> Any:
        """Return the manager of all tiers."""
        with self._in_this_process():
            return super().get_manager()

    def create_worker(self, kv_caches: Any) -> Any:
        """Return vLLM's worker."""
        with self._in_this_process():
            return super().create_worker(kv_caches)


class TieredStore(OffloadedStore):
    """What vLLM itself stores in the host's memory and in files, and loads."""

    def __init__(self, config: Config, recorder: Recorder) -> None:
        super().__init__(config, recorder)
        self.has_faults = options_of(config).tier == "faults"
        self._folder = TemporaryDirectory(prefix="tier-")
        self._memory: mmap.mmap | None = None

    @property
    def spec(self) -> Mapping[str, Any]:
        """What vLLM's configuration says of the tiers."""
        files = {"type": Files.__name__, "module_path": __name__, "root_dir": self._folder.name}
        return {"spec_name": TieredSpec.__name__, "spec_module_path": __name__, "secondary_tiers": [files]}

    def memory_of(self, size: int) -> mmap.mmap:
        """Return the host's memory, of `size` bytes."""
        if self._memory is None:
            self._memory = mmap.mmap(-1, size)
        return self._memory

    def watch(self, scheduler: Any) -> None:
        """Keep the connector's scheduler side and the manager of the host's memory."""
        self.tiers = scheduler.manager
        super().watch(scheduler)
        self.manager.prepare_write = self.manager.prepare_store

    def manager_of(self, scheduler: Any) -> Any:
        """Return the manager of the host's memory."""
        return scheduler.manager.primary_tier

    @property
    def is_copying(self) -> bool:
        """True while files are looked for, read or written: each of these takes steps, and where a file is missing it
        begins anew."""
        [files] = self.tiers.secondary_tiers
        return bool(files.is_looking or self.tiers._jobs or self.tiers._pending_load_submissions)

    def leftovers(self) -> dict[str, int]:
        """Return what the connector and the tiers keep for requests and jobs."""
        [files] = self.tiers.secondary_tiers
        requests = {*self.tiers._req_state, *self.tiers._request_load_sources}
        return {
            **super().leftovers(),
            **files.leftovers(),
            "requests of the tiers": len(requests),
            "jobs of the tiers": len(self.tiers._jobs) + len(self.tiers._pending_load_submissions),
        }
