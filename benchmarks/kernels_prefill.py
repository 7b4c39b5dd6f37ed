"""vLLM's prefill kernels of state layers against float64.

The recurrence in float64 is the reference; the kernels compute the same in chunks. Bounds follow from the number of
roundings, with the unit roundoff of a product of three TF32 products (`TENSOR`), except for the chunked gated delta
rule: it inverts triangular matrices, for which no componentwise bound is known beforehand. Its results are compared by
the norm of each row's error, against 1e-4; float32 lands near 1e-6, a state rounded to bfloat16 at 2e-3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

from kernel_case import EPSILON, Case, close, kept, untouched

TENSOR = 2.0**-20
"""Both operands are split into two TF32 numbers (2^-22 is lost of each), and the product of the small parts is left
out: less than 2^-20 of the product's size."""
NORM = 1e-4


def conv_prefill(case: Case) -> str:
    """The causal convolution of whole chunks, from a stored window or from none."""
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_fn
    from vllm.v1.attention.backends.utils import compute_causal_conv1d_metadata

    torch, draw = case.torch, case.draw
    dim, width = draw.choice((16, 48, 160)), draw.choice((2, 3, 4))
    memory, state = case.states(width - 1, dim)
    x, weight, bias = case.numbers(case.tokens, dim).T, case.numbers(dim, width), case.numbers(dim)
    starts = case.integers(case.starts)
    parts = compute_causal_conv1d_metadata(starts.cpu(), device=starts.device)
    metadata = SimpleNamespace(**dict(zip(("nums_dict", "batch_ptr", "token_chunk_offset_ptr"), parts, strict=True)))
    slots = [one[0] for one in case.table]
    before, inputs = kept(case, memory), x.double().cpu().T
    first = {row: state[slots[row]].double().cpu() for row in range(case.rows) if not case.null[row]}
    out = causal_conv1d_fn(
        x, weight, bias, state.transpose(1, 2), starts, cache_indices=case.integers(slots), metadata=metadata,
        has_initial_state=torch.tensor(case.has_initial, device=case.device), activation="silu",
    )  # fmt: skip
    w, add = weight.double().cpu(), bias.double().cpu()
    for row, stored in first.items():
        window = stored if case.has_initial[row] else torch.zeros_like(stored)
        own = inputs[case.starts[row] : case.starts[row + 1]]
        line = torch.cat([window, own])
        for token in range(len(own)):
            terms = line[token : token + width] * w.T
            total, room = terms.sum(0) + add, (terms.abs().sum(0) + add.abs()) * (2 * width + 2) * EPSILON
            y = total * total.sigmoid()
            slack = 1.1 * room + 16 * EPSILON * (1 + total.abs()) * y.abs() + 1e-30
            if wrong := close(f"output of row {row}, token {token}", out[:, case.starts[row] + token], y, slack):
                return wrong
        if not torch.equal(state[slots[row]].double().cpu(), line[len(line) - (width - 1) :]):
            return f"window of row {row}"
    live = {slot for slot, dead in zip(slots, case.null, strict=True) if not dead}
    return untouched(case, memory, before, state, live)


def chunk_scan(case: Case) -> str:
    """Mamba 2's prefill (SSD): chunks of every row, the last states stored in their slots."""
    from vllm.model_executor.layers.mamba.ops.ssd_combined import mamba_chunk_scan_combined_varlen

    torch, draw = case.torch, case.draw
    heads, size = 4, 16
    dim, dstate = draw.choice(((32, 16), (64, 32)))  # each shape is tuned for a while
    if case.far:
        case.lengths, case.starts, case.tokens = case.lengths[:1], case.starts[:2], case.starts[1]
        case.rows, case.table, case.null = 1, case.table[:1], [False]
    for row in range(case.rows):
        case.null[row], case.table[row] = False, [2 if case.far else row + 1]
    memory, state = case.states(heads, dim, dstate)
    slots = [one[0] for one in case.table]
    x, b, c = (case.numbers(case.tokens, *shape) for shape in ((heads, dim), (1, dstate), (1, dstate)))
    dt, bias, d = case.numbers(case.tokens, heads, scale=0.3), case.numbers(heads, scale=0.3), case.numbers(heads)
    a = -case.numbers(heads).abs() - 0.1
    before = kept(case, memory)
    initial = torch.stack(
        [
            state[slot] if has else torch.zeros_like(state[slot])
            for slot, has in zip(slots, case.has_initial, strict=False)
        ]
    )
    ends, rows_of, last = chunks(case, size)
    out = torch.full((case.tokens, heads, dim), float("nan"), device=case.device)
    mamba_chunk_scan_combined_varlen(
        x, dt, a, b, c, chunk_size=size, cu_seqlens=case.integers(case.starts), cu_chunk_seqlens=case.integers(ends),
        last_chunk_indices=case.integers(last), seq_idx=case.integers(rows_of), out=out, D=d, dt_bias=bias,
        initial_states=initial if any(case.has_initial[: case.rows]) else None, dt_softplus=True,
        state_dtype=torch.float32, final_states_out=state, final_state_indices=case.integers(slots),
    )  # fmt: skip
    x, b, c, dt, bias, d, a, initial = (one.double().cpu() for one in (x, b, c, dt, bias, d, a, initial))
    for row in range(case.rows):
        now, size_of, exponent = initial[row], initial[row].abs(), torch.zeros(heads, dtype=torch.float64)
        for token in range(case.starts[row], case.starts[row + 1]):
            step = torch.nn.functional.softplus(dt[token] + bias)
            decay = (a * step).exp()[:, None, None]
            add = step[:, None, None] * x[token][:, :, None] * b[token, 0]
            now, size_of, exponent = decay * now + add, decay * size_of + add.abs(), exponent + (a * step).abs()
            # A sum of as many products as tokens; exponents are differences of sums over the chunk.
            count = token - case.starts[row] + 1
            factor = TENSOR * (2 * count + 48) + 16 * EPSILON * exponent[:, None, None]
            y = (now * c[token, 0]).sum(-1) + d[:, None] * x[token]
            terms = (size_of * c[token, 0].abs()).sum(-1) + (d[:, None] * x[token]).abs()
            slack = (factor * size_of * c[token, 0].abs()).sum(-1) + (dstate + 16) * TENSOR * terms
            if wrong := close(f"output of row {row}, token {count - 1}", out[token], y, slack):
                return wrong
        if wrong := close(f"state of row {row}", state[slots[row]], now, factor * size_of):
            return wrong
    return untouched(case, memory, before, state, set(slots))


