"""Broken drafters: the slots of dummy batches."""

from __future__ import annotations

from ..worker.drafter import Drafter


class DraftStepsThroughStaleRows(Drafter):
    """A dummy batch maps its rows to request slots as if they were live.

    vLLM #56734: the dummy mapping was 0, 1, 2, ...; the drafter's later steps computed slots from the stale tables
    of those requests and wrote KV into blocks that other requests own by now.
    """

    def dummy_mapping(self, rows: int) -> list[int]:
        return list(range(rows))


PARTS: dict[str, type] = {
    "draft-steps-through-stale-rows": DraftStepsThroughStaleRows,
}
