"""Builds target classes with one broken part in an otherwise correct target."""

from __future__ import annotations

from ..host.cache_manager import CacheManager
from ..host.scheduler import Scheduler
from ..target import HybridTarget
from ..worker.input_batch import InputBatch

OWNERS = (InputBatch, CacheManager, Scheduler, HybridTarget)
"""Classes that name the classes of their parts; the last one has all others as parts."""


def mutant(slug: str, part: type) -> type[HybridTarget]:
    """Return a target class in which `part` replaces the correct class that it derives from."""
    built = part
    for owner in OWNERS:
        parts = {name: base for name, base in vars(owner).items() if isinstance(base, type) and issubclass(built, base)}
        if parts:
            slot = max(parts, key=lambda name: len(parts[name].__mro__))  # a window's group is one of attention, too
            built = type(slug, (owner,), {"__doc__": part.__doc__, slot: built})
    assert issubclass(built, HybridTarget)
    return built
