"""Broken state slots: moves between columns, and the choice of checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from ...base.observe import Record
from ..host.partial_hits import OF_THE_CACHE
from ..plan import PageCopy, Plan
from ..worker.input_batch import StateIndices
from ..worker.state_slots import DeviceRequest, StateSlots
from ..worker.tag_kernels import RowInput


class ConvNotMovedAcrossBlock(StateSlots):
    """When the running column advances, only the temporal state is copied.

    vLLM #42792, #42406: with one index for reading and writing, the convolution window is read from the new
    column, to which it was not copied.
    """

    def move_conv(self, layer: int, source: int, destination: int, offset: int) -> None:
        pass


class DsConvLayoutSlice(StateSlots):
    """A window is cut out of a channel-major buffer as if it were token-major.

    vLLM #38898, #45682: "skip the first tokens" is not one contiguous range in that layout; channels are mixed once
    drafts are accepted.
    """

    def move_conv(self, layer: int, source: int, destination: int, offset: int) -> None:
        channels, length = 2, self.window_length
        flat = self.memory.conv(layer, source) * channels
        self.memory.store_conv(layer, destination, flat[channels * offset :][:length])


class BoundarySnapshotSkipped(StateSlots):
    """The state of a boundary is saved only by a step that ends exactly on it.

    oMLX #3228: several drafts accepted at once cross the boundary, and `position % block == 0` is never true.
    """

    def crossed_boundary(self, group: int, inputs: RowInput, computed: int) -> int | None:
        depth = super().crossed_boundary(group, inputs, computed)
        return depth if depth == computed else None


class StaleTrackMaskInVerify(StateSlots):
    """Verification uses the tracking mask that the prefill before it left behind.

    SGLang #19415: preparing a verification did not reset the mask, so the boundaries that it crosses were not saved.
    """

    def crossed_boundary(self, group: int, inputs: RowInput, computed: int) -> int | None:
        size = self.layout.groups[group].block_size
        start = inputs.position // size * size
        return super().crossed_boundary(group, inputs, start if start < inputs.position else computed)


class MixedBatchDropsTrackMetadata(StateSlots):
    """In a batch of prefills and decodes, boundary states inside a chunk are not stored.

    SGLang #24613, #22867, #23075: merging two batches set the tracking metadata to nothing.
    """

    def prepare(
        self,
        step: int,
        group: int,
        names: Sequence[str],
        inputs: Sequence[RowInput],
        records: list[Record],
    ) -> list[StateIndices]:
        indices = super().prepare(step, group, names, inputs, records)
        mixed = len({len(one.tokens) == one.drafts + 1 for one in inputs}) > 1
        return [structs.replace(one, boundaries=()) for one in indices] if mixed else indices


class StateVersusCheckpointChunkConflated(StateSlots):
    """Boundary states inside a chunk are stored on the grid of another block size.

    SGLang #35086: the kernel packs one state per chunk, the cache expects one per page; the wrong divisor was used.
    """

    def boundary_stops(self, group: int, inputs: RowInput) -> tuple[tuple[int, int, int], ...]:
        unit = self.layout.hit_unit
        return tuple(stop for stop in super().boundary_stops(group, inputs) if (inputs.position + stop[0]) % unit == 0)


class SeedColumnWrongDivisor(StateSlots):
    """A resumed request looks for its state with the block size of another group.

    vLLM #53142, #55600: the column was (tokens - 1) // the cache's block size, which is the smallest of all groups.
    """

    def seed_column(self, group: int, computed: int) -> int:
        if self.layout.mode == "none" or not computed:
            return super().seed_column(group, computed)
        return (computed - 1) // min(one.block_size for one in self.layout.groups)


class NoAcceptedCounts(StateSlots):
    """Only a step with drafts gets accepted counts, but the builder asserts them for each batch with a decode.

    vLLM 0.17 and 0.18, no public issue known: with speculation `Mamba2AttentionMetadataBuilder` takes rows of one token
    for decodes; in a step in which no request has drafts `num_accepted_tokens` is None.
    """

    def prepare(
        self,
        step: int,
        group: int,
        names: Sequence[str],
        inputs: Sequence[RowInput],
        records: list[Record],
    ) -> list[StateIndices]:
        if self.batch.accepted.enabled and any(len(one.tokens) == 1 for one in inputs):
            assert any(one.drafts for one in inputs), "no accepted counts for a batch with a decode"
        return super().prepare(step, group, names, inputs, records)


class NoneModeNoDraftStep(StateSlots):
    """A step without drafts looks for its state in column 0, wherever the accepted drafts left it.

    vLLM #39273, #40738, #52942: mode none moves no state after a step; the plain decode path reads the first column
    with no offset.
    """

    def state_indices(self, group: int, inputs: RowInput, source: int, offset: int, run: int) -> StateIndices:
        plain = self.layout.mode == "none" and not inputs.drafts
        return super().state_indices(group, inputs, source, 0 if plain else offset, run)


class DeferredCopyDropped(StateSlots):
    """A copy that is pending for a slot is dropped when the slot is replaced.

    SGLang, after #24954: a checkpoint donated the active slot to the cache and took another one; the copy was
    registered under the old slot and never executed for the new one.
    """

    def copy_page(self, step: int, name: str, copy: PageCopy, records: list[Record]) -> None:
        if copy.to_column != OF_THE_CACHE:
            super().copy_page(step, name, copy, records)


class StaleStateIdxAfterReset(StateSlots):
    """The column of a request's state is reset only when it ends or is preempted by planning.

    vLLM #35157: resetting the prefix cache preempts by force; the requests return with a shorter table and the old
    column.
    """

    def forget(self, plan: Plan) -> None:
        for name in (*plan.finished, *plan.preempted, *plan.rolled_back):
            self.columns.pop(name, None)
            self.batch.accepted.kept.pop(name, None)


class AllModePartialBlock(StateSlots):
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


class AcceptedOnlyWithDrafts(StateSlots):
    """A row without drafts keeps the accepted count of its last verification.

    vLLM 0.14, no public issue known: the sampler returned before the counts were updated if no row had drafts; the
    next verification read the column of an older count.
    """

    def settle(
        self, step: int, name: str, request: DeviceRequest, inputs: RowInput, sampled: int, records: list[Record]
    ) -> None:
        counts, row = self.batch.accepted, inputs.table_row
        before = [device[row] for device in counts.device]
        super().settle(step, name, request, inputs, sampled, records)
        for device, count in zip(counts.device, before, strict=True):
            device[row] = device[row] if inputs.drafts else count


class AllSpecBoundaryState(StateSlots):
    """In mode all, the state of a boundary that accepted drafts cross is never stored in the boundary's column.

    vLLM 0.22 to 0.28, no public issue known: the states after the tokens of a verification go to the columns from that
    of the last scheduled token on, and the boundary's column, which is published, is none of them.
    """

    def crossed_boundary(self, group: int, inputs: RowInput, computed: int) -> int | None:
        return None if self.layout.mode == "all" else super().crossed_boundary(group, inputs, computed)


class AllSpecWindowColumn(StateSlots):
    """In mode all, a verification reads its window in the column of the last computed token, not where it was stored.

    vLLM 0.22 to 0.31, no public issue known: the window was stored in the column of the last scheduled token. If
    drafts beyond a boundary are rejected, these differ.
    """

    def state_indices(self, group: int, inputs: RowInput, source: int, offset: int, run: int) -> StateIndices:
        at = super().state_indices(group, inputs, source, offset, run)
        if self.layout.mode != "all" or not inputs.drafts:
            return at
        column = max(inputs.position - 1, 0) // self.layout.groups[group].block_size
        return structs.replace(at, conv_column=column, conv=self.batch.block(group, inputs.table_row, column))


PARTS: dict[str, type] = {
    "conv-not-moved-across-block": ConvNotMovedAcrossBlock,
    "ds-conv-layout-slice": DsConvLayoutSlice,
    "boundary-snapshot-skipped-when-stepping-over-it": BoundarySnapshotSkipped,
    "stale-track-mask-in-verify": StaleTrackMaskInVerify,
    "mixed-batch-drops-track-metadata": MixedBatchDropsTrackMetadata,
    "state-vs-checkpoint-chunk-conflated": StateVersusCheckpointChunkConflated,
    "seed-column-wrong-divisor": SeedColumnWrongDivisor,
    "no-accepted-counts": NoAcceptedCounts,
    "none-mode-no-draft-step": NoneModeNoDraftStep,
    "deferred-cow-clear-dropped-on-slot-replacement": DeferredCopyDropped,
    "stale-state-idx-after-reset": StaleStateIdxAfterReset,
    "all-mode-partial-block": AllModePartialBlock,
    "accepted-only-with-drafts": AcceptedOnlyWithDrafts,
    "all-spec-boundary-state": AllSpecBoundaryState,
    "all-spec-window-column": AllSpecWindowColumn,
}
