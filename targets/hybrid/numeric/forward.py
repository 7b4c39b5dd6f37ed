"""One forward on the device: inputs, every layer, read-out, and the comparison of the fills.

`Network.run` reads nothing on the host, so a CUDA graph can capture it; what it depends on besides the arrays is their
`Shape`. Each layer is fed with embeddings: see `reference/tiny_model.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import NamedTuple

import torch
from torch import Tensor

from ....reference import tiny_model
from ....reference.layout import Layout
from ....reference.tiny_model import HEADS, TinyModel
from ..device.metadata import Rows, Stops
from ..device.ops import Masking, Ops
from .arrays import Shape
from .calls import Layer
from .mixers import INNER, MIXERS, Part
from .pool import FILLS, BytePool

Arrays = Mapping[str, Tensor]


class Results(NamedTuple):
    """On the device, for the tokens of live rows in the order of the batch.

    features  float32 [tokens, layers, OUTPUT_WIDTH] of the first fill; layers in the order of `Network.layers`
    agree     bool [tokens, layers]: the same bits in every fill
    choices   int64 [fills, tokens]: the read-out's token
    """

    features: Tensor
    agree: Tensor
    choices: Tensor


class Network:
    """The layers of one engine, weights on its device."""

    def __init__(self, layout: Layout, model: TinyModel, pool: BytePool, ops: Ops, device: torch.device) -> None:
        self.pool = pool
        self.ops = ops
        self.model = model
        self.device = device
        self.layout = layout
        # Attention that multiplies masked slots by zero relies on zeroed pages; models without states mask by value.
        self.masking: Masking = "multiply" if layout.zeroing else "where"
        self.layers: list[Layer] = [
            (index, layer) for index, group in enumerate(layout.groups) for layer in range(group.layers)
        ]
        self.weights = {layer: self._weights(layer) for layer in self.layers}
        read_out = torch.cat([torch.from_numpy(tiny_model.read_out(*layer)) for layer in self.layers])
        self.read_out = read_out.float().to(device)

    def _weights(self, layer: Layer) -> dict[str, Tensor]:
        group = self.layout.groups[layer[0]]
        source = (
            tiny_model.recurrent_weights(self.model, *layer)
            if group.kind == "mamba"
            else tiny_model.attention_weights(*layer)
        )
        return {
            field.name: torch.from_numpy(getattr(source, field.name)).float().to(self.device)
            for field in fields(source)
        }

    def run(self, arrays: Arrays, shape: Shape) -> Results:
        """All layers."""
        tokens = shape.update_tokens + shape.prefill_tokens
        features = torch.full(
            (tokens, len(self.layers), tiny_model.OUTPUT_WIDTH), torch.nan, dtype=torch.float32, device=self.device
        )
        embeddings = arrays["embeddings"].long()
        for index, layer in enumerate(self.layers):
            weights, out = self.weights[layer], features[:, index]
            if self.layout.groups[layer[0]].kind == "mamba":
                out[:, INNER:] = 0
                self._state_layer(layer, weights, arrays, shape, embeddings, out[:, :INNER])
            else:
                self._attention_layer(layer, weights, arrays, shape, embeddings, out)
        return self._results(features, arrays["compared"].long(), shape.compared)

    def _results(self, features: Tensor, compared: Tensor, tokens: int) -> Results:
        seen = features[compared].view(len(FILLS), tokens, *features.shape[1:])
        bits = seen.view(torch.int32)
        agree = torch.ones(bits.shape[1:3], dtype=torch.bool, device=self.device)
        for other in bits[1:]:
            agree &= (other == bits[0]).all(-1)
        choices = (seen.flatten(2) @ self.read_out).argmax(-1)
        return Results(seen[0], agree, choices)

    def _state_layer(
        self, layer: Layer, weights: Mapping[str, Tensor], arrays: Arrays, shape: Shape, embeddings: Tensor, out: Tensor
    ) -> None:
        """Convolution, then the recurrence, of both parts of the batch."""
        conv, temporal = self.pool.conv(layer[1]), self.pool.temporal(layer[1])
        inputs, cut = weights["inputs"][embeddings], shape.update_tokens
        mixed = torch.full_like(inputs, torch.nan)
        parts = [
            ("update ", slice(0, cut), shape.longest_update, shape.updates),
            ("prefill ", slice(cut, None), shape.longest_prefill, shape.prefills),
        ]
        for part, tokens, longest, count in parts:
            if not count:
                continue
            rows, name = Rows(arrays[part + "starts"], longest), f"{layer} {part}"
            source = (arrays[name + "conv"], arrays[name + "offsets"])
            filters = (inputs[tokens], weights["filter"], weights["bias"], conv, rows)
            stored: Tensor | Stops
            if part == "update ":
                stored = arrays[name + "outputs"].view(count, -1)
                self.ops.conv_update(*filters, *source, arrays[name + "windows"], mixed[tokens])
            else:
                stored = self._stops(arrays, name + "states ")
                self.ops.conv_prefill(*filters, *source, self._stops(arrays, name + "windows "), mixed[tokens])
            one = Part(temporal, mixed[tokens], embeddings[tokens], rows, arrays[name + "temporal"], stored)
            out[tokens] = MIXERS[self.model.mixer](self.ops, weights, one).flatten(1)

    @staticmethod
    def _stops(arrays: Arrays, name: str) -> Stops:
        return Stops(arrays[name + "starts"], arrays[name + "counts"], arrays[name + "blocks"])

    def _attention_layer(
        self,
        layer: Layer,
        weights: Mapping[str, Tensor],
        arrays: Arrays,
        shape: Shape,
        embeddings: Tensor,
        out: Tensor,
    ) -> None:
        """Keys and values of all rows are stored before any row reads."""
        keys, values = self.write(layer, embeddings, arrays[f"{layer} slots"].long())
        rows = Rows(arrays["starts"], max(shape.longest_update, shape.longest_prefill))
        self.ops.paged_attention(
            weights["queries"][embeddings],
            keys,
            values,
            arrays[f"{layer} table"].view(rows.count, -1),
            rows,
            arrays[f"{layer} lengths"],
            out.view(len(out), HEADS, -1),
            scale=tiny_model.ATTENTION_DIM**-0.5,
            masking=self.masking,
            window=self.layout.groups[layer[0]].window,
        )

    def write(self, layer: Layer, embeddings: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values of tokens, by their rows in the embedding tables; returns the caches."""
        weights = self.weights[layer]
        keys, values = self.pool.keys_and_values(layer[1], self.layout.groups[layer[0]].block_size)
        self.ops.write_kv(weights["keys"][embeddings], weights["values"][embeddings], keys, values, slots)
        return keys, values
