"""vLLM's decode kernels of state layers against float64, within bounds that follow from the number of roundings."""

from __future__ import annotations

from collections.abc import Callable

from kernel_case import EPSILON, Case, close, kept, live_slots, untouched


def selective_update(case: Case) -> str:
    """Mamba 2's decode step: state' = exp(A dt) state + dt B x; y = C state' + D x."""
    from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update

    torch, draw = case.torch, case.draw
    heads, dim, dstate, groups = draw.choice((2, 4)), draw.choice((16, 32, 64)), draw.choice((16, 24, 64)), 1
    memory, state = case.states(heads, dim, dstate)
    x, b, c = (case.numbers(case.tokens, *shape) for shape in ((heads, dim), (groups, dstate), (groups, dstate)))
    dt, bias, d = (case.numbers(*shape, scale=0.3) for shape in ((case.tokens, heads), (heads,), (heads,)))
    a = -case.numbers(heads).abs() - 0.1
    before = kept(case, memory)
    first = {row: state[case.table[row][case.accepted[row] - 1 if case.drafts else 0]].double().cpu()
             for row in range(case.rows) if not case.null[row]}  # fmt: skip
    out = torch.full((case.tokens, heads, dim), float("nan"), device=case.device)
    indices = case.integers(case.table if case.drafts else [one[0] for one in case.table])
    more = {"num_accepted_tokens": case.integers(case.accepted), "cu_seqlens": case.integers(case.starts)}
    selective_state_update(
        state, x, dt[:, :, None].expand(-1, -1, dim), a[:, None, None].expand(-1, dim, dstate), b, c,
        d[:, None].expand(-1, dim), dt_bias=bias[:, None].expand(-1, dim), dt_softplus=True,
        state_batch_indices=indices, out=out, **(more if case.drafts else {}),
    )  # fmt: skip
    x, b, c, dt, bias, d, a = (one.double().cpu() for one in (x, b, c, dt, bias, d, a))
    for row, initial in first.items():
        now, error = initial, torch.zeros_like(initial)
        for token in range(case.starts[row], case.starts[row + 1]):
            step = torch.nn.functional.softplus(dt[token] + bias)
            decay = (a * step).exp()[:, None, None]
            add = step[:, None, None] * x[token][:, :, None] * b[token, 0]
            # The exponent has a few roundings of its own size, the product three, the sum one.
            now, error = (
                decay * now + add,
                decay * error
                + EPSILON * ((12 + 8 * (a * step).abs()[:, None, None]) * (decay * now).abs() + 12 * add.abs()),
            )
            y = (now * c[token, 0]).sum(-1) + d[:, None] * x[token]
            terms = (now.abs() * c[token, 0].abs()).sum(-1) + (d[:, None] * x[token]).abs()
            slack = (error * c[token, 0].abs()).sum(-1) + (dstate + 8) * EPSILON * terms
            if wrong := close(f"output of row {row}", out[token], y, slack):
                return wrong
            if case.drafts and not case.far:
                slot = case.table[row][token - case.starts[row]]
                if wrong := close(f"state of row {row}, token {token}", state[slot], now, error + EPSILON * now.abs()):
                    return wrong
        at_end = case.lengths[row] and (not case.drafts or case.far)
        place = case.table[row][0]
        if at_end and (wrong := close(f"state of row {row}", state[place], now, error + EPSILON * now.abs())):
            return wrong
    return untouched(case, memory, before, state, live_slots(case))


