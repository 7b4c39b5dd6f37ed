"""Where states are written: checkpoints of mode all, scratch columns."""

from __future__ import annotations

from ....reference.layout import cdiv
from ..batch import Batch
from ..kernels import RowInput
from ..states import States


class AllModePartialBlock(States):
    """Checkpoints are counted from the start of the chunk, not on the grid of blocks.

    vLLM #34587, #34798: a column whose boundary fell inside a chunk kept an earlier state and was hashed as the
    boundary's.
    """

    def boundary_stops(self, group: int, inputs: RowInput) -> tuple[tuple[int, int, int], ...]:
        if self.layout.mode != "all" or inputs.drafts:
            return ()
        size, count = self.layout.groups[group].block_size, len(inputs.tokens)
        columns = [(tokens, (inputs.position + tokens) // size - 1) for tokens in range(size, count, size)]
        return tuple((tokens, column, self.batch.block(group, inputs.table_row, column)) for tokens, column in columns)


class AllSpecTableWidth(Batch):
    """The worker's table has no room for the scratch columns of drafts.

    vLLM #39809, #41233: kernels touch 1 + k consecutive columns, but the table was as wide as the tokens need; at
    full length the last columns alias the next row.
    """

    def table_width(self, group: int, max_tokens: int) -> int:
        return cdiv(max_tokens, self.layout.groups[group].block_size)


PARTS: dict[str, type] = {
    "all-mode-partial-block": AllModePartialBlock,
    "all-spec-table-width": AllSpecTableWidth,
}
