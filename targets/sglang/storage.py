"""Storage behind HiCache's host: SGLang's controller with its `HiCacheFile`, in a folder of this engine's own.

The controller has four threads: one asks the storage how much of a prefix it has, one reads it, one tells the
scheduler what was read, and one writes. None is started here. Each runs one operation of its queue when its turn has
come, in this thread, so that a trace decides what the scheduler sees at which step. Time is counted in turns of the
scheduler.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from .compat.sizes import Sizes

EACH = {"reads that fail": 7, "pages that are gone": 5, "pages that are cut": 4, "writes that fail": 6}
"""One of how many operations of a faulty storage fails, and how."""
THREADS = (
    ("prefetch_thread", "prefetch_queue"),
    ("prefetch_io_aux_thread", "prefetch_buffer"),
    ("prefetch_sync_thread", "prefetch_sync_queue"),
    ("backup_thread", "backup_queue"),
)
"""The controller's threads, each with the queue that it serves."""


def can_hash() -> bool:
    """Return True if SGLang's hash of pages runs here; compiles it first, once for a release.

    A first compilation takes half a minute or more, which would pass for a hang in the middle of a trace.
    """
    try:
        from sglang.srt.mem_cache.cpp_utils.native_hash import get_native_hash
    except ImportError:  # another release hashes otherwise
        return True
    try:
        get_native_hash([1], None)
    except RuntimeError:  # "Failed to load HiCache native hash extension": no compiler, or no header of OpenSSL
        return False
    return True


class Thread:
    """In place of a thread: what it would run."""

    def __init__(self, target: Callable[[], None], daemon: bool = True) -> None:
        self.target = target

    def start(self) -> None:
        """Do nothing: `Turns.run` runs it."""

    def join(self, timeout: float | None = None) -> None:
        """Do nothing."""

    def is_alive(self) -> bool:
        """Return False."""
        return False


class Fault(OSError):
    """A storage does not answer."""


class Turns:
    """In place of the event that ends the threads: it is set once the thread that runs has taken an operation."""

    def __init__(self) -> None:
        self.running = self.over = False
        self.raised: list[BaseException] = []
        """What an operation raised besides faults of the storage: SGLang logs it and goes on."""

    def note(self, text: str, *arguments: Any) -> None:
        """Note the exception that SGLang logs."""
        error = sys.exc_info()[1]
        if error is not None and not isinstance(error, Fault):
            self.raised.append(error)

    def is_set(self) -> bool:
        """Return True if the thread that runs has to end."""
        return self.over

    def set(self) -> None:
        """Do nothing: no thread outlives its turn."""

    def clear(self) -> None:
        """Do nothing."""

    def run(self, thread: Thread) -> None:
        """Let a thread run one operation of its queue."""
        self.running = True
        try:
            thread.target()
        finally:
            self.running = self.over = False
        if self.raised:
            raise self.raised[0]

    def queues(self) -> type[Queue[Any]]:
        """Return the class of the queues that threads wait for: one turn takes one operation."""
        turns = self

        class Operations(Queue[Any]):
            def get(self, block: bool = True, timeout: float | None = None) -> Any:
                if turns.over:
                    raise Empty
                item = super().get(block=False)
                turns.over = turns.running
                return item

            def empty(self) -> bool:
                return turns.over or super().empty()

        return Operations


