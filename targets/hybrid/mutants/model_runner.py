"""Broken model runners: zeroing, padding, graph dispatch, dummy runs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from ...base.observe import Record
from ..plan import Plan, ScheduledRow
from ..worker.input_batch import StateIndices
from ..worker.model_runner import ModelRunner
from ..worker.tag_kernels import RowInput


class ZeroingWipesLoadedKv(ModelRunner):
    """New attention blocks are zeroed after content was loaded into them.

    vLLM #42182, #48481: zeroing waited for the running forward, loads did not. The connector's content was zeroed
    after it was loaded; states, which are never zeroed, were kept, so the output was half coherent.
    """

    def prepare_blocks(self, plan: Plan, records: list[Record]) -> None:
        attention = {index for index, group in enumerate(self.layout.groups) if group.kind == "attention"}
        for row in plan.rows.values():
            self.connector.load(plan.step, row, records)
            plan.zero += [load.block for load in row.loads if load.group in attention]
        self.zero_blocks(plan, records)


class PaddedRowFakePrefill(ModelRunner):
    """Padding rows count as prefills if the request that last had the row was in its prompt.

    vLLM #41841, #41873: a vacated row of a request that was preempted in its prompt makes the batch one with
    prefills; the buffer that the graph reads is then not refreshed, and live rows use the slots of an earlier step.
    """

    def prefilling_rows(self, inputs: Sequence[RowInput], padded: int) -> list[bool]:
        rows = [one.table_row for one in inputs] + list(range(len(inputs), padded))
        return [self.batch.is_prefill(row) for row in rows]


class PrefillDispatchedAsUniformDecode(ModelRunner):
    """A batch is a uniform decode if its shape is that of one.

    vLLM #53051, #49918, #47123: prompts of exactly 1 + k tokens match; the graph for verification is replayed with
    index buffers that were not refreshed.
    """

    def fits_graph(self, rows: Sequence[ScheduledRow], inputs: Sequence[RowInput]) -> bool:
        uniform = all(len(one.tokens) == 1 + self.config.num_speculative_tokens for one in inputs)
        return uniform and len(rows) <= max(self.config.graph_sizes, default=0)


class PaddingAliasesParkedRequest(ModelRunner):
    """Padding rows keep the indices that their rows happen to hold.

    SGLang #13151, #13278, #9873: padding reused arbitrary indices instead of a sentinel; a live request that is not
    in this batch lost its state to them.
    """

    def live_mask(self, live: int, padded: int) -> list[bool]:
        return [True] * padded


class PaddingSkippedAtBatchOne(ModelRunner):
    """A batch with one live row is not masked.

    transformers #46773: the mask was applied only to batches of more than one.
    """

    def live_mask(self, live: int, padded: int) -> list[bool]:
        return [True] * padded if live == 1 else super().live_mask(live, padded)


class StaleDummyMask(ModelRunner):
    """The mask of live rows is that of the batch before.

    SGLang #17492: it was not recomputed when the order or number of rows changed.
    """

    mask: Sequence[bool] = ()

    def live_mask(self, live: int, padded: int) -> list[bool]:
        now = super().live_mask(live, padded)
        before, self.mask = self.mask, now
        return [*before, *now[len(before) :]][:padded]


class StaleFp32BytesNan(ModelRunner):
    """A recycled state block becomes an attention block without being zeroed.

    vLLM #27264, #35219: its fp32 bytes read as NaN in the KV dtype, and attention multiplies masked slots by 0:
    0 * NaN = NaN.
    """

    def zero_blocks(self, plan: Plan, records: list[Record]) -> None:
        pass


class UnscheduledRow(ModelRunner):
    """A running request that is left out of one step loses its accepted count.

    vLLM 0.18 to 0.33 (V1 runner), no public issue known (#31944 repaired drafts only): a request without tokens in a
    step leaves the batch, and starts with the count of a new one when it returns.
    """

    def update_batch(self, plan: Plan) -> None:
        super().update_batch(plan)
        counts = self.batch.accepted
        for row, name in enumerate(counts.names):
            if name not in plan.rows:
                for host in counts.host:
                    host[row] = 0


class ReplayedAsDrafts(ModelRunner):
    """Output tokens that a preempted request computes again run as drafts.

    vLLM 0.32 and 0.33 (V1 runner), no public issue known: a row behind its prompt, of at most 1 + k tokens, counts as
    a verification; the next step reads the state after its first token.
    """

    def forward(
        self,
        plan: Plan,
        inputs: list[RowInput],
        indices: dict[int, list[StateIndices]],
        padded: int,
        graph: bool,
    ) -> list[tuple[int, ...]]:
        seen = []
        for one in inputs:
            prompt = self.requests[self.batch.names[one.table_row]].prompt_length
            again = one.position >= prompt and len(one.tokens) <= 1 + self.config.num_speculative_tokens
            seen.append(structs.replace(one, drafts=len(one.tokens) - 1) if again else one)
        return super().forward(plan, seen, indices, padded, graph)


class MixedDecodes(ModelRunner):
    """A batch has either decodes with drafts or decodes without; a mixed one ends the engine.

    vLLM 0.17, no public issue known: the builder of gated delta nets asserted that a batch with verifications has no
    other decodes, which a drafter with nothing to propose breaks.
    """

    def forward(
        self,
        plan: Plan,
        inputs: list[RowInput],
        indices: dict[int, list[StateIndices]],
        padded: int,
        graph: bool,
    ) -> list[tuple[int, ...]]:
        plain = any(not one.drafts and len(one.tokens) == 1 and one.position for one in inputs)
        assert not (plain and any(one.drafts for one in inputs)), "decodes with and without drafts in one batch"
        return super().forward(plan, inputs, indices, padded, graph)


class DummyRunAsPrompt(ModelRunner):
    """The rows of a dummy run count as prompts, so the graph replays the rows of the step before.

    vLLM 0.16 to 0.18, and 0.31 to 0.33 on the V1 runner, kin: #49757. The builder saw rows without drafts where every
    decode has some, and left the buffers of the graph as they were.
    """

    def prefilling_dummies(self, rows: int) -> list[bool]:
        return [self.config.num_speculative_tokens > 0] * rows


class DraftsVerifiedWithoutGrammar(ModelRunner):
    """Drafts of an answer with a grammar are verified without it: only the first token of a step is masked.

    A class of bugs, no public issue known: a mask has a row for each token that may be sampled, and those behind drafts
    are left out. vLLM's V2 runner refuses drafts that a grammar has not seen (`grammar_invalid_drafts`).
    """

    def behind_draft(self, row: ScheduledRow, position: int, tag: int, token: int) -> int:
        return super().behind_draft(structs.replace(row, grammar=None), position, tag, token)


PARTS: dict[str, type] = {
    "zeroing-wipes-loaded-kv": ZeroingWipesLoadedKv,
    "padded-row-fake-prefill": PaddedRowFakePrefill,
    "prefill-dispatched-as-uniform-decode": PrefillDispatchedAsUniformDecode,
    "padding-aliases-parked-live-request": PaddingAliasesParkedRequest,
    "padding-skipped-at-batch-1": PaddingSkippedAtBatchOne,
    "stale-dummy-mask": StaleDummyMask,
    "stale-fp32-bytes-nan": StaleFp32BytesNan,
    "unscheduled-row": UnscheduledRow,
    "replayed-as-drafts": ReplayedAsDrafts,
    "mixed-decodes": MixedDecodes,
    "dummy-run-as-prompt": DummyRunAsPrompt,
    "drafts-verified-without-grammar": DraftsVerifiedWithoutGrammar,
}
