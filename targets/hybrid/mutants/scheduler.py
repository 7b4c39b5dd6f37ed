"""Broken schedulers: chunk ends, admission and hits, results after a reset, the end of an answer, grammars."""

from __future__ import annotations

from collections.abc import Sequence

from ..host.cache_manager import Allocation, Hit
from ..host.scheduler import Scheduler
from ..plan import Load, Request, ScheduledRow


class LoadBackAbortPublishesSlotEarly(Scheduler):
    """A request gets its slots before the load into them is committed, and keeps them after an abort.

    SGLang #30986: the destination was published on the request before the copy from the host was committed; after an
    abort it resumed from a slot with the content of a previous owner.
    """

    def commit_loads(self, request: Request, hit: Hit, allocation: Allocation) -> list[Load] | None:
        return super().commit_loads(request, hit, allocation) if self.connector.commit(request.name) else []


class SplitOnWrongGrid(Scheduler):
    """Chunks end on the grid of the smallest blocks instead of that of the states.

    vLLM #54076: the split used the cache's block size, which is the minimum over all groups; with a drafter's small
    blocks the states of chunk ends are off their grid and are hashed as those of boundaries.
    """

    def find_chunk_grid(self) -> int:
        return min(group.block_size for group in self.cache.groups)


class ResumedRequestNotAligned(Scheduler):
    """Only prompts are cut on the grid of states, not what a preempted request computes again.

    vLLM #33706: a resumed request prefills prompt and outputs; its chunks ended anywhere, but were hashed on the grid.
    """

    def align_chunk(self, request: Request, count: int) -> int:
        resumed = len(request.tokens) > request.prompt_length
        return count if resumed else super().align_chunk(request, count)


class AlignStarvation(Scheduler):
    """A chunk that cannot reach the next boundary waits for a larger budget, even if none can come.

    vLLM #40709, #45414: the end was rounded down to the grid whenever a block fits the largest prefill; a cap below
    one block then never schedules a token.
    """

    def align_chunk(self, request: Request, count: int) -> int:
        end, grid = request.high + count, self.chunk_grid
        unfinished = end < max(request.prompt_length, len(request.tokens) - 1)
        aligned = self.config.mamba_cache_mode == "align" and self.cache.layout.prefix_caching
        if aligned and unfinished and end // grid * grid <= request.high and grid <= self.config.max_num_batched_tokens:
            return 0
        return super().align_chunk(request, count)


class ResetWithResultsInFlight(Scheduler):
    """The first token after a preemption is dropped, as if it had been in flight then.

    vLLM 0.14 to 0.21, no public issue known: `reset_prefix_cache` marked every running request to discard its next
    output, although none of it may have been in flight; a request with one token left never ended.
    """

    def settle(self, row: ScheduledRow, sampled: Sequence[int]) -> tuple[list[int], bool]:
        request = self.requests.get(row.name)
        resumed = request is not None and row.epoch == request.epoch and row.epoch > 0 and row.fresh is not None
        return super().settle(row, () if resumed and self.config.async_depth else sampled)


class RejectionAfterReset(Scheduler):
    """Drafts that were rejected before a preemption are subtracted from the progress of the resumed request.

    vLLM 0.18 to 0.24, no public issue known: after `reset_prefix_cache` the results of the step in flight still lowered
    `num_computed_tokens`, and the worker computed a token twice. Here the scheduler's own check notices it.
    """

    def settle(self, row: ScheduledRow, sampled: Sequence[int]) -> tuple[list[int], bool]:
        request = self.requests.get(row.name)
        if request is not None and request in self.running and request.epoch != row.epoch:
            rejected = row.drafts - max(len(sampled) - 1, 0)
            request.low, request.high = request.low - rejected, request.high - rejected
        return super().settle(row, sampled)


class StopTokenAmongDrafts(Scheduler):
    """A stop token is seen only where it is the last token of a step, not among accepted drafts.

    A class of bugs, no public issue known: the check looks at the last sampled token alone.
    """

    def within_answer(self, request: Request, sampled: Sequence[int]) -> list[int]:
        return list(sampled)[: request.total - len(request.tokens)]


class StopTokenBeforeMinTokens(Scheduler):
    """A stop token ends the answer before its minimum number of tokens.

    A class of bugs: the sampler must not choose a stop token there, and nothing else looks at the number. vLLM #47489,
    #49521 and #51299 changed what its scheduler does about it.
    """

    def withheld(self, request: Request) -> tuple[tuple[int, ...], int]:
        return (), 0


class PromptLogprobsReadTheCache(Scheduler):
    """A request with prompt log-probabilities gets the blocks of a prefix hit.

    A class of bugs, no public issue known: what is hit is not computed, and its log-probabilities are missing. vLLM
    skips the lookup for such requests (`skip_reading_prefix_cache`).
    """

    def find_hit(self, request: Request) -> Hit:
        return self.cache.find_hit(request.tags, len(request.tokens))


class SkippedHitStillLoads(Scheduler):
    """A request that may not read the prefix cache still has its prompt loaded from outside the pool.

    A class of bugs, no public issue known: the pool's lookup is skipped, but not the connector's. vLLM 0.33.0 asks the
    connector and then has to throw the answer away.
    """

    def extend_hit(self, request: Request, hit: Hit) -> Hit:
        external = self.connector.find(request.tags, hit.length, len(request.tokens))
        return self.cache.extend_hit(hit, request.tags, external) if external else super().extend_hit(request, hit)


class UncompiledGrammarRuns(Scheduler):
    """A request whose grammar does not compile is answered as if it had none.

    A class of bugs, no public issue known: the error is logged, and the request goes on without its grammar. vLLM ends
    it with an error (`grammar_compile_error_reqs`).
    """

    def compile_grammars(self) -> list[str]:
        for name in super().compile_grammars():
            self.enqueue(self.requests[name])
        return []


class UncompiledGrammarWaits(Scheduler):
    """A request whose grammar does not compile is dropped, and its client is not told.

    A class of bugs, no public issue known: what compiles in another thread ends with an error that nobody asks for.
    """

    def refuse(self, names: Sequence[str]) -> list[str]:
        super().refuse(names)
        return []


PARTS: dict[str, type] = {
    "prompt-logprobs-read-the-cache": PromptLogprobsReadTheCache,
    "skipped-hit-still-loads": SkippedHitStillLoads,
    "uncompiled-grammar-runs": UncompiledGrammarRuns,
    "uncompiled-grammar-waits": UncompiledGrammarWaits,
    "stop-token-among-drafts": StopTokenAmongDrafts,
    "stop-token-before-min-tokens": StopTokenBeforeMinTokens,
    "load-back-abort-publishes-slot-early": LoadBackAbortPublishesSlotEarly,
    "split-on-wrong-grid": SplitOnWrongGrid,
    "resumed-request-not-aligned": ResumedRequestNotAligned,
    "align-starvation": AlignStarvation,
    "reset-with-results-in-flight": ResetWithResultsInFlight,
    "rejection-after-reset": RejectionAfterReset,
}
