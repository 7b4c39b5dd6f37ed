"""The contract of the device operations; `implementations` selects one for a device.

Tensors may have any strides, except one-dimensional index tensors, which are contiguous (ValueError). Offsets are 64
bits wide, so a pool may exceed 2**31 bytes.
Floating point operands are float32, float16 or bfloat16, caches and states those or (keys and values) float8_e4m3fn;
all arithmetic is float32. `output` is written in place, at the tokens of the rows and nowhere else. Every operation
can be captured in a CUDA graph, except in the torch reference.

For null blocks, padding rows and ids out of range see `metadata`. A row without an initial state reads the null block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from .metadata import Regions, Rows, Stops, ZeroPlan

Masking = Literal["where", "multiply"]
CacheMode = Literal["none", "align", "all"]


class Ops(Protocol):
    """One implementation. T tokens in R rows, N blocks in the pool."""

    def zero_blocks(self, plan: ZeroPlan, ids: Tensor) -> None:
        """Zero the blocks `ids` (int32 or int64 [n], may be empty) in all segments of the plan, in one launch.

        The null block is never zeroed. Source: vLLM PR #35219.
        """

    def write_kv(
        self,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        slots: Tensor,
        *,
        key_scale: float = 1.0,
        value_scale: float = 1.0,
    ) -> None:
        """Store token i's key / key_scale and value / value_scale at slot slots[i] = block * block_size + offset.

        key, value      [T, kv_heads, head_dim]
        caches          [N, block_size, kv_heads, head_dim]; rounded to nearest even, fp8 saturates at 448, NaN stays
        slots           int64 [T]; negative, in the null block or beyond the pool: the token is not stored
        """

    def paged_attention(
        self,
        query: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        table: Tensor,
        rows: Rows,
        lengths: Tensor,
        output: Tensor,
        *,
        scale: float,
        key_scale: float = 1.0,
        value_scale: float = 1.0,
        masking: Masking = "where",
        window: int = 0,
    ) -> None:
        """Causal attention of each row's tokens, prefills and decodes mixed; keys and values are in the cache already.

        query, output   [T, heads, head_dim]; heads is a multiple of kv_heads
        table           int32 [R, columns]: block ids by row; a column outside reads as the null block
        lengths         int32 [R]: tokens of the row so far, this launch's included; 0 or less gives output 0
        masking         pages are read whole. "where" discards slots outside the context; "multiply" gives them
                        the weight 0, so that a NaN there reaches the output (0 * NaN)
        window          positions that a token sees, itself included; 0 for all

        A null block within the context reads as keys and values of 0.
        """

    def conv_prefill(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        state: Tensor,
        rows: Rows,
        blocks: Tensor,
        offsets: Tensor,
        stops: Stops,
        output: Tensor,
    ) -> None:
        """Causal depthwise convolution and SiLU; stores the last width - 1 inputs at each stop.

        inputs, output  [T, channels]
        weight, bias    [channels, width], [channels]; weight[:, -1] meets the newest input
        state           [N, length, channels], length >= width - 1
        blocks, offsets int32 [R]: row r starts from the width - 1 entries of block blocks[r] from offsets[r] on;
                        entries outside of the buffer read as 0
        stops           windows are stored from entry 0 on; inputs of the initial window are copied bit for bit. A
                        stop's block may be the block of the initial window (it is read first)
        """

    def conv_update(
        self,
        inputs: Tensor,
        weight: Tensor,
        bias: Tensor,
        state: Tensor,
        rows: Rows,
        blocks: Tensor,
        offsets: Tensor,
        write_blocks: Tensor,
        output: Tensor,
    ) -> None:
        """The same for a decode of n tokens, drafts included: one buffer serves every number of accepted tokens.

        It stores the last width - 2 + n inputs in write_blocks[r] (int32 [R]; may be blocks[r]). After m of the n
        tokens are accepted, the next step reads at offset m - 1. Entries that do not fit the buffer are dropped. A
        row without tokens stores nothing.
        """

    def state_update(
        self,
        state: Tensor,
        x: Tensor,
        dt: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        d: Tensor,
        rows: Rows,
        blocks: Tensor,
        columns: Tensor,
        write_blocks: Tensor,
        output: Tensor,
    ) -> None:
        """Selective state update (Mamba 2), token after token: decodes and speculative decodes.

        h = exp(dt * a) * h + dt * x (outer) b;  y = h c + d * x

        state           [N, heads, head_dim, state_dim], any floating dtype but fp8; float32 within a launch
        x, output       [T, heads, head_dim]
        dt              [T, heads], after softplus;  a, d  [heads], a <= 0
        b, c            [T, groups, state_dim]; heads is a multiple of groups
        blocks, columns int32 [R, width], int32 [R]: row r starts from blocks[r, columns[r]] (m - 1 after m accepted
                        tokens); a column outside reads as the null block
        write_blocks    int32 [R, width]: the state after token j of row r goes to write_blocks[r, j]; tokens beyond
                        the width store nothing. May contain the block of the initial state
        """

    def chunk_scan(
        self,
        state: Tensor,
        x: Tensor,
        dt: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        d: Tensor,
        rows: Rows,
        blocks: Tensor,
        stops: Stops,
        output: Tensor,
        *,
        chunk: int = 16,
    ) -> None:
        """The same recurrence for prefills, in chunks of up to `chunk` tokens (a power of two, at least 16).

        Chunks end at every stop, so boundary states of mode all are exact wherever the row starts (vLLM PR #34798).

        blocks          int32 [R]: block of the state that row r starts from
        """

    def delta_rule(
        self,
        state: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        gate: Tensor,
        beta: Tensor,
        rows: Rows,
        blocks: Tensor,
        columns: Tensor,
        stops: Stops,
        output: Tensor,
    ) -> None:
        """Gated delta net, token after token; serves prefills, decodes and (Stops.after_each_token) drafts.

        h = exp(gate) * h;  h += key (outer) beta * (value - h^T key);  o = h^T query

        state           [N, heads, key_dim, value_dim]
        query, key      [T, key_heads, key_dim], normalised and scaled by the caller; heads % key_heads == 0
        value, output   [T, heads, value_dim]
        gate, beta      [T, heads], gate <= 0
        blocks, columns as for state_update
        """

    def copy_regions(self, pool: Tensor, regions: Regions) -> None:
        """Copy byte ranges within `pool` (uint8 [bytes], contiguous), all in one launch.

        A region may overlap itself: the destination gets what the source held before. No region writes bytes
        that another one reads or writes. One that leaves the pool, or has a length of 0 or less, is skipped.
        """

    def gather_columns(self, table: Tensor, row_map: Tensor, first: Tensor, output: Tensor, *, split: int = 1) -> None:
        """output[r, j] = table[row_map[r], first[r] + j], null where the row or the column does not exist.

        table           int32 [table rows, columns];  row_map, first  int32 [R];  output  int32 [R, width]
        split           kernel blocks in one block of the table: output[r, j] is kernel block j % split of the table's
                        block in column first[r] + j // split, with the id block * split + j % split; null stays null
        """

    def slot_mapping(
        self, table: Tensor, row_map: Tensor, rows: Rows, computed: Tensor, output: Tensor, *, block_size: int
    ) -> None:
        """Compute the slot of every token, int64 [T or more]: NO_SLOT for null blocks, missing columns, unused tokens.

        computed        int32 [R]: position of the row's first token
        """

    def state_indices(
        self,
        table: Tensor,
        row_map: Tensor,
        computed: Tensor,
        scheduled: Tensor,
        state_columns: Tensor,
        offsets: Tensor,
        sources: Tensor,
        windows: Tensor,
        outputs: Tensor,
        *,
        mode: CacheMode,
        block_size: int,
    ) -> None:
        """Compute the blocks that the state kernels of each row read and write.

        computed, scheduled     int32 [R]: position of the row's first token, and its tokens (0: a padding row)
        state_columns, offsets  int32 [R]: column of the state that the last step left (negative: none), drafts that
                                it accepted (m - 1)
        sources (out)           int32 [R]: table[state_column + offset], null for a row at position 0
        windows (out)           int32 [R]: table[state_column], likewise
        outputs (out)           int32 [R, 1 + drafts]: table[run + j]; run = 0 in mode none, else the column of the
                                row's last token
        """

    def boundary_stops(
        self,
        table: Tensor,
        row_map: Tensor,
        computed: Tensor,
        scheduled: Tensor,
        counts: Tensor,
        blocks: Tensor,
        *,
        block_size: int,
    ) -> None:
        """Compute the stops of prefills in mode all: each block boundary strictly inside, then the end.

        counts, blocks (out)    int32 [R, capacity], contiguous: boundaries in order, unused entries (count -1, null),
                                the end in the last one. Boundaries that do not fit are dropped

        With starts = arange(R + 1) * capacity they make a Stops.
        """
