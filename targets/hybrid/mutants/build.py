"""Builds target classes with one broken part in an otherwise correct target."""

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
from ..tag_memory import TagMemory
from ..target import HybridTarget
from ..worker.accepted_counts import AcceptedCounts
from ..worker.drafter import Drafter
from ..worker.input_batch import InputBatch
from ..worker.model_runner import ModelRunner
from ..worker.state_slots import StateSlots
from ..worker.tag_kernels import TagKernels

_CLASS_ATTRIBUTES: dict[type, str] = {
    BlockPool: "pool_class",
    CacheManager: "cache_class",
    Scheduler: "scheduler_class",
    InputBatch: "batch_class",
    TagMemory: "memory_class",
    TagKernels: "kernels_class",
    StateSlots: "states_class",
    Drafter: "drafter_class",
    ExternalStore: "store_class",
    Connector: "connector_class",
    ModelRunner: "runner_class",
    SessionEvents: "session_events_class",
}


def mutant(slug: str, part: type) -> type[HybridTarget]:
    """Return a target class in which `part` replaces the correct class that it derives from."""
    title = part.__doc__
    if issubclass(part, AcceptedCounts):
        part = type("MutantBatch", (InputBatch,), {"accepted_class": part})
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
    slot = next(slot for base, slot in _CLASS_ATTRIBUTES.items() if issubclass(part, base))
    return type(slug, (HybridTarget,), {"__doc__": title, slot: part})
