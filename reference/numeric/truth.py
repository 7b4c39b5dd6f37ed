"""Expected numbers of a numeric run: float64 values, and bounds for the error of float32 arithmetic.

The bounds are running error analyses: next to each value its largest possible error is computed from the same
magnitudes, so a bound is valid for every order of the same operations. Inputs, weights, scores before scaling and
exponents are dyadic fractions and thus exact in float32. What remains, with u = 2**-24:

    exp(x)        the argument is rescaled to base 2 once, the result is off by at most 4 units: (|x| + 4) u
    silu(c)       c / (1 + exp(-c)): (|c| + 10) u
    sum of n      at most n u times the sum of magnitudes, whatever the order
    a recurrence  see `recurrences`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..layout import Group
from ..tokens import Truth
from .recurrences import STORE_UNIT, U, recurrence
from .tiny_model import (
    ATTENTION_DIM,
    OUTPUT_WIDTH,
    Array,
    AttentionWeights,
    DeltaWeights,
    StateWeights,
    TinyModel,
    attention_weights,
    embedding_row,
    read_out,
    recurrent_weights,
)


class Expected(NamedTuple):
    """float64 [tokens, OUTPUT_WIDTH] each: the value, and the largest possible distance from it."""

    values: Array
    bounds: Array


class StateTrack:
    """One recurrent layer along the tokens of one request."""

    def __init__(self, weights: StateWeights | DeltaWeights, store_unit: float) -> None:
        self.weights = weights
        self.rows: list[int] = []
        self.recurrence = recurrence(weights, store_unit)
        self.outputs: list[tuple[Array, Array]] = []

    @property
    def states(self) -> Sequence[tuple[Array, Array]]:
        """(state, bound) after each number of tokens."""
        return self.recurrence.states

    def extend(self, row: int) -> None:
        """One more token."""
        self.rows.append(row)
        value, off = self.recurrence.step(row, *self._convolve())
        self.outputs.append((_padded(value), _padded(off)))

    def _convolve(self) -> tuple[Array, Array]:
        """Return SiLU of the convolution at the last token, and its error; the sum itself is exact."""
        weights, width = self.weights, self.weights.filter.shape[1]
        window = weights.inputs[self.rows[-width:]]
        total = (window * weights.filter[:, width - len(window) :].T).sum(0) + weights.bias
        mixed = total / (1 + np.exp(-total))
        return mixed, abs(mixed) * (abs(total) + 10) * U

    def window(self, depth: int) -> Array:
        """Return the convolution window after `depth` tokens: [conv_width - 1, CONV_CHANNELS]."""
        width = self.weights.filter.shape[1]
        past = self.weights.inputs[self.rows[max(depth - width + 1, 0) : depth]]
        return np.concatenate([np.zeros((width - 1 - len(past), past.shape[1])), past])

    def page(self, start: int, depth: int) -> tuple[Array, Array]:
        """Return the content of a block for positions `start` .. `depth` - 1: the state after all of them, the
        window."""
        return self.states[depth][0], self.window(depth)


class AttentionTrack:
    """One attention layer along the tokens of one request."""

    def __init__(self, weights: AttentionWeights, window: int) -> None:
        self.weights = weights
        self.window = window
        self.rows: list[int] = []
        self.outputs: list[tuple[Array, Array]] = []

    def extend(self, row: int) -> None:
        """One more token."""
        self.rows.append(row)
        seen = self.rows[-self.window :]
        keys, values = self.weights.keys[seen, 0], self.weights.values[seen, 0]
        scores = self.weights.queries[row] @ keys.T * ATTENTION_DIM**-0.5
        largest = abs(scores).max(1, keepdims=True)
        chances = np.exp(scores - scores.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        value = chances @ values
        # Scaling and subtraction: 4 |score| u in the exponent; then exp itself; then two sums and a division.
        relative = (12 * largest + 2 * len(self.rows) + 16) * U
        self.outputs.append((_padded(value), _padded(relative * (chances @ abs(values) + abs(value)))))

    def page(self, start: int, depth: int) -> tuple[Array, Array]:
        """Return keys and values of positions `start` .. `depth` - 1: [tokens, KV_HEADS, ATTENTION_DIM] each."""
        rows = self.rows[start:depth]
        return self.weights.keys[rows], self.weights.values[rows]


def make_track(model: TinyModel, group: Group, index: int, layer: int) -> StateTrack | AttentionTrack:
    """Return layer `layer` of group `index` before its first token."""
    if group.kind == "mamba":
        return StateTrack(recurrent_weights(model, index, layer), STORE_UNIT[model.state_dtype])
    return AttentionTrack(attention_weights(index, layer), group.window)


class NumericTruth:
    """All layers of the tiny model along one request; grows on demand."""

    def __init__(self, model: TinyModel, groups: tuple[Group, ...], truth: Truth) -> None:
        self.truth = truth
        self.tracks = {
            (index, layer): make_track(model, group, index, layer)
            for index, group in enumerate(groups)
            for layer in range(group.layers)
        }

    def track(self, group: int, layer: int, depth: int) -> StateTrack | AttentionTrack:
        """Return one layer, computed for at least `depth` tokens."""
        track = self.tracks[group, layer]
        self.truth.reach(depth)
        for position in range(len(track.rows), depth):
            track.extend(embedding_row(self.truth.tokens[position], position))
        return track

    def expected(self, group: int, layer: int, start: int, stop: int) -> Expected:
        """Return the outputs at positions start .. stop - 1."""
        outputs = self.track(group, layer, stop).outputs[start:stop]
        return Expected(np.array([value for value, _ in outputs]), np.array([bound for _, bound in outputs]))

    def choice(self, position: int) -> tuple[int, bool]:
        """Return the sampled token after `position`, and True if rounding cannot change it."""
        logits, bound = np.zeros(()), np.zeros(())
        for layer in self.tracks:
            expected, weights = self.expected(*layer, position, position + 1), read_out(*layer)
            logits = logits + expected.values[0] @ weights
            # A sum over all layers' features: at most that many roundings of the sum of magnitudes.
            terms = len(self.tracks) * OUTPUT_WIDTH + 2
            bound = bound + expected.bounds[0] @ abs(weights) + terms * U * (abs(expected.values[0]) @ abs(weights))
        best = int(logits.argmax())
        rivals = np.delete(logits + bound, best)
        return best + 2, bool(logits[best] - bound[best] > rivals.max())


def _padded(values: Array) -> Array:
    flat = values.reshape(-1)
    return np.concatenate([flat, np.zeros(OUTPUT_WIDTH - len(flat))])