class FileStorage:
    """The storage of one engine."""

    def __init__(self, sizes: Sizes) -> None:
        self.pace = sizes.storage_pace
        self.folder = TemporaryDirectory(prefix="hicache-")
        self.turns = Turns()
        self.faulty = sizes.storage_limits == "faults"
        self.first = sizes.pages
        self.controller: Any = None
        self.clock = 0
        self.has_gaps = False
        """True once the host may hold what it lacks: a client has cleared it, or detached it for a while."""
        self._next = 0

    def prepare(self, module: Any) -> None:
        """Put stand-ins in the place of the threads of the module that the controller is made from."""
        from sglang.srt.environ import envs
        from sglang.srt.mem_cache.hybrid_cache import hybrid_cache_controller
        from sglang.srt.mem_cache.unified_cache import storage_attachment
        from sglang.srt.utils import poll_timer

        envs.SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR.set(self.folder.name)
        threading = module.threading
        module.threading = SimpleNamespace(Thread=Thread, Event=lambda: self.turns, Lock=threading.Lock)
        module.Queue = self.turns.queues()
        for one in (module, hybrid_cache_controller, storage_attachment):
            one.logger.exception = self.turns.note
        poll_timer.time = SimpleNamespace(perf_counter=lambda: float(self.clock))

    def attach(self, controller: Any) -> None:
        """Take over the threads of a controller."""
        self.controller = controller
        if self.faulty:
            fail(controller.storage_backend, self.first)

    @property
    def is_attached(self) -> bool:
        """True unless a client has detached it: the threads have ended, with what was in their queues."""
        return bool(self.controller.enable_storage)

    def after_switch(self) -> None:
        """Note that it was detached, or take over the threads once it is attached again."""
        self.has_gaps = True
        if self.turns.raised:
            raise self.turns.raised[0]
        if self.is_attached:
            self.attach(self.controller)

    def _ready(self) -> list[Any]:
        if not self.is_attached:
            return []
        return [getattr(self.controller, name) for name, queue in THREADS if getattr(self.controller, queue).qsize()]

    def tick(self, idle: bool) -> None:
        """End a turn. A scheduler that has nothing to run turns until the storage is done."""
        self.clock += 1
        if idle or self.pace == "all":
            self.finish()
            return
        threads = self._ready()
        if self.pace == "one" and threads:
            self._next += 1
            threads = [threads[self._next % len(threads)]]
        for thread in threads:
            self.turns.run(thread)

    def finish(self) -> None:
        """Run all operations."""
        while threads := self._ready():
            self.turns.run(threads[0])

    def has(self, page: str) -> bool:
        """Return True if keys and values of a page are in the storage, given by the page's hash."""
        backend = self.controller.storage_backend
        return Path(backend.file_path, f"{backend._get_suffixed_key(page)}.bin").exists()

    def miscounted(self) -> int:
        """Return by how many bytes what the evictor counts differs from the size of the files."""
        backend = self.controller.storage_backend
        if backend is None or not backend._evictor.enabled:
            return 0
        counted: int = backend._evictor._total_bytes
        return abs(counted - sum(page.stat().st_size for page in Path(backend.file_path).iterdir() if page.is_file()))

    def places(self) -> Iterator[tuple[Any, Any]]:
        """Yield (pool, places of the host that belong to prefetches or wait to be released), the pool None for KV. What
        was in the queues of a storage that is detached comes back no more."""
        controller = self.controller
        if not self.is_attached:
            return
        waiting = [item.operation for item in waiting_in(controller.prefetch_sync_queue, controller.ack_prefetch_queue)]
        unfinished = {id(one): one for one in (*waiting_in(controller.prefetch_buffer), *waiting)}
        for operation in unfinished.values():
            yield None, operation.host_indices[operation.completed_tokens :]
            for transfer in operation.pool_transfers or () if not operation.pool_transfers_done else ():
                if transfer.host_indices is not None:
                    yield transfer.name, transfer.host_indices
        for places in waiting_in(controller.host_mem_release_queue):
            yield None, places
        for name, queue in controller.extra_host_mem_release_queues.items():
            for places in waiting_in(queue):
                yield name, places


def waiting_in(*queues: Any) -> list[Any]:
    """Return what waits in queues."""
    return [item for queue in queues for item in tuple(queue.queue) if item is not None]


def fail(backend: Any, first: int) -> None:
    """Let some operations of a storage fail: a read raises, a page is gone or was cut short, a write is refused.

    first  offset of the failures, so that they differ between pools of different sizes
    """
    get, write, folder = backend.get, backend.set, Path(backend.file_path)
    counts = {what: first % each for what, each in EACH.items()}

    def is_next(what: str) -> bool:
        counts[what] += 1
        return counts[what] % EACH[what] == 0

    def read(key: str, target_location: Any, target_sizes: Any = None) -> Any:
        if is_next("reads that fail"):
            raise Fault("the storage does not answer")
        if is_next("pages that are gone"):
            return None
        page = folder / f"{backend._get_suffixed_key(key)}.bin"
        if is_next("pages that are cut") and page.exists():
            os.truncate(page, page.stat().st_size // 2)
        try:
            return get(key, target_location, target_sizes)
        except OSError as error:
            raise Fault(str(error)) from error

    def refuse(key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> Any:
        return False if is_next("writes that fail") else write(key, value, target_location, target_sizes)

    backend.get, backend.set = read, refuse
