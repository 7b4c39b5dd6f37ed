"""Broken kernels: initial states, the null block, writes to shared blocks."""

from __future__ import annotations

from msgspec import structs

from ...base.observe import StateWrite
from ..worker.input_batch import StateIndices
from ..worker.tag_kernels import RowInput, TagKernels


class NewOneTokenRequestAsDecode(TagKernels):
    """A row of one token is taken for a decode, which has an initial state.

    vLLM #32118: a budget that leaves one token for a new request makes its first chunk look like a decode; it reads
    the state that the block's previous owner left.
    """

    def has_initial_state(self, inputs: RowInput, layer: int) -> bool:
        return super().has_initial_state(inputs, layer) or len(inputs.tokens) == 1


class ChunkContinuationStaleForNew(TagKernels):
    """Every row continues a state, new requests too.

    sparkinfer #1071, tpu-inference #2574: the flag was derived from the wrong quantity; one of the two directions.
    """

    def has_initial_state(self, inputs: RowInput, layer: int) -> bool:
        return True


class ChunkContinuationRestartsAtZero(TagKernels):
    """A later chunk of a prefill starts from nothing.

    sparkinfer #1071, tpu-inference #2574: the flag was derived from the wrong quantity; the other direction.
    """

    def has_initial_state(self, inputs: RowInput, layer: int) -> bool:
        return super().has_initial_state(inputs, layer) and len(inputs.tokens) == inputs.drafts + 1


class CachedForwardWithSeqLen1(TagKernels):
    """Only a forward of one token uses the cached state; a longer one starts without it.

    transformers #46741, #46084: a chunk or several drafts after a prefill ignored the cached state.
    """

    def has_initial_state(self, inputs: RowInput, layer: int) -> bool:
        return super().has_initial_state(inputs, layer) and len(inputs.tokens) == 1


class GlobalSeenTokens(TagKernels):
    """The count of tokens seen is kept once for all layers and advanced by the first of them.

    flash-linear-attention #747: from the second layer on, the tokens of this step count as seen.
    """

    def has_initial_state(self, inputs: RowInput, layer: int) -> bool:
        return super().has_initial_state(inputs, layer) or (layer > 0 and bool(inputs.tokens))


class ShortChunkConvIntoSharedBlock(TagKernels):
    """A chunk shorter than the convolution's memory stores its window where it read it.

    vLLM #56196: the branch that shifts the old window left stores through the pointer that it read from; after a hit
    that is a shared, cached block, and the request's own block is never written.
    """

    def store(self, inputs: RowInput, at: StateIndices, write: StateWrite) -> None:
        short = write.window is not None and len(inputs.tokens) < self.window_length
        if not short or self.is_null(at.conv) or at.conv == write.block:
            return super().store(inputs, at, write)
        super().store(inputs, at, structs.replace(write, window=None))
        return super().store(inputs, at, structs.replace(write, block=at.conv, column=at.conv_column, temporal=None))


class BoundaryWindowNotStored(TagKernels):
    """A chunk of one program stores the recurrent state of a boundary inside it, but not the convolution's window.

    vLLM 0.14 to 0.31, no public issue known: `_causal_conv1d_fwd_kernel` has a program for every 8 tokens, and windows
    at boundaries are stored by all programs but the first.
    """

    program = 8

    def store(self, inputs: RowInput, at: StateIndices, write: StateWrite) -> None:
        inside = write.column != at.run_column and not inputs.drafts
        if inside and len(inputs.tokens) <= self.program:
            write = structs.replace(write, window=None)
        super().store(inputs, at, write)


class SnapshotRaceChunkedStash(TagKernels):
    """The boundaries that a chunk passes are stashed from the state as it was before the chunk ran.

    SGLang #24221, #24954: with overlapped scheduling the snapshot was taken when the next step was scheduled, not when
    the forward that writes it had completed.
    """

    def store(self, inputs: RowInput, at: StateIndices, write: StateWrite) -> None:
        if write.column != at.run_column and not inputs.drafts:
            write = structs.replace(write, temporal=self.memory.temporal(write.layer, at.source))
        super().store(inputs, at, write)


class NullAsStateSlot(TagKernels):
    """Kernels treat the null block as an ordinary slot.

    vLLM #33937 (closed), fixed the other way round by #35431: block 0 is a legal placeholder in tables, but padding
    rows and requests with a null column read and wrote state in that one shared block.
    """

    def is_null(self, block: int) -> bool:
        return False


class VerificationAsPrefill(TagKernels):
    """A verification runs as a prefill: it stores one state, after all of its drafts.

    vLLM 0.25 to 0.33 (plain linear attention on the V2 runner), no public issue known: the builder got no accepted
    counts and took rows of drafts for prompts; what was rejected stayed in the state.
    """

    def stops(self, inputs: RowInput, at: StateIndices) -> list[tuple[int, int, int]]:
        return [*at.boundaries, (len(inputs.tokens), at.run_column, at.outputs[0])]


PARTS: dict[str, type] = {
    "new-one-token-request-as-decode": NewOneTokenRequestAsDecode,
    "chunk-continuation-stale-for-new": ChunkContinuationStaleForNew,
    "chunk-continuation-restarts-at-zero": ChunkContinuationRestartsAtZero,
    "cached-forward-with-seq-len-1": CachedForwardWithSeqLen1,
    "global-seen-tokens": GlobalSeenTokens,
    "short-chunk-conv-into-shared-block": ShortChunkConvIntoSharedBlock,
    "boundary-window-not-stored": BoundaryWindowNotStored,
    "snapshot-race-chunked-stash-before-copy-done": SnapshotRaceChunkedStash,
    "null-as-state-slot": NullAsStateSlot,
    "verification-as-prefill": VerificationAsPrefill,
}
