"""Causal depthwise convolution with its window in a paged state; one program for each row and piece of channels.

A program reads the initial window of its row before it stores any, because both may be in one block (a short chunk
shifts it in place: vLLM PR #56196). Windows are moved as integers, so that every bit is kept.
"""

import triton
import triton.language as tl
from torch import Tensor

from .language import exists, rounded
from .metadata import Rows, Stops, check_vectors

CHANNELS_PIECE = 128


@triton.jit
def as_bits(x):
    """Return the same bits as integers."""
    return x.to(tl.int32 if x.dtype.primitive_bitwidth == 32 else tl.int16, bitcast=True)


@triton.jit
def window_bits(
    state, block, offset, channel, blocks, length, state_block, state_entry, state_channel,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_P2: tl.constexpr,
):  # fmt: skip
    """Return the initial window of a row, [WIDTH_P2, piece]; zeros if there is none."""
    entry = tl.arange(0, WIDTH_P2)[:, None]
    place = entry + offset
    inside = (entry < tl.where(exists(block, blocks), WIDTH - 1, 0)) & (place >= 0) & (place < length)
    at = state + block.to(tl.int64) * state_block + place * state_entry + channel[None, :] * state_channel
    return as_bits(tl.load(at, mask=inside & (channel[None, :] < CHANNELS), other=0.0))


@triton.jit
def history(inputs, window, index, first, channel, input_token, input_channel, kind: tl.constexpr,
            CHANNELS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_P2: tl.constexpr):  # fmt: skip
    """Return entry `index` of the window followed by the inputs, in bits of `kind` (the state's dtype)."""
    old = tl.sum(tl.where(tl.arange(0, WIDTH_P2)[:, None] == index, window, 0), axis=0).to(window.dtype)
    fresh = index >= WIDTH - 1
    token = (first + index - (WIDTH - 1)).to(tl.int64)
    at = inputs + token * input_token + channel * input_channel
    new = tl.load(at, mask=channel < tl.where(fresh, CHANNELS, 0), other=0.0).to(tl.float32)
    return tl.where(fresh, as_bits(rounded(new, kind)), old)


@triton.jit
def convolve(
    inputs, weight, bias, output, window, first, end, channel, kind: tl.constexpr,
    input_token, input_channel, weight_channel, weight_tap, bias_channel, output_token, output_channel,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_P2: tl.constexpr,
):  # fmt: skip
    """Compute all outputs of one row."""
    tap = tl.arange(0, WIDTH_P2)[:, None]
    inside = (tap < WIDTH) & (channel[None, :] < CHANNELS)
    at = weight + channel[None, :] * weight_channel + tap * weight_tap
    weights = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    start = tl.load(bias + channel * bias_channel, mask=channel < CHANNELS, other=0.0).to(tl.float32)
    held = window.to(kind, bitcast=True).to(tl.float32)
    for index in range(end - first):
        token = (first + index).to(tl.int64)
        total = start
        for step in tl.static_range(WIDTH):
            place = index + step
            old = tl.sum(tl.where(tap == place, held, 0.0), axis=0)
            fresh = place >= WIDTH - 1
            newer = inputs + (token + step - (WIDTH - 1)) * input_token + channel * input_channel
            new = tl.load(newer, mask=channel < tl.where(fresh, CHANNELS, 0), other=0.0).to(tl.float32)
            factor = tl.sum(tl.where(tap == step, weights, 0.0), axis=0)
            total += factor * tl.where(fresh, new, old)
        result = total / (1.0 + tl.exp(-total))
        result_at = output + token * output_token + channel * output_channel
        tl.store(result_at, rounded(result, output.dtype.element_ty), mask=channel < CHANNELS)


@triton.jit
def store_window(
    state, inputs, window, block, count, kept, first, channel, input_token, input_channel,
    state_block, state_entry, state_channel,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_P2: tl.constexpr,
):  # fmt: skip
    """Store entries count .. count + kept - 1 of the row's history from entry 0 of a block on."""
    kind: tl.constexpr = state.dtype.element_ty
    at = state + block.to(tl.int64) * state_block + channel * state_channel
    for entry in range(kept):
        bits = history(inputs, window, count + entry, first, channel, input_token, input_channel, kind,
                       CHANNELS, WIDTH, WIDTH_P2)  # fmt: skip
        tl.store(at + entry * state_entry, bits.to(kind, bitcast=True), mask=channel < CHANNELS)


