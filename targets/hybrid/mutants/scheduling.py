"""How many tokens a request gets in a step."""

from __future__ import annotations

from ..plan import Request
from ..scheduler import Scheduler


class ResumedRequestNotAligned(Scheduler):
    """Only prompts are cut on the grid of states, not what a preempted request computes again.

    vLLM #33706: a resumed request prefills prompt and outputs; its chunks ended anywhere, but were hashed on the grid.
    """

    def align_chunk(self, request: Request, count: int) -> int:
        resumed = len(request.tokens) > request.prompt_length
        return count if resumed else super().align_chunk(request, count)


class AlignStarvation(Scheduler):
    """A chunk that cannot reach the next boundary waits for a larger budget, even where none will come.

    vLLM #40709, #45414: the end was rounded down to the grid whenever a block fits the largest prefill; a cap below
    one block gives nothing, for ever.
    """

    def align_chunk(self, request: Request, count: int) -> int:
        end, grid = request.high + count, self.chunk_grid
        unfinished = end < max(request.prompt_length, len(request.tokens) - 1)
        aligned = self.config.mamba_cache_mode == "align" and self.cache.layout.prefix_caching
        if aligned and unfinished and end // grid * grid <= request.high and grid <= self.config.max_num_batched_tokens:
            return 0
        return super().align_chunk(request, count)


PARTS: dict[str, type] = {
    "resumed-request-not-aligned": ResumedRequestNotAligned,
    "align-starvation": AlignStarvation,
}
