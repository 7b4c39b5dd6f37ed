"""Causal convolution, Mamba 2 scan and gated delta rule of one request, token by token."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from .formats import FLOAT32, Array, Bounded, Format, U, exp_error, gamma, rounded

SILU_SLOPE = 1.1


def last_window(window: Array, inputs: Array, count: int) -> Array:
    """Return the window [width - 1, channels] after `count` of the inputs [tokens, channels], exactly."""
    history = np.concatenate([window, inputs])
    return history[count : count + len(window)]


def convolution(
    inputs: Array,
    weight: Array,
    bias: Array,
    window: Array,
    *,
    stored: Format = FLOAT32,
    output: Format = FLOAT32,
) -> Bounded:
    """silu(conv): inputs [tokens, channels], weight [channels, width], bias [channels], window [width - 1, channels].

    The window is given as it was before it was stored. Bound: the sum is off by E = sum |w| dh + gamma(width + 2) *
    (|bias| + sum |w h|); silu has a slope below 1.1, and its exp, sum and (approximate) division add
    |y| * (exp_error(x) + 8 u).
    """
    width = weight.shape[1]
    history = np.concatenate([window, inputs])
    error = np.concatenate([stored.error(np.abs(window)), np.zeros_like(inputs)])
    at = np.arange(len(inputs))[:, None] + np.arange(width)
    total = np.einsum("twc,cw->tc", history[at], weight) + bias
    stray = np.einsum("twc,cw->tc", error[at], np.abs(weight))
    magnitude = np.einsum("twc,cw->tc", np.abs(history[at]) + error[at], np.abs(weight)) + np.abs(bias)
    stray += gamma(width + 2) * magnitude
    result = total / (1 + np.exp(-total))
    return rounded(result, SILU_SLOPE * stray + np.abs(result) * (exp_error(total) + 8 * U), output)


def scan(
    x: Array,
    dt: Array,
    a: Array,
    b: Array,
    c: Array,
    d: Array,
    initial: Bounded | Array,
    *,
    chunk: int = 16,
    stored: Format = FLOAT32,
    stored_after: Collection[int] | None = None,
    output: Format = FLOAT32,
) -> tuple[Bounded, Bounded]:
    """h = exp(dt a) h + dt x (outer) b;  y = h c + d x.  Returns y, and the states after each token.

    x [tokens, heads, head_dim], dt [tokens, heads], a and d [heads], b and c [tokens, groups, state_dim], initial
    [heads, head_dim, state_dim]; states [tokens + 1, heads, head_dim, state_dim], the initial one first. `stored_after`
    has the numbers of tokens after which the state was stored in `stored` (a launch ended there); None: after each.

    Bound: a state is a sum of paths, each a product of its x, b and decays. A token adds a relative error of at most
    s = u (16 + (4 + 2 chunk) |dt a|) to every path through it: three roundings and an exp in the recurrence; in the
    chunked form the cumulated sums of dt a (gamma(chunk) of up to the chunk's span, twice), an exp and two products.
    So e' = decay (1 + s) e + s H', where H is the state of absolute values.
    """
    start = initial if isinstance(initial, Bounded) else Bounded(initial, np.zeros_like(initial))
    repeat = x.shape[1] // b.shape[1]
    b, c = np.repeat(b, repeat, 1), np.repeat(c, repeat, 1)
    state, error, paths = start.value, start.bound, np.abs(start.value)
    states, errors, outputs, strays = [state], [error], [], []
    for token in range(len(x)):
        decay = np.exp(dt[token] * a)[:, None, None]
        flow = (dt[token, :, None] * x[token])[:, :, None] * b[token, :, None, :]
        local = U * (16 + (4 + 2 * chunk) * np.abs(dt[token] * a))[:, None, None]
        state, paths = decay * state + flow, decay * paths + np.abs(flow)
        error = decay * (1 + local) * error + local * paths
        weight, skipped = c[token, :, None, :], d[:, None] * x[token]
        outputs.append((state * weight).sum(2) + skipped)
        magnitude = ((paths + error) * np.abs(weight)).sum(2) + np.abs(skipped)
        strays.append((error * np.abs(weight)).sum(2) + gamma(x.shape[2] + b.shape[2] + chunk + 8) * magnitude)
        if stored_after is None or token + 1 in stored_after:
            error = error + stored.error(np.abs(state) + error)
        states.append(state)
        errors.append(error)
    shape = (0, *x.shape[1:])
    result = rounded(np.array(outputs).reshape(-1, *shape[1:]), np.array(strays).reshape(-1, *shape[1:]), output)
    return result, Bounded(np.array(states), np.array(errors))


def delta_rule(
    query: Array,
    key: Array,
    value: Array,
    gate: Array,
    beta: Array,
    initial: Bounded | Array,
    *,
    stored: Format = FLOAT32,
    stored_after: Collection[int] | None = None,
    output: Format = FLOAT32,
) -> tuple[Bounded, Bounded]:
    """h = exp(gate) h;  h += key (outer) beta (value - h^T key);  o = h^T query. Returns o, and the states.

    query, key [tokens, key_heads, key_dim], value [tokens, heads, value_dim], gate and beta [tokens, heads], initial
    [heads, key_dim, value_dim]; states and `stored_after` as for scan.

    Bound, in the 2-norm of each value column (elementwise ones would grow: |I - beta k k^T| has no cancellation): the
    exact step multiplies an error by at most max(1, |1 - beta |k|^2|); its own roundings add gamma(key_dim + 8) times
    M = |h| + |k| beta (|v| + |k| |h|), with |h| after the decay and including its error.
    """
    start = initial if isinstance(initial, Bounded) else Bounded(initial, np.zeros_like(initial))
    repeat, key_dim = value.shape[1] // key.shape[1], key.shape[2]
    query, key = np.repeat(query, repeat, 1), np.repeat(key, repeat, 1)
    state, error = start.value, np.linalg.norm(start.bound, axis=1)
    states, errors, outputs, strays = [state], [start.bound], [], []
    for token in range(len(value)):
        k, strength = np.linalg.norm(key[token], axis=1)[:, None], np.abs(beta[token])[:, None]
        local = (exp_error(gate[token]) + 2 * U)[:, None]
        state = np.exp(gate[token])[:, None, None] * state
        size = np.linalg.norm(state, axis=1)
        error = np.exp(gate[token])[:, None] * (1 + local) * error + local * size
        seen = np.einsum("hkv,hk->hv", state, key[token])
        state = state + key[token][:, :, None] * (beta[token][:, None] * (value[token] - seen))[:, None, :]
        magnitude = size + error + k * strength * (np.abs(value[token]) + k * (size + error))
        error = np.maximum(1.0, np.abs(1 - beta[token][:, None] * k**2)) * error + gamma(key_dim + 8) * magnitude
        q, size = np.linalg.norm(query[token], axis=1)[:, None], np.linalg.norm(state, axis=1)
        outputs.append(np.einsum("hkv,hk->hv", state, query[token]))
        strays.append(q * error + gamma(key_dim + 2) * q * (size + error))
        if stored_after is None or token + 1 in stored_after:
            error = error + np.linalg.norm(stored.error(np.abs(state)), axis=1) + stored.unit * error
        states.append(state)
        errors.append(np.broadcast_to(error[:, None, :], state.shape))
    shape = value.shape[1:]
    result = rounded(np.array(outputs).reshape(-1, *shape), np.array(strays).reshape(-1, *shape), output)
    return result, Bounded(np.array(states), np.array(errors))
