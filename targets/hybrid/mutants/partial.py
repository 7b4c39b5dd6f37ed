"""Keys inside blocks: when they are retired, and the copies that keep them true."""

from __future__ import annotations

from ...base.observe import Record
from ..groups import Span
from ..partial import OF_THE_CACHE, PartialHits
from ..plan import PageCopy
from ..states import States


class StalePartialHashResurrection(PartialHits):
    """The partial key of the prompt's boundary comes back after it was retired.

    vLLM #49125: the boundary is fixed, so every later publication inserted its key again; for attention the bytes are
    still right, the state of a mamba block has moved on.
    """

    def ends_at_boundary(self, span: Span) -> bool:
        return 0 < span.partial <= span.known


class DeferredCopyDropped(States):
    """A copy that is pending for a slot is dropped when the slot is replaced.

    SGLang, after #24954: a checkpoint donated the active slot to the cache and took another one; the copy was
    registered under the slot of before, and nobody carried it out for the new one.
    """

    def copy_page(self, step: int, name: str, copy: PageCopy, records: list[Record]) -> None:
        if copy.to_column != OF_THE_CACHE:
            super().copy_page(step, name, copy, records)


PARTS: dict[str, type] = {
    "stale-partial-hash-resurrection": StalePartialHashResurrection,
    "deferred-cow-clear-dropped-on-slot-replacement": DeferredCopyDropped,
}
