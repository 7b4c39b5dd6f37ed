"""Puts a broken part into an otherwise correct target."""

from __future__ import annotations

from ..accepted import AcceptedCounts
from ..batch import Batch
from ..cache import CacheManager
from ..connector import Connector
from ..drafter import Drafter
from ..groups import AttentionGroup, MambaGroup, WindowGroup
from ..kernels import Kernels
from ..memory import Memory
from ..partial import PartialHits
from ..pool import BlockPool
from ..runner import Runner
from ..scheduler import Scheduler
from ..sessions import Sessions
from ..states import States
from ..store import Store
from ..target import HybridTarget
from ..turns import Turns

_SLOTS: dict[type, str] = {
    BlockPool: "pool_class",
    CacheManager: "cache_class",
    Scheduler: "scheduler_class",
    Batch: "batch_class",
    Memory: "memory_class",
    Kernels: "kernels_class",
    States: "states_class",
    Drafter: "drafter_class",
    Store: "store_class",
    Connector: "connector_class",
    Runner: "runner_class",
    Turns: "turns_class",
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
