"""Rows of the batch: what padding sees, what captured graphs replay, which counts belong to whom."""

from __future__ import annotations

from collections.abc import Sequence

from ..accepted import AcceptedCounts
from ..batch import Batch, StateIndices
from ..kernels import RowInput
from ..plan import Plan, ScheduledRow
from ..runner import Runner
from ..states import States


class PaddedRowFakePrefill(Runner):
    """Padding rows are asked whether they prefill, and answer with the counters of whoever left that row.

    vLLM #41841, #41873: a vacated row of a request that was preempted in its prompt makes the batch one with
    prefills; the buffer that the graph reads is then not refreshed, and live rows use the slots of an earlier step.
    """

    def prefilling_rows(self, inputs: Sequence[RowInput], padded: int) -> list[bool]:
        rows = [one.table_row for one in inputs] + list(range(len(inputs), padded))
        return [self.batch.is_prefill(row) for row in rows]


class PrefillDispatchedAsUniformDecode(Runner):
    """A batch is a uniform decode if its shape is that of one.

    vLLM #53051, #49918, #47123: prompts of exactly 1 + k tokens match; the graph for verification is replayed with
    index buffers that nobody refreshed.
    """

    def fits_graph(self, rows: Sequence[ScheduledRow], inputs: Sequence[RowInput]) -> bool:
        uniform = all(len(one.tokens) == 1 + self.config.num_speculative_tokens for one in inputs)
        return uniform and len(rows) <= max(self.config.graph_sizes, default=0)


class PaddingAliasesParkedRequest(Runner):
    """Padding rows keep the indices that their rows happen to hold.

    SGLang #13151, #13278, #9873: padding reused arbitrary indices instead of a sentinel; a live request that is not
    in this batch lost its state to them.
    """

    def live_mask(self, live: int, padded: int) -> list[bool]:
        return [True] * padded


class PaddingSkippedAtBatchOne(Runner):
    """A batch with one live row is not masked.

    transformers #46773: the mask was applied only to batches of more than one.
    """

    def live_mask(self, live: int, padded: int) -> list[bool]:
        return [True] * padded if live == 1 else super().live_mask(live, padded)


class StaleDummyMask(Runner):
    """The mask of live rows is that of the batch before.

    SGLang #17492: it was not computed again when the order or number of rows changed.
    """

    mask: Sequence[bool] = ()

    def live_mask(self, live: int, padded: int) -> list[bool]:
        now = super().live_mask(live, padded)
        before, self.mask = self.mask, now
        return [*before, *now[len(before) :]][:padded]


class MetadataBufferAliased(Batch):
    """Metadata is built for the first of several equal groups and re-targeted for the others, all but the columns.

    vLLM #34865, #34874: mode all; the graph of a later group went on reading column indices of an earlier step.
    """

    def capture(
        self, group: int, indices: Sequence[StateIndices], prefilling: Sequence[bool]
    ) -> Sequence[StateIndices]:
        stale = list(self.captured[group][: len(indices)])
        seen = super().capture(group, indices, prefilling)
        if self.layout.mode != "all" or self.layout.groups.index(self.layout.groups[group]) == group:
            return seen
        return [
            new if new.table_row < 0 else self.look_up(
                group, new.table_row, (old.source_column, old.conv_column, old.run_column), old.offset,
                len(new.outputs) - 1,
            )
            for old, new in zip(stale, seen, strict=True)
        ]  # fmt: skip


class RowRecycledUnderChunkedRequest(Batch):
    """The row of a request between two chunks of its prompt counts as free.

    SGLang #17850: it was given back and handed to a new request, which overwrote what the next chunk reads.
    """

    def add(self, name: str, table: Sequence[Sequence[int]], prompt_length: int) -> None:
        super().add(name, table, prompt_length)
        for row in range(len(self.names) - 1):
            if self.is_prefill(row):
                for group, blocks in enumerate(table):
                    start = row * self.widths[group]
                    self.tables[group][start : start + len(blocks)] = blocks
                return


class AcceptedCountReadBeforeDma(AcceptedCounts):
    """The host reads accepted counts without waiting for their copy.

    vLLM #36013: the copy is non-blocking, so a fast host still finds the counts of the step before.
    """

    def wait(self) -> None:
        while len(self.copies) > 1:
            self.names, self.host = self.copies.pop(0)


class AcceptedCountDoublePermuted(AcceptedCounts):
    """Accepted counts move with their rows and are then gathered by former position as well.

    vLLM #51571, #51599, #53919: the copy lands in the row order of its step; the rows, and with them the values, had
    moved already when the gather moved them again.
    """

    def gather(self, names: Sequence[str]) -> None:
        before = self.names
        super().gather(names)
        if self.names != before:
            self.names = before
            super().gather(names)


class AcceptedCountZero(AcceptedCounts):
    """A row that sampled nothing has minus one accepted draft.

    vLLM #41190, #48475, #50021: kernels index with the count less one; a count of zero points left of the row.
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


class StaleStateIdxAfterReset(States):
    """Where a request's state lies is forgotten only when it ends or when planning preempts it.

    vLLM #35157: resetting the prefix cache preempts by force; the requests come back with a shorter table and the
    old column.
    """

    def forget(self, plan: Plan) -> None:
        for name in (*plan.finished, *plan.preempted, *plan.rolled_back):
            self.columns.pop(name, None)
            self.batch.accepted.kept.pop(name, None)


PARTS: dict[str, type] = {
    "padded-row-fake-prefill": PaddedRowFakePrefill,
    "prefill-dispatched-as-uniform-decode": PrefillDispatchedAsUniformDecode,
    "padding-aliases-parked-live-request": PaddingAliasesParkedRequest,
    "padding-skipped-at-batch-1": PaddingSkippedAtBatchOne,
    "stale-dummy-mask": StaleDummyMask,
    "metadata-buffer-aliased-to-first-group": MetadataBufferAliased,
    "req-to-token-row-recycled-under-chunked-req": RowRecycledUnderChunkedRequest,
    "accepted-count-read-before-dma": AcceptedCountReadBeforeDma,
    "accepted-count-double-permuted": AcceptedCountDoublePermuted,
    "accepted-count-zero": AcceptedCountZero,
    "replay-buffers-not-reset-on-slot-reuse": ReplayBuffersNotReset,
    "stale-state-idx-after-reset": StaleStateIdxAfterReset,
}