def chunks(case: Case, size: int) -> tuple[list[int], list[int], list[int]]:
    """Ends of all chunks, the row of each, the last of each row. The first chunk of a row that resumes may be short."""
    ends, rows_of, last = [0], [], []
    for row in range(case.rows):
        at, end = case.starts[row], case.starts[row + 1]
        room = case.draw.randint(1, size) if case.has_initial[row] else size
        while at < end:
            at, room = min(at + room, end), size
            ends.append(at)
            rows_of.append(row)
        last.append(len(rows_of) - 1)
    return ends, rows_of, last


@cache
def _allow_float32() -> None:
    """Leave out the check that refuses float32 in the chunked gated delta rule, as engines on a device do."""
    from hybridfuzz.targets.vllm.gpu.real_kit import _patch_models

    _patch_models()


def chunk_gated_delta(case: Case) -> str:
    """The gated delta rule's prefill in chunks of 64: h = exp(g) h; h += beta (v - h k) k^T; o = h q."""
    from vllm.third_party.flash_linear_attention.ops.chunk import chunk_gated_delta_rule

    _allow_float32()
    torch = case.torch
    heads, each, k_dim, v_dim = 2, 1, 32, 32  # every other shape is tuned for minutes
    values = heads * each
    unit = torch.nn.functional.normalize
    q, k = (unit(case.numbers(1, case.tokens, heads, k_dim), dim=-1) for _ in range(2))
    v, beta = case.numbers(1, case.tokens, values, v_dim), case.numbers(1, case.tokens, values).sigmoid()
    g = -case.numbers(1, case.tokens, values, scale=0.5).abs()
    initial = case.numbers(case.rows, values, v_dim, k_dim)
    initial[[row for row in range(case.rows) if not case.has_initial[row]]] = 0
    out, last = chunk_gated_delta_rule(
        q, k, v, g, beta, initial_state=initial.clone(), output_final_state=True,
        cu_seqlens=case.integers(case.starts), use_qk_l2norm_in_kernel=False,
    )  # fmt: skip
    q, k, v, g, beta, initial = (one.double().cpu() for one in (q[0], k[0], v[0], g[0], beta[0], initial))
    for row in range(case.rows):
        now, wanted = initial[row], []
        for token in range(case.starts[row], case.starts[row + 1]):
            key = k[token].repeat_interleave(each, 0)[:, None, :]
            query = (q[token] * k_dim**-0.5).repeat_interleave(each, 0)[:, None, :]
            now = g[token].exp()[:, None, None] * now
            delta = beta[token][:, None] * (v[token] - (now * key).sum(-1))
            now = now + delta[:, :, None] * key
            wanted.append((now * query).sum(-1))
        found = out[0, case.starts[row] : case.starts[row + 1]]
        for what, mine, right in (("outputs", found, torch.stack(wanted)), ("state", last[row], now)):
            error = float((mine.double().cpu() - right).norm() / right.norm())
            if not error <= NORM:
                return f"{what} of row {row}: off by {error:.3g} of their norm"
    return ""


PREFILL: dict[str, Callable[[Case], str]] = {
    "causal_conv1d_fn": conv_prefill,
    "mamba_chunk_scan_combined_varlen": chunk_scan,
    "chunk_gated_delta_rule": chunk_gated_delta,
}
