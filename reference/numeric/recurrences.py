"""The recurrences of the tiny model in float64, token by token, each with a bound for the error of float32.

Both keep `states`, (state, bound) after each number of tokens, and compute the layer's output from the convolution's
output at a token. Elementary errors, with u = 2**-24: exp as in `formats`; a store loses one unit of the
state's data type, at worst after every token.

    selective scan   errors decay as the state does; a chunked scan adds at most CHUNK + STATE_DIM terms in one sum
    delta rule       in the 2-norm of each value column: a step multiplies an error by |I - beta k k^T| <= 1, since
                     keys have length one. Elementwise bounds would grow without limit. Token after token only: a
                     chunked form solves for the changes of a chunk, and would need a bound of its own
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from .formats import exp_error, gamma
from .tiny_model import (
    HEAD_DIM,
    HEADS,
    NORM_EPSILON,
    QUERY_SCALE,
    STATE_DIM,
    Array,
    DeltaWeights,
    StateWeights,
    state_shape,
)

U = 2.0**-24
CHUNK = 64
"""A chunked scan may sum over this many tokens at once."""
STORE_UNIT = {"float32": 0.0, "bfloat16": 2.0**-8}
"""Relative error of storing a state; float32 is what it is computed in."""
INNER = HEADS * HEAD_DIM


class Recurrence(Protocol):
    """One recurrent layer along the tokens of one request."""

    states: list[tuple[Array, Array]]

    def step(self, row: int, mixed: Array, error: Array) -> tuple[Array, Array]:
        """One more token: (output, bound), from what the convolution makes of it."""


def recurrence(weights: StateWeights | DeltaWeights, store_unit: float) -> Recurrence:
    """Return the recurrence that fits the weights."""
    return SelectiveScan(weights, store_unit) if isinstance(weights, StateWeights) else DeltaRule(weights, store_unit)


class SelectiveScan:
    """h = exp(dt a) h + dt x (outer) b;  y = h c + d x (Mamba 2). States [HEADS, HEAD_DIM, STATE_DIM]."""

    def __init__(self, weights: StateWeights, store_unit: float) -> None:
        self.weights = weights
        self.store_unit = store_unit
        self.states = [(np.zeros(state_shape("mamba2")),) * 2]
        self.magnitude = np.zeros(state_shape("mamba2"))

    def step(self, row: int, mixed: Array, error: Array) -> tuple[Array, Array]:
        """One more token."""
        weights = self.weights
        x, b, c = np.split(mixed, (INNER, INNER + STATE_DIM))
        x_error, b_error, c_error = np.split(error, (INNER, INNER + STATE_DIM))
        x, x_error = x.reshape(HEADS, HEAD_DIM), x_error.reshape(HEADS, HEAD_DIM)
        step = weights.time_steps[row]
        exponent = (step * weights.decay)[:, None, None]
        decay = np.exp(exponent)
        inflow = (step[:, None] * x)[:, :, None] * b
        inflow_error = step[:, None, None] * (x_error[:, :, None] * abs(b) + abs(x)[:, :, None] * b_error)
        held, bound = self.states[-1]
        held = decay * held + inflow
        faded = decay * self.magnitude
        self.magnitude = faded + abs(inflow)
        rounding = (CHUNK + 8) * U + self.store_unit
        bound = decay * bound + faded * (abs(exponent) + 6) * U + inflow_error + rounding * self.magnitude
        self.states.append((held, bound))
        direct = weights.skip[:, None] * x
        value = held @ c + direct
        reach = abs(held) + bound
        off = bound @ abs(c) + reach @ c_error + (CHUNK + STATE_DIM + 8) * U * (self.magnitude @ abs(c))
        off += abs(weights.skip)[:, None] * x_error + 4 * U * (abs(direct) + abs(value))
        return value, off


class DeltaRule:
    """h = exp(gate) h;  h += k (outer) beta (v - h^T k);  o = h^T q (gated delta net).

    States [HEADS, STATE_DIM, HEAD_DIM]. Keys and queries are normalised; all heads share them. With k~, v~, h~ for what
    float32 has, a step turns an error of h into (I - beta k~ k~^T) (h~ - h) - beta (k~ k~^T - k k^T) h
    + beta (k~ v~ - k v), and rounds.
    """

    def __init__(self, weights: DeltaWeights, store_unit: float) -> None:
        self.weights = weights
        self.store_unit = store_unit
        self.states = [(np.zeros(state_shape("gated_delta_net")),) * 2]

    def step(self, row: int, mixed: Array, error: Array) -> tuple[Array, Array]:
        """One more token."""
        values, key, query = np.split(mixed, (INNER, INNER + STATE_DIM))
        values_error, key_error, query_error = np.split(error, (INNER, INNER + STATE_DIM))
        v, dv = values.reshape(HEADS, HEAD_DIM), values_error.reshape(HEADS, HEAD_DIM)
        k, dk = normalised(key, key_error)
        q, dq = (part * QUERY_SCALE for part in normalised(query, query_error))
        k_size, q_size = np.linalg.norm(k) + dk, np.linalg.norm(q) + dq
        gate, beta = self.weights.gates[row][:, None], self.weights.strengths[row][:, None]
        held, bound = self.states[-1]
        held, off = np.exp(gate)[:, :, None] * held, bound[:, 0]  # a bound is the same for all of a column
        size = np.linalg.norm(held, axis=1)
        off = np.exp(gate) * off
        off += (exp_error(gate) + U) * (size + off)
        moved = beta * (dk * (2 * k_size * size + abs(v) + dv) + k_size * dv)
        rounding = gamma(STATE_DIM + 8) * (size + off + k_size * beta * (abs(v) + dv + k_size * (size + off)))
        held = held + k[:, None] * (beta * (v - np.einsum("hkv,k->hv", held, k)))[:, None, :]
        size = np.linalg.norm(held, axis=1)
        off = off + moved + rounding
        output = np.einsum("hkv,k->hv", held, q)
        output_off = q_size * off + dq * size + gamma(STATE_DIM + 2) * q_size * (size + off)
        off = off + self.store_unit * (size + off)
        self.states.append((held, np.broadcast_to(off[:, None, :], held.shape)))
        return output, output_off


def normalised(vector: Array, error: Array) -> tuple[Array, float]:
    """A vector over its length, and the 2-norm of what float32 may be off by.

    x / sqrt(|x|^2 + epsilon) stretches a distance by at most 1 / sqrt(|x|^2 + epsilon) of the shortest x in between.
    """
    size, off = float(np.linalg.norm(vector)), float(np.linalg.norm(error))
    unit = vector / (size**2 + NORM_EPSILON) ** 0.5
    stretched = off / (max(size - off, 0.0) ** 2 + NORM_EPSILON) ** 0.5
    return unit, stretched + gamma(STATE_DIM + 6) * (float(np.linalg.norm(unit)) + stretched)
