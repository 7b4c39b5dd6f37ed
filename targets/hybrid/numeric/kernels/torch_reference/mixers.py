"""The mixers that carry a state: causal convolution, Mamba 2, gated delta net. One token at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import silu

from ..metadata import NULL_BLOCK, Rows, Stops


def is_real(state: Tensor, block: int) -> bool:
    """Return True if an id names a block that may be read and written."""
    return NULL_BLOCK < block < state.shape[0]


def spans(rows: Rows) -> Iterator[tuple[int, int, int]]:
    """Yield (row, first token, end) of every row."""
    starts = rows.starts.tolist()
    yield from ((row, starts[row], starts[row + 1]) for row in range(rows.count))


def row_stops(stops: Stops, row: int, tokens: int) -> list[tuple[int, int]]:
    """Return (count, block) of one row's stops."""
    first, end = stops.starts[row : row + 2].tolist()
    pairs = zip(stops.counts[first:end].tolist(), stops.blocks[first:end].tolist(), strict=True)
    return [(count, block) for count, block in pairs if 0 <= count <= tokens]


def convolve(
    inputs: Tensor, weight: Tensor, bias: Tensor, state: Tensor, block: int, offset: int, output: Tensor
) -> Tensor:
    """Write the output of one row [n, channels]; return its initial window followed by its inputs."""
    channels, width = weight.shape
    history = torch.zeros(width - 1 + len(inputs), channels, dtype=state.dtype, device=state.device)
    if is_real(state, block):
        for entry in range(width - 1):
            if 0 <= offset + entry < state.shape[1]:
                history[entry] = state[block, offset + entry]
    exact = torch.cat([history[: width - 1].float(), inputs.float()])
    for token in range(len(inputs)):
        output[token] = silu((exact[token : token + width] * weight.float().T).sum(0) + bias.float()).to(output.dtype)
    history[width - 1 :] = inputs.to(state.dtype)
    return history


def conv_prefill(
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
    """See Ops."""
    length = weight.shape[1] - 1
    for row, first, end in spans(rows):
        at = (int(blocks[row]), int(offsets[row]))
        history = convolve(inputs[first:end], weight, bias, state, *at, output[first:end])
        for count, block in row_stops(stops, row, end - first):
            if is_real(state, block):
                state[block, :length] = history[count : count + length]


def conv_update(
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
    """See Ops."""
    for row, first, end in spans(rows):
        at, block = (int(blocks[row]), int(offsets[row])), int(write_blocks[row])
        history = convolve(inputs[first:end], weight, bias, state, *at, output[first:end])
        if end > first and is_real(state, block):
            kept = history[1:][: state.shape[1]]
            state[block, : len(kept)] = kept


def initial_state(state: Tensor, block: int) -> Tensor:
    """Return a copy in float32; zeros for the null block."""
    if is_real(state, block):
        return state[block].to(torch.float32, copy=True)
    return torch.zeros(state.shape[1:], device=state.device)


def column_of(blocks: Tensor, row: int, column: int) -> int:
    """Return blocks[row, column], null outside."""
    return int(blocks[row, column]) if 0 <= column < blocks.shape[1] else NULL_BLOCK


def store_at(state: Tensor, pairs: list[tuple[int, int]], count: int, held: Tensor) -> None:
    """Store at the stops of this count."""
    for stop, block in pairs:
        if stop == count and is_real(state, block):
            state[block] = held.to(state.dtype)


def scan_row(
    state: Tensor, inputs: tuple[Tensor, ...], heads: tuple[Tensor, Tensor], block: int,
    pairs: list[tuple[int, int]], output: Tensor,
) -> None:  # fmt: skip
    """Mamba 2 over one row; `inputs` are its x, dt, b, c, `heads` a and d."""
    x, dt, b, c = (tensor.float() for tensor in inputs)
    a, d = (tensor.float() for tensor in heads)
    repeat = x.shape[1] // b.shape[1]
    b, c = b.repeat_interleave(repeat, 1), c.repeat_interleave(repeat, 1)
    held = initial_state(state, block)
    store_at(state, pairs, 0, held)
    for token in range(len(x)):
        decay = torch.exp(dt[token] * a)[:, None, None]
        held = decay * held + (dt[token, :, None] * x[token])[:, :, None] * b[token, :, None, :]
        y = (held * c[token, :, None, :]).sum(2) + d[:, None] * x[token]
        output[token] = y.to(output.dtype)
        store_at(state, pairs, token + 1, held)


def state_update(
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
    """See Ops."""
    for row, first, end in spans(rows):
        block = column_of(blocks, row, int(columns[row]))
        pairs = [(token + 1, written) for token, written in enumerate(write_blocks[row].tolist())]
        inputs = (x[first:end], dt[first:end], b[first:end], c[first:end])
        scan_row(state, inputs, (a, d), block, pairs, output[first:end])


def chunk_scan(
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
    """See Ops. Runs the recurrence token by token: chunking must not change the result."""
    for row, first, end in spans(rows):
        inputs = (x[first:end], dt[first:end], b[first:end], c[first:end])
        pairs = row_stops(stops, row, end - first)
        scan_row(state, inputs, (a, d), int(blocks[row]), pairs, output[first:end])


def delta_rule(
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
    """See Ops."""
    repeat = value.shape[1] // key.shape[1]
    queries, keys = (tensor.float().repeat_interleave(repeat, 1) for tensor in (query, key))
    for row, first, end in spans(rows):
        held = initial_state(state, column_of(blocks, row, int(columns[row])))
        pairs = row_stops(stops, row, end - first)
        store_at(state, pairs, 0, held)
        for token in range(first, end):
            held = torch.exp(gate[token].float())[:, None, None] * held
            seen = torch.einsum("hkv,hk->hv", held, keys[token])
            change = beta[token].float()[:, None] * (value[token].float() - seen)
            held = held + keys[token][:, :, None] * change[:, None, :]
            output[token] = torch.einsum("hkv,hk->hv", held, queries[token]).to(output.dtype)
            store_at(state, pairs, token - first + 1, held)
