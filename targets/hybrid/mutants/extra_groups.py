"""Groups with a block size or a table of their own: a drafter's attention, sliding windows, mixed grids."""

from __future__ import annotations

from collections.abc import Sequence

from ....reference.prefix_cache import Key
from ..drafter import Drafter
from ..groups import MambaGroup
from ..pool import NULL_BLOCK
from ..scheduler import Scheduler


class SplitOnWrongGrid(Scheduler):
    """Chunks end on the grid of the smallest blocks instead of that of the states.

    vLLM #54076: the split used the cache's block size, which is the minimum over all groups; with a drafter's small
    blocks the states of chunk ends are off their grid and are hashed as those of boundaries.
    """

    def find_chunk_grid(self) -> int:
        return min(group.block_size for group in self.cache.groups)


class DraftStepsThroughStaleRows(Drafter):
    """A dummy batch maps its rows to request slots as if they were live.

    vLLM #56734: the dummy mapping was 0, 1, 2, ...; the drafter's later steps computed slots from the stale tables
    of those requests and wrote keys and values into blocks that others have by now.
    """

    def dummy_mapping(self, rows: int) -> list[int]:
        return list(range(rows))


class MinAcrossComponents(MambaGroup):
    """A state is published under the longest prefix that all groups can name.

    SGLang #38815: the inserted length was the minimum over the components, but a state cannot be sliced: a later
    state stood under an earlier key.
    """

    def publish_column(self, block: int, column: int, tags: Sequence[int]) -> None:
        unit = self.layout.hit_unit
        depth = (column + 1) * self.block_size // unit * unit
        if self.mode != "none" and depth and block != NULL_BLOCK and block not in self.pool.labels:
            self.pool.publish(block, Key(self.index, depth, tags[depth]))


PARTS: dict[str, type] = {
    "split-on-wrong-grid": SplitOnWrongGrid,
    "draft-steps-through-stale-rows": DraftStepsThroughStaleRows,
    "min-across-components-attaches-later-state": MinAcrossComponents,
}