def gated_delta_update(case: Case) -> str:
    """A gated delta net's decode step: h = exp(g) h; h += beta (v - h k) k^T; o = h q."""
    from vllm.third_party.flash_linear_attention.ops.fused_sigmoid_gating import fused_sigmoid_gating_delta_rule_update

    torch, draw = case.torch, case.draw
    heads, each, k_dim, v_dim = (
        draw.choice((1, 2)),
        draw.choice((1, 2)),
        draw.choice((16, 32, 64)),
        draw.choice((16, 32, 48)),
    )
    values = heads * each
    memory, state = case.states(values, v_dim, k_dim)
    q, k = case.numbers(1, case.tokens, heads, k_dim), case.numbers(1, case.tokens, heads, k_dim)
    v, a, b = (
        case.numbers(1, case.tokens, values, v_dim),
        case.numbers(case.tokens, values),
        case.numbers(case.tokens, values),
    )
    a_log, bias = case.numbers(values, scale=0.5), case.numbers(values, scale=0.3)
    before = kept(case, memory)
    first = {row: state[case.table[row][case.accepted[row] - 1 if case.drafts else 0]].double().cpu()
             for row in range(case.rows) if not case.null[row]}  # fmt: skip
    indices = case.integers(case.table if case.drafts else [one[0] for one in case.table])
    more = {"num_accepted_tokens": case.integers(case.accepted)} if case.drafts else {}
    out, _ = fused_sigmoid_gating_delta_rule_update(
        A_log=a_log, a=a, b=b, dt_bias=bias, q=q, k=k, v=v, initial_state=state, inplace_final_state=True,
        cu_seqlens=case.integers(case.starts).long(), ssm_state_indices=indices, use_qk_l2norm_in_kernel=True, **more,
    )  # fmt: skip
    q, k, v, a, b, a_log, bias = (one.double().cpu() for one in (q[0], k[0], v[0], a, b, a_log, bias))
    out = out[0]
    for row, initial in first.items():
        now, error = initial, torch.zeros_like(initial)
        for token in range(case.starts[row], case.starts[row + 1]):
            g = -a_log.exp() * torch.nn.functional.softplus(a[token] + bias)
            unit = lambda one: one / (one.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt()  # noqa: E731
            key = unit(k[token]).repeat_interleave(each, 0)[:, None, :]
            query = (unit(q[token]) * k_dim**-0.5).repeat_interleave(each, 0)[:, None, :]
            decay, beta = g.exp()[:, None, None], b[token].sigmoid()[:, None]
            old, slack = decay * now, decay * error + EPSILON * (12 + 8 * g.abs()[:, None, None]) * (decay * now).abs()
            seen, bound = (old * key).sum(-1), (slack * key.abs() + (k_dim + 24) * EPSILON * (old * key).abs()).sum(-1)
            delta = beta * (v[token] - seen)
            wrong_by = beta * bound + 12 * EPSILON * (beta * (v[token].abs() + seen.abs()))
            now = old + delta[:, :, None] * key
            error = slack + wrong_by[:, :, None] * key.abs() + (k_dim + 24) * EPSILON * (delta[:, :, None] * key).abs()
            error = error + EPSILON * now.abs()
            o = (now * query).sum(-1)
            room = (error * query.abs() + (2 * k_dim + 32) * EPSILON * (now * query).abs()).sum(-1)
            if wrong := close(f"output of row {row}", out[token], o, room):
                return wrong
            slot = case.table[row][token - case.starts[row] if case.drafts else 0]
            last = token == case.starts[row + 1] - 1
            if (not case.far or last) and (
                wrong := close(f"state of row {row}, token {token}", state[slot], now, error)
            ):
                return wrong
    return untouched(case, memory, before, state, live_slots(case))


def conv_update(case: Case) -> str:
    """The convolution's decode step over a window, with drafts at an offset in it."""
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_update

    torch, draw = case.torch, case.draw
    dim, width = draw.choice((16, 48, 160)), draw.choice((2, 3, 4))
    length = width - 1 + (case.most - 1 if case.drafts else 0)
    for row in range(case.rows):
        case.table[row] = [case.table[row][0]] * case.most
    memory, state = case.states(length, dim)
    x, weight, bias = case.numbers(case.tokens, dim), case.numbers(dim, width), case.numbers(dim)
    before, inputs = kept(case, memory), x.double().cpu()
    first = {row: state[case.table[row][0]].double().cpu() for row in range(case.rows) if not case.null[row]}
    indices = case.integers([one[0] for one in case.table])
    more = {
        "num_accepted_tokens": case.integers(case.accepted), "query_start_loc": case.integers(case.starts),
        "max_query_len": case.most,
    }  # fmt: skip
    out = causal_conv1d_update(
        x, state.transpose(1, 2), weight, bias, "silu", conv_state_indices=indices, **(more if case.drafts else {})
    )
    w, add = weight.double().cpu(), bias.double().cpu()
    for row, window in first.items():
        if not case.lengths[row]:
            continue
        offset = case.accepted[row] - 1 if case.drafts else 0
        own = inputs[case.starts[row] : case.starts[row + 1]]
        line = torch.cat([window[offset : offset + width - 1], own])
        for token in range(len(own)):
            terms = line[token : token + width] * w.T
            total, room = terms.sum(0) + add, (terms.abs().sum(0) + add.abs()) * (2 * width + 2) * EPSILON
            y = total * total.sigmoid()
            slack = 1.1 * room + 16 * EPSILON * (1 + total.abs()) * y.abs() + 1e-30
            if wrong := close(f"output of row {row}", out[case.starts[row] + token], y, slack):
                return wrong
        after = state[case.table[row][0]].double().cpu()
        # The window then holds what a verification may have to go back to: the last width - 1 + drafts inputs.
        shifted = torch.cat([window[offset + 1 : offset + width - 1], own])
        wanted = shifted if case.drafts else line[-(width - 1) :]
        if not torch.equal(after[: len(wanted)], wanted):
            return f"window of row {row}"
    return untouched(
        case, memory, before, state, {one[0] for one, dead in zip(case.table, case.null, strict=True) if not dead}
    )


DECODE: dict[str, Callable[[Case], str]] = {
    "selective_state_update": selective_update,
    "fused_sigmoid_gating_delta_rule_update": gated_delta_update,
    "causal_conv1d_update": conv_update,
}
