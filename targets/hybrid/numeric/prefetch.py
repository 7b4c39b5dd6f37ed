"""Uploads for a step, started when it is planned, while the kernels of earlier steps run.

Dead blocks, blocks to zero, and pages to load into the pool. The executed step determines which of them are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ....reference.prefix_cache import Key
from ..plan import Plan
from .kernels.staging import Slot, Staging
from .offloaded_pages import OffloadedPages
from .pool import BytePool, pack_dead_blocks


@dataclass(slots=True)
class Prefetch:
    """Uploads for one step, until it has run.

    dead   dead blocks, see `pack_dead_blocks`
    zero   blocks to zero, and their pages
    pages  pages that the plan loads, by key and layer
    """

    dead: Slot | None = None
    zero: tuple[Sequence[int], Slot] | None = None
    pages: dict[tuple[Key, int], Slot] = field(default_factory=dict)

    @classmethod
    def of(
        cls, plan: Plan, dead: Mapping[int, int], staging: Staging, pool: BytePool, offloaded: OffloadedPages
    ) -> Prefetch:
        """Start all uploads for a plan."""
        prefetch = cls()
        if dead:
            prefetch.dead = staging.put(pack_dead_blocks(dead))
        if plan.zero:
            prefetch.zero = list(plan.zero), staging.put(np.array(pool.pages_of(plan.zero), np.int64))
        keys = [load.key for row in plan.rows.values() for load in row.loads]
        for key in dict.fromkeys(keys):
            for layer in offloaded.pages.get(key, ()):
                prefetch.pages[key, layer] = offloaded.send(key, layer, staging)
        return prefetch

    def release(self) -> None:
        """Release the upload slots after the step was launched."""
        slots = [self.dead, self.zero and self.zero[1], *self.pages.values()]
        for slot in slots:
            if slot:
                slot.release()
