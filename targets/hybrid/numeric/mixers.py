"""Recurrences of the state layers: one part of a batch, one layer, one launch.

Both mixers read the output of the convolution, use the same index arrays and share the page layout. A mixer is one
function of the table at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ....reference.numeric.tiny_model import HEAD_DIM, HEADS, NORM_EPSILON, QUERY_SCALE, STATE_DIM, Mixer
from .kernels.metadata import Rows, Stops
from .kernels.ops import Ops

INNER = HEADS * HEAD_DIM


class MixerInputs(NamedTuple):
    """Inputs of a mixer: rows of one part of the batch in one layer.

    state       [pages, ...]: recurrent states of the layer
    mixed       [tokens, CONV_CHANNELS]: output of the convolution
    embeddings  int64 [tokens]: rows of the embedding tables
    sources     int32 [rows]: pages of the initial states
    stored      pages to store states in: [rows, width] after each token of a decode, or the stops of prefills
    """

    state: Tensor
    mixed: Tensor
    embeddings: Tensor
    rows: Rows
    sources: Tensor
    stored: Tensor | Stops


Weights = Mapping[str, Tensor]


def selective_scan(ops: Ops, weights: Weights, part: MixerInputs) -> Tensor:
    """Return the output of Mamba 2 and store its states."""
    x, b, c = torch.split(part.mixed, [INNER, STATE_DIM, STATE_DIM], dim=1)
    output = torch.full((len(x), HEADS, HEAD_DIM), torch.nan, device=x.device)
    steps = weights["time_steps"][part.embeddings]
    operands = (x.view(len(x), HEADS, -1), steps, weights["decay"], b[:, None], c[:, None], weights["skip"])
    if isinstance(part.stored, Stops):
        ops.chunk_scan(part.state, *operands, part.rows, part.sources, part.stored, output)
    else:
        column = torch.zeros_like(part.sources)
        ops.state_update(part.state, *operands, part.rows, part.sources[:, None], column, part.stored, output)
    return output


def gated_delta_net(ops: Ops, weights: Weights, part: MixerInputs) -> Tensor:
    """Return the output of the gated delta net and store its states; one kernel for prefills, decodes and drafts."""
    value, key, query = torch.split(part.mixed, [INNER, STATE_DIM, STATE_DIM], dim=1)
    output = torch.full((len(value), HEADS, HEAD_DIM), torch.nan, device=value.device)
    ops.delta_rule(
        part.state,
        normalised(query)[:, None] * QUERY_SCALE,
        normalised(key)[:, None],
        value.view(len(value), HEADS, -1),
        weights["gates"][part.embeddings],
        weights["strengths"][part.embeddings],
        part.rows,
        part.sources[:, None],
        torch.zeros_like(part.sources),
        part.stored if isinstance(part.stored, Stops) else Stops.after_each_token(part.stored),
        output,
    )
    return output


def normalised(vectors: Tensor) -> Tensor:
    """Return the vectors of the last dimension, divided by their length."""
    return vectors / (vectors.square().sum(-1, keepdim=True) + NORM_EPSILON).sqrt()


MIXERS: dict[Mixer, Callable[[Ops, Weights, MixerInputs], Tensor]] = {
    "mamba2": selective_scan,
    "gated_delta_net": gated_delta_net,
}
