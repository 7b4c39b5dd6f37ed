"""Puts a broken part into an otherwise correct target."""

from __future__ import annotations

from ..host.block_pool import BlockPool
from ..host.block_tables import AttentionGroup, MambaGroup, WindowGroup
from ..host.cache_manager import CacheManager
from ..host.partial_hits import PartialHits
from ..host.scheduler import Scheduler
from ..host.sessions import Sessions
from ..offload.connector import Connector
from ..offload.external_store import ExternalStore
from ..session_events import SessionEvents
from ..tag_memory import Memory
from ..target import HybridTarget
from ..worker.accepted_counts import AcceptedCounts
from ..worker.drafter import Drafter
from ..worker.input_batch import Batch
from ..worker.model_runner import Runner
from ..worker.state_slots import States
from ..worker.tag_kernels import Kernels

_SLOTS: dict[type, str] = {
    BlockPool: "pool_class",
    CacheManager: "cache_class",
    Scheduler: "scheduler_class",
    Batch: "batch_class",
    Memory: "memory_class",
    Kernels: "kernels_class",
    States: "states_class",
    Drafter: "drafter_class",
    ExternalStore: "store_class",
    Connector: "connector_class",
    Runner: "runner_class",
    SessionEvents: "session_events_class",
}


def mutant(slug: str, part: type) -> type[HybridTarget]:
    """A target class in which `part` stands in for the correct class that it derives from."""
    title = part.__doc__
    if issubclass(part, AcceptedCounts):
        part = type("MutantBatch", (Batch,), {"accepted_class": part})
    elif issubclass(part, MambaGroup):
        part = type("MutantCache", (CacheManager,), {"mamba_group": part})
    elif issubclass(part, WindowGroup):
        part = type("MutantCache", (CacheManager,), {"window_group": part})
    elif issubclass(part, AttentionGroup):
        part = type("MutantCache", (CacheManager,), {"attention_group": part})
    elif issubclass(part, PartialHits):
        part = type("MutantCache", (CacheManager,), {"partial_hits": part})
    elif issubclass(part, Sessions):
        part = type("MutantScheduler", (Scheduler,), {"sessions_class": part})
    if issubclass(part, HybridTarget):
        return part
    slot = next(slot for base, slot in _SLOTS.items() if issubclass(part, base))
    return type(slug, (HybridTarget,), {"__doc__": title, slot: part})
