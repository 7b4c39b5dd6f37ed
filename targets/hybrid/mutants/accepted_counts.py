"""Broken counts of accepted drafts: wrong row or wrong time."""

from __future__ import annotations

from collections.abc import Sequence

from ..worker.accepted_counts import AcceptedCounts


class AcceptedCountReadBeforeDma(AcceptedCounts):
    """The host reads accepted counts without waiting for their copy.

    vLLM #36013: the copy is non-blocking, so a fast host still reads the counts of the previous step.
    """

    def wait(self) -> None:
        while len(self.copies) > 1:
            self.names, self.host = self.copies.pop(0)


class AcceptedCountDoublePermuted(AcceptedCounts):
    """Accepted counts move with their rows and are then gathered by former position as well.

    vLLM #51571, #51599, #53919: the copy is in the row order of its step; the rows, and the values with them, had
    already moved when the gather moved them again.
    """

    def gather(self, names: Sequence[str]) -> None:
        before = self.names
        super().gather(names)
        if self.names != before:
            self.names = before
            super().gather(names)


class AcceptedCountZero(AcceptedCounts):
    """A row that sampled nothing has minus one accepted draft.

    vLLM #41190, #48475, #50021: kernels index with the count minus one; a count of 0 points left of the row.
    """

    def drafts_among(self, sampled: int) -> int:
        return sampled - 1


class ReplayBuffersNotReset(AcceptedCounts):
    """A new request in a row begins with the counts of the one that had the row before.

    SGLang #14509, #14841: per-slot buffers of speculation were not reset when a slot changed hands.
    """

    def gather(self, names: Sequence[str]) -> None:
        before = [counts.copy() for counts in self.host]
        fresh = [row for row, name in enumerate(names) if name not in self.names]
        super().gather(names)
        for counts, stale in zip(self.host, before, strict=True):
            for row in fresh:
                counts[row] = stale[row]


PARTS: dict[str, type] = {
    "accepted-count-read-before-dma": AcceptedCountReadBeforeDma,
    "accepted-count-double-permuted": AcceptedCountDoublePermuted,
    "accepted-count-zero": AcceptedCountZero,
    "replay-buffers-not-reset-on-slot-reuse": ReplayBuffersNotReset,
}
