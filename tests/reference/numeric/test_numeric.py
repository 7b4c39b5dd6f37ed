"""The float64 maths against other formulations of it; the bounds hold for float32 and are tight enough to matter."""

from typing import Any

import numpy as np
import pytest

from hybridfuzz.reference import numeric
from hybridfuzz.reference.numeric import BFLOAT16, FLOAT16, FLOAT32, FP8_E4M3, Bounded, Format

RNG = np.random.default_rng


def single(*arrays: Any) -> list[Any]:
    """Values that float32 represents, as float64."""
    return [array.astype(np.float32).astype(np.float64) for array in arrays]


def assert_keeps(actual: Any, expected: Bounded) -> None:
    assert (np.abs(actual - expected.value) <= expected.bound).all()


def assert_breaks(actual: Any, expected: Bounded, share: float = 0.95) -> None:
    """Nearly everywhere: a wrong value must not hide in its bound."""
    assert (np.abs(actual - expected.value) > expected.bound).mean() > share


@pytest.mark.parametrize("window", [0, 1, 3])
def test_attention_is_a_softmax_over_what_each_token_sees(window: int) -> None:
    rng = RNG(window)
    query, keys, values = single(rng.normal(size=(3, 4, 5)), rng.normal(size=(7, 2, 5)), rng.normal(size=(7, 2, 5)))
    result = numeric.attention(query, keys, values, scale=0.4, window=window)
    for token, position in enumerate(range(4, 7)):
        first = max(0, position - window + 1) if window else 0
        for head in range(4):
            k, v = keys[first : position + 1, head // 2], values[first : position + 1, head // 2]
            weights = np.exp(0.4 * k @ query[token, head])
            np.testing.assert_allclose(result.value[token, head], weights @ v / weights.sum(), rtol=1e-12)


@pytest.mark.parametrize("cache", [FLOAT32, FLOAT16, BFLOAT16, FP8_E4M3])
def test_attention_bound_covers_the_cache_and_little_more(cache: Format) -> None:
    rng = RNG(0)
    query, keys, values = single(*(rng.normal(size=(40, 2, 16)) for _ in range(3)))
    expected = numeric.attention(query, keys, values, scale=0.25, cache=cache)
    noisy = [x * (1 + cache.unit * rng.choice([-1, 1], x.shape)) for x in (keys, values)]
    assert_keeps(numeric.attention(query, *noisy, scale=0.25).value, expected)
    if cache.unit <= FLOAT16.unit:
        shifted = numeric.attention(query[1:], keys[:-1], values[:-1], scale=0.25).value
        assert_breaks(shifted, Bounded(expected.value[1:], expected.bound[1:]), 0.85)


def test_convolution_is_numpys() -> None:
    rng = RNG(1)
    inputs, weight, bias, window = single(*(rng.normal(size=s) for s in ((9, 3), (3, 4), (3,), (3, 3))))
    result = numeric.convolution(inputs, weight, bias, window)
    for channel in range(3):
        history = np.concatenate([window, inputs])[:, channel]
        total = np.convolve(history, weight[channel, ::-1], "valid") + bias[channel]
        np.testing.assert_allclose(result.value[:, channel], total / (1 + np.exp(-total)), rtol=1e-12)
    reversed_window = numeric.convolution(inputs, weight, bias, window[::-1]).value
    assert_breaks(reversed_window[:2], Bounded(result.value[:2], result.bound[:2]))


def test_a_window_after_any_count_is_the_last_inputs() -> None:
    history = np.arange(20.0).reshape(10, 2)
    for count in range(8):
        np.testing.assert_array_equal(numeric.last_window(history[:3], history[3:], count), history[count : count + 3])


def draw_scan(seed: int, tokens: int) -> tuple[list[Any], Any]:
    rng = RNG(seed)
    groups = [rng.normal(size=(tokens, 2, 5)) for _ in range(2)]
    x, dt, a, d = rng.normal(size=(tokens, 4, 3)), rng.random((tokens, 4)), -rng.random(4), rng.normal(size=4)
    inputs = single(x, dt, a, *groups, d, rng.normal(size=(4, 3, 5)))
    return inputs[:-1], inputs[-1]


def test_scan_is_the_sum_of_decayed_inputs() -> None:
    (x, dt, a, b, c, d), initial = draw_scan(0, 6)
    outputs, states = numeric.scan(x, dt, a, b, c, d, initial)
    b, c = np.repeat(b, 2, 1), np.repeat(c, 2, 1)
    since = np.concatenate([np.zeros((1, 4)), np.cumsum(dt * a, 0)])
    for token in range(6):
        state = initial * np.exp(since[token + 1])[:, None, None]
        for source in range(token + 1):
            decay = np.exp(since[token + 1] - since[source + 1]) * dt[source]
            state += decay[:, None, None] * x[source][:, :, None] * b[source][:, None, :]
        np.testing.assert_allclose(states.value[token + 1], state, rtol=1e-10)
        np.testing.assert_allclose(outputs.value[token], (state * c[token][:, None]).sum(2) + d[:, None] * x[token])


def run_single(x: Any, dt: Any, a: Any, b: Any, c: Any, d: Any, state: Any) -> tuple[Any, Any]:
    """The recurrence in float32."""
    x, dt, a, b, c, d, state = (array.astype(np.float32) for array in (x, dt, a, b, c, d, state))
    b, c = np.repeat(b, 2, 1), np.repeat(c, 2, 1)
    outputs = []
    for token in range(len(x)):
        state = np.exp(dt[token] * a)[:, None, None] * state
        state = state + (dt[token][:, None] * x[token])[:, :, None] * b[token][:, None, :]
        outputs.append((state * c[token][:, None]).sum(2) + d[:, None] * x[token])
    return np.array(outputs), state


def test_scan_bound_covers_float32_and_not_a_token_too_many() -> None:
    inputs, initial = draw_scan(1, 60)
    outputs, states = numeric.scan(*inputs, initial, stored_after=())
    actual, state = run_single(*inputs, initial)
    last = Bounded(states.value[-1], states.bound[-1])
    assert_keeps(actual, outputs)
    assert_keeps(state, last)
    assert_breaks(states.value[-2], last)


def test_stored_states_cost_their_format_each_time() -> None:
    inputs, initial = draw_scan(2, 8)
    never, once, always = (
        numeric.scan(*inputs, initial, stored=BFLOAT16, stored_after=after)[1].bound[-1] for after in ((), (4,), None)
    )
    assert (never < once).all()
    assert (once < always).all()
    _, states = numeric.scan(*inputs, initial, stored=BFLOAT16, stored_after=(4,))
    assert (states.bound[4] >= BFLOAT16.unit * np.abs(states.value[4])).all()


def draw_delta(seed: int, tokens: int) -> tuple[list[Any], Any]:
    rng = RNG(seed)
    query, key = (rng.normal(size=(tokens, 2, 6)) for _ in range(2))
    query, key = (array / np.linalg.norm(array, axis=2, keepdims=True) for array in (query, key))
    value, gate, beta = rng.normal(size=(tokens, 4, 5)), -0.3 * rng.random((tokens, 4)), rng.random((tokens, 4))
    inputs = single(query, key, value, gate, beta)
    return inputs, single(rng.normal(size=(4, 6, 5)))[0]


def delta_steps(inputs: list[Any], state: Any, dtype: Any) -> tuple[Any, Any]:
    """The rule as a product of matrices, (I - beta k k^T) h + beta k v^T."""
    query, key, value, gate, beta = (array.astype(dtype) for array in inputs)
    state, outputs = state.astype(dtype), []
    for token in range(len(value)):
        new = []
        for head in range(4):
            k, strength = key[token, head // 2], beta[token, head]
            turn = np.eye(6, dtype=dtype) - strength * np.outer(k, k)
            new.append(turn @ (np.exp(gate[token, head]) * state[head]) + strength * np.outer(k, value[token, head]))
        state = np.array(new)
        outputs.append([state[head].T @ query[token, head // 2] for head in range(4)])
    return np.array(outputs), state


def test_delta_rule_is_a_product_of_matrices() -> None:
    inputs, initial = draw_delta(0, 7)
    outputs, states = numeric.delta_rule(*inputs, initial)
    expected, state = delta_steps(inputs, initial, np.float64)
    np.testing.assert_allclose(outputs.value, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(states.value[-1], state, rtol=1e-9, atol=1e-12)


def test_delta_bound_covers_float32_and_does_not_grow_without_limit() -> None:
    inputs, initial = draw_delta(1, 300)
    outputs, states = numeric.delta_rule(*inputs, initial, stored_after=())
    actual, state = delta_steps(inputs, initial, np.float32)
    last = Bounded(states.value[-1], states.bound[-1])
    assert_keeps(actual, outputs)
    assert_keeps(state, last)
    assert_breaks(states.value[-2], last)
    assert last.bound.max() < 1e-4
