"""Causal softmax attention of one request."""

from __future__ import annotations

import numpy as np

from .formats import FLOAT32, Array, Bounded, Format, exp_error, gamma, rounded


def attention(
    query: Array,
    keys: Array,
    values: Array,
    *,
    scale: float,
    window: int = 0,
    cache: Format = FLOAT32,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
    output: Format = FLOAT32,
) -> Bounded:
    """Return attention of the last len(query) positions over all keys.

    query [tokens, heads, head_dim]; keys, values [positions, kv_heads, head_dim], before they are stored: the rounding
    of `cache` is part of the bound. window: positions that a token attends to, itself included; 0 for all.

    Bound: a score is off by E = scale * sum |q| dk + gamma(head_dim + 3) * sum |q k|. A weight is exp of a score, times
    one factor for every page of an online softmax, whose exponents sum up to the range of the scores; so it is off by a
    factor exp(t), t = E + exp_error(range) + 16 u * positions, up to a factor that all weights share and the division
    cancels. Normalised, exp(2 t). The sums add 2 gamma(2 * positions + 8), the stored values their own error.
    """
    repeat = query.shape[1] // keys.shape[1]
    keys, values = np.repeat(keys, repeat, 1), np.repeat(values, repeat, 1)
    key_error, value_error = cache.error(np.abs(keys), key_scale), cache.error(np.abs(values), value_scale)
    size, positions = np.abs(query), len(keys)
    scores = scale * np.einsum("thd,shd->hts", query, keys)
    errors = np.einsum("thd,shd->hts", size, key_error)
    errors += gamma(query.shape[2] + 3) * np.einsum("thd,shd->hts", size, np.abs(keys) + key_error)
    errors *= scale
    own = np.arange(positions - len(query), positions)[:, None]
    seen = np.arange(positions)[None, :] <= own
    if window:
        seen &= np.arange(positions)[None, :] > own - window
    scores = np.where(seen, scores, -np.inf)
    shifted = scores - scores.max(2, keepdims=True)
    spread = -np.where(seen, shifted, 0.0).min(2, keepdims=True)
    off = (np.where(seen, errors, 0.0) + exp_error(spread) + 16 * positions * 2.0**-24).max(2, keepdims=True)
    weights = np.exp(shifted)
    weights /= weights.sum(2, keepdims=True)
    result = np.einsum("hts,shd->thd", weights, values)
    factor = np.exp(2 * off) * (1 + 2 * gamma(2 * positions + 8))
    stray = np.einsum("hts,shd->thd", weights * (factor - 1), np.abs(values))
    stray += np.einsum("hts,shd->thd", weights * factor, value_error)
    return rounded(result, stray, output)
