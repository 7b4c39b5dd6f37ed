"""Broken persistent batches: rows of ended requests, table widths, shared metadata buffers."""

from __future__ import annotations

from collections.abc import Sequence

from ....reference.layout import cdiv
from ..worker.input_batch import InputBatch, StateIndices


class FinishedRowNotCleared(InputBatch):
    """The row of a finished request keeps its block ids.

    vLLM #37728: a dummy run of an idle rank reads column 0 of the stale rows and writes state into blocks that are
    free and still reachable by hits.
    """

    def clear_row(self, row: int) -> None:
        pass


class MetadataBufferAliased(InputBatch):
    """Metadata is built for the first of several equal groups and reused for the others, whose columns stay stale.

    vLLM #34865, #34874: mode all; the captured graph of a later group read the column indices of an earlier step.
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


class RowRecycledUnderChunkedRequest(InputBatch):
    """The row of a request between two chunks of its prompt counts as free.

    SGLang #17850: it was released and assigned to a new request, which overwrote the blocks that the next chunk reads.
    """

    def add(self, name: str, table: Sequence[Sequence[int]], prompt_length: int) -> None:
        super().add(name, table, prompt_length)
        for row in range(len(self.names) - 1):
            if self.is_prefill(row):
                for group, blocks in enumerate(table):
                    start = row * self.widths[group]
                    self.tables[group][start : start + len(blocks)] = blocks
                return


class AllSpecTableWidth(InputBatch):
    """The worker's table has no room for the scratch columns of drafts.

    vLLM #39809, #41233: kernels touch 1 + k consecutive columns, but the table was as wide as the tokens need; at
    full length the last columns alias the next row.
    """

    def table_width(self, group: int, max_tokens: int) -> int:
        return cdiv(max_tokens, self.layout.groups[group].block_size)


class VacatedRowNotCleared(InputBatch):
    """A request that moves to another row leaves its blocks in the former one.

    vLLM 0.22 to 0.26, kin: #37728. The row of a request that ended was cleared, but by moving the last one there; a
    dummy run writes to the blocks in the vacated row.
    """

    def remove(self, name: str) -> None:
        last = len(self.names) - 1
        moves = name in self.names and self.names[last] != name
        left = [self.row_blocks(group, last, width) for group, width in enumerate(self.widths)] if moves else []
        super().remove(name)
        for table, blocks in zip(self.tables, left, strict=False):
            table[last * len(blocks) : (last + 1) * len(blocks)] = blocks


PARTS: dict[str, type] = {
    "finished-row-not-cleared": FinishedRowNotCleared,
    "metadata-buffer-aliased-to-first-group": MetadataBufferAliased,
    "req-to-token-row-recycled-under-chunked-req": RowRecycledUnderChunkedRequest,
    "all-spec-table-width": AllSpecTableWidth,
    "vacated-row-not-cleared": VacatedRowNotCleared,
}