@triton.jit
def prefill(
    inputs, weight, bias, state, starts, blocks, offsets, stop_starts, stop_counts, stop_blocks, output,
    pool, length, input_token, input_channel, weight_channel, weight_tap, bias_channel,
    state_block, state_entry, state_channel, output_token, output_channel,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_P2: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """Grid (rows, pieces of channels); shapes as in Ops.conv_prefill, strides in elements."""
    row = tl.program_id(0)
    channel = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    first, end = tl.load(starts + row), tl.load(starts + row + 1)
    window = window_bits(state, tl.load(blocks + row), tl.load(offsets + row), channel, pool, length,
                         state_block, state_entry, state_channel, CHANNELS, WIDTH, WIDTH_P2)  # fmt: skip
    convolve(inputs, weight, bias, output, window, first, end, channel, state.dtype.element_ty,
             input_token, input_channel, weight_channel, weight_tap, bias_channel, output_token, output_channel,
             CHANNELS, WIDTH, WIDTH_P2)  # fmt: skip
    tl.debug_barrier()  # all threads have read the window, which may now be overwritten
    for stop in range(tl.load(stop_starts + row), tl.load(stop_starts + row + 1)):
        count, block = tl.load(stop_counts + stop), tl.load(stop_blocks + stop)
        if exists(block, pool) & (count >= 0) & (count <= end - first):
            store_window(state, inputs, window, block, count, WIDTH - 1, first, channel, input_token, input_channel,
                         state_block, state_entry, state_channel, CHANNELS, WIDTH, WIDTH_P2)  # fmt: skip


@triton.jit
def update(
    inputs, weight, bias, state, starts, blocks, offsets, write_blocks, output,
    pool, length, input_token, input_channel, weight_channel, weight_tap, bias_channel,
    state_block, state_entry, state_channel, output_token, output_channel,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_P2: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """Grid (rows, pieces of channels); shapes as in Ops.conv_update, strides in elements."""
    row = tl.program_id(0)
    channel = tl.program_id(1) * PIECE + tl.arange(0, PIECE)
    first, end = tl.load(starts + row), tl.load(starts + row + 1)
    window = window_bits(state, tl.load(blocks + row), tl.load(offsets + row), channel, pool, length,
                         state_block, state_entry, state_channel, CHANNELS, WIDTH, WIDTH_P2)  # fmt: skip
    convolve(inputs, weight, bias, output, window, first, end, channel, state.dtype.element_ty,
             input_token, input_channel, weight_channel, weight_tap, bias_channel, output_token, output_channel,
             CHANNELS, WIDTH, WIDTH_P2)  # fmt: skip
    tl.debug_barrier()
    block = tl.load(write_blocks + row)
    if exists(block, pool) & (end > first):
        kept = tl.minimum(WIDTH - 2 + end - first, length)
        store_window(state, inputs, window, block, 1, kept, first, channel, input_token, input_channel,
                     state_block, state_entry, state_channel, CHANNELS, WIDTH, WIDTH_P2)  # fmt: skip


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
    check_vectors(rows.starts, blocks, offsets, stops.starts, stops.counts, stops.blocks)
    channels, width = weight.shape
    piece = min(CHANNELS_PIECE, triton.next_power_of_2(channels))
    if rows.count:
        prefill[(rows.count, triton.cdiv(channels, piece))](
            inputs, weight, bias, state, rows.starts, blocks, offsets, stops.starts, stops.counts, stops.blocks, output,
            state.shape[0], state.shape[1], *inputs.stride(), *weight.stride(), *bias.stride(), *state.stride(),
            *output.stride(), channels, width, triton.next_power_of_2(width), piece,
        )  # fmt: skip


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
    check_vectors(rows.starts, blocks, offsets, write_blocks)
    channels, width = weight.shape
    piece = min(CHANNELS_PIECE, triton.next_power_of_2(channels))
    if rows.count:
        update[(rows.count, triton.cdiv(channels, piece))](
            inputs, weight, bias, state, rows.starts, blocks, offsets, write_blocks, output,
            state.shape[0], state.shape[1], *inputs.stride(), *weight.stride(), *bias.stride(), *state.stride(),
            *output.stride(), channels, width, triton.next_power_of_2(width), piece,
        )  # fmt: skip
