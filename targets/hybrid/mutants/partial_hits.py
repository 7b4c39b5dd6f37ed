"""Broken hits inside a block."""

from __future__ import annotations

from ..host.block_tables import Span
from ..host.partial_hits import PartialHits


class StalePartialHashResurrection(PartialHits):
    """The partial key of the prompt's boundary comes back after it was retired.

    vLLM #49125: the boundary is fixed, so every later publication inserted its key again. For attention the bytes are
    still right, but the state of a mamba block has advanced.
    """

    def ends_at_boundary(self, span: Span) -> bool:
        return 0 < span.partial <= span.known


PARTS: dict[str, type] = {
    "stale-partial-hash-resurrection": StalePartialHashResurrection,
}
