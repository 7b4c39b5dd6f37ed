"""What must be gone once no request is alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .target import HybridTarget


def count_leftovers(target: HybridTarget) -> dict[str, int]:
    """Sizes of everything that is kept for single requests."""
    groups = target.cache.groups
    return {
        "requests": len(target.scheduler.requests),
        "tables": sum(len(group.tables) for group in groups),
        "publication counters": sum(len(group.num_published) for group in groups),
        "worker rows": len(target.batch.names),
        "worker requests": len(target.runner.requests),
        "state columns": len(target.states.columns),
        "kept accepted counts": len(target.batch.accepted.kept),
        "drafter slots": len(target.drafter.slots),
        "mirrored tables": len(target.connector.mirror),
    }
