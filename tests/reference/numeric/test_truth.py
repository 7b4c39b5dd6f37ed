"""The float64 model: values equal a naive evaluation, and bounds contain float32 arithmetic but no other state."""

import numpy as np
import pytest

from hybridfuzz.reference.layout import Group
from hybridfuzz.reference.numeric.tiny_model import (
    HEAD_DIM,
    HEADS,
    DeltaWeights,
    Mixer,
    TinyModel,
    attention_weights,
    embedding_row,
    recurrent_weights,
    state_shape,
    state_weights,
)
from hybridfuzz.reference.numeric.truth import NumericTruth, StateTrack
from hybridfuzz.reference.tokens import Truth

GROUPS = (Group("mamba", 8), Group("attention", 4), Group("attention", 4, window=5))
LENGTH = 40


@pytest.fixture
def truth() -> NumericTruth:
    return NumericTruth(TinyModel(4), GROUPS, Truth([("a", LENGTH)]))


def rows(truth: NumericTruth) -> list[int]:
    truth.truth.reach(LENGTH)
    return [embedding_row(token, position) for position, token in enumerate(truth.truth.tokens[:LENGTH])]


MIXERS: tuple[Mixer, ...] = ("mamba2", "gated_delta_net")


def recurrence(mixer: Mixer, looked_up: list[int], dtype: type, state: object = 0.0) -> np.ndarray:
    """Return the outputs of the recurrent layer, in plain loops of one data type; [tokens, HEADS * HEAD_DIM]."""
    weights = recurrent_weights(TinyModel(4, mixer=mixer), 0, 0)
    held = np.zeros(state_shape(mixer), dtype) + np.asarray(state, dtype)
    out = []
    inputs = np.concatenate([np.zeros((3, 16)), weights.inputs[looked_up]]).astype(dtype)
    for index, row in enumerate(looked_up):
        total = weights.bias.astype(dtype).copy()
        for tap in range(4):
            total += inputs[index + tap] * weights.filter[:, tap].astype(dtype)
        mixed = total / (1 + np.exp(-total))
        x, b, c = mixed[:8].reshape(HEADS, HEAD_DIM), mixed[8:12], mixed[12:]
        if isinstance(weights, DeltaWeights):
            key, query = (part / np.sqrt((part**2).sum() + dtype(2.0**-20)) for part in (b, c))
            for head in range(HEADS):
                held[head] *= np.exp(weights.gates[row, head].astype(dtype))
                change = weights.strengths[row, head].astype(dtype) * (x[head] - key @ held[head])
                held[head] += np.outer(key, change)
            out.append((np.einsum("hkv,k->hv", held, query) / dtype(2)).reshape(-1))
            continue
        step = weights.time_steps[row].astype(dtype)
        for head in range(HEADS):
            decay = np.exp(step[head] * dtype(weights.decay[head]))
            held[head] = decay * held[head] + step[head] * np.outer(x[head], b)
        out.append((held @ c + weights.skip.astype(dtype)[:, None] * x).reshape(-1))
    return np.array(out)


def layer_truth(mixer: Mixer, dtype: str = "float32") -> NumericTruth:
    return NumericTruth(TinyModel(4, state_dtype=dtype, mixer=mixer), GROUPS, Truth([("a", LENGTH)]))  # type: ignore[arg-type]


@pytest.mark.parametrize("mixer", MIXERS)
def test_the_recurrent_layer_is_what_a_naive_loop_says(mixer: Mixer) -> None:
    truth = layer_truth(mixer)
    expected = truth.expected(0, 0, 0, LENGTH)
    assert np.allclose(expected.values[:, :8], recurrence(mixer, rows(truth), np.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mixer", MIXERS)
def test_bounds_contain_single_precision(mixer: Mixer) -> None:
    truth = layer_truth(mixer)
    expected = truth.expected(0, 0, 0, LENGTH)
    distance = abs(recurrence(mixer, rows(truth), np.float32) - expected.values[:, :8])
    assert (distance <= expected.bounds[:, :8]).all()
    assert distance.max() > 0


@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bounds_exclude_another_state(mixer: Mixer, dtype: str) -> None:
    """A request that resumes from a slightly different state is detected at once."""
    truth = layer_truth(mixer, dtype)
    expected = truth.expected(0, 0, 0, LENGTH)
    other = recurrence(mixer, rows(truth), np.float64, state=1.0)
    assert (abs(other[0] - expected.values[0, :8]) > expected.bounds[0, :8]).any()


def test_the_bounds_of_a_delta_net_do_not_grow_with_the_tokens() -> None:
    """An error decays with the state: after a thousand tokens it is no larger than after forty."""
    truth = NumericTruth(TinyModel(4, mixer="gated_delta_net"), GROUPS, Truth([("a", 1000)]))
    bounds = truth.expected(0, 0, 0, 1000).bounds
    assert bounds[-100:].max() <= 2 * bounds[:LENGTH].max() < 1e-4


@pytest.mark.parametrize(("group", "window"), [(1, 0), (2, 5)])
def test_attention_is_what_a_naive_softmax_says(truth: NumericTruth, group: int, window: int) -> None:
    looked_up, weights = rows(truth), attention_weights(group, 0)
    for position in (0, 3, 4, 5, LENGTH - 1):
        seen = looked_up[max(position - window + 1, 0) if window else 0 : position + 1]
        for head in range(2):
            scores = (
                np.array([weights.queries[looked_up[position], head] @ weights.keys[row, 0] for row in seen]) / 8**0.5
            )
            chances = np.exp(scores) / np.exp(scores).sum()
            wanted = sum(chance * weights.values[row, 0] for chance, row in zip(chances, seen, strict=True))
            got = truth.expected(group, 0, position, position + 1).values[0].reshape(2, 8)[head]
            assert np.allclose(got, wanted, rtol=1e-12, atol=1e-12)


def test_the_choice_is_certain_nearly_always(truth: NumericTruth) -> None:
    assert sum(truth.choice(position)[1] for position in range(LENGTH)) >= LENGTH - 1


def test_a_window_is_the_last_inputs(truth: NumericTruth) -> None:
    track = truth.track(0, 0, 5)
    assert isinstance(track, StateTrack)
    inputs = state_weights(4, 0, 0).inputs
    looked_up = rows(truth)
    assert np.array_equal(track.window(5), inputs[looked_up[2:5]])
    assert np.array_equal(track.window(1), np.concatenate([np.zeros((2, 16)), inputs[looked_up[:1]]]))
