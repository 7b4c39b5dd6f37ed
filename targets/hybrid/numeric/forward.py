"""One forward on the device: inputs, every layer, read-out, and the comparison of the fills.

`Network.run` reads nothing back to the host, so a CUDA graph can capture it. Besides the arrays it depends only on
their `Shape`. The inputs of each layer are embeddings: see `reference/numeric/tiny_model.py`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import NamedTuple

import torch
from torch import Tensor

from ....reference.layout import Layout
from ....reference.numeric import tiny_model
from ....reference.numeric.tiny_model import HEADS, TinyModel
from .arrays import Shape
from .kernel_calls import Layer
from .kernels.metadata import Rows, Stops
from .kernels.ops import Masking, Ops
from .metadata import Arrays, Metadata, with_overrides
from .mixers import INNER, MIXERS, MixerInputs
from .pool import FILLS, BytePool
from .tables import Tables


class Results(NamedTuple):
    """Results on the device, for the tokens of live rows in the order of the batch.

    features  float32 [tokens, layers, OUTPUT_WIDTH] of the first fill; layers in the order of `Network.layers`
    agree     bool [tokens, layers]: the same bits in every fill
    choices   int64 [fills, tokens]: the read-out's token
    indices   int32: indices computed on the device, in the order of the names of `IndexArrays.expected`
    """

    features: Tensor
    agree: Tensor
    choices: Tensor
    indices: Tensor


class BatchPart(NamedTuple):
    """One part of the batch: its name in the arrays, its tokens, its rows."""

    part: str
    tokens: slice
    rows: Rows


class Network:
    """The layers of one engine, weights on its device."""

    def __init__(
        self, layout: Layout, model: TinyModel, pool: BytePool, tables: Tables, ops: Ops, device: torch.device
    ) -> None:
        self.pool = pool
        self.tables = tables
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
        """Run all layers."""
        tokens = shape.update_tokens + shape.prefill_tokens
        features = torch.full(
            (tokens, len(self.layers), tiny_model.OUTPUT_WIDTH), torch.nan, dtype=torch.float32, device=self.device
        )
        embeddings = arrays["embeddings"].long()
        metadata = Metadata(self.layout, self.tables, self.ops, arrays)
        spans = [span for span in self._spans(arrays, shape) if span.rows.count]
        all_rows = Rows(arrays["starts"], max(shape.longest_update, shape.longest_prefill))
        first = 0
        for group, spec in enumerate(self.layout.groups):
            out = features[:, first : first + spec.layers]
            first += spec.layers
            if spec.kind == "mamba":
                out[:, :, INNER:] = 0
                for span in spans:
                    self._state_group(group, span, metadata, embeddings[span.tokens], out[span.tokens, :, :INNER])
            else:
                self._attention_group(group, all_rows, metadata, embeddings, out)
        return self._results(features, arrays["compared"].long(), shape.compared, metadata.all_found())

    @staticmethod
    def _spans(arrays: Arrays, shape: Shape) -> list[BatchPart]:
        cut = shape.update_tokens
        return [
            BatchPart("update ", slice(0, cut), Rows(arrays["update starts"], shape.longest_update)),
            BatchPart("prefill ", slice(cut, None), Rows(arrays["prefill starts"], shape.longest_prefill)),
        ]

    def _results(self, features: Tensor, compared: Tensor, tokens: int, indices: Tensor) -> Results:
        seen = features[compared].view(len(FILLS), tokens, *features.shape[1:])
        bits = seen.view(torch.int32)
        agree = torch.ones(bits.shape[1:3], dtype=torch.bool, device=self.device)
        for other in bits[1:]:
            agree &= (other == bits[0]).all(-1)
        choices = (seen.flatten(2) @ self.read_out).argmax(-1)
        return Results(seen[0], agree, choices, indices)

    def _state_group(self, group: int, span: BatchPart, metadata: Metadata, embeddings: Tensor, out: Tensor) -> None:
        """Run convolution, then recurrence, of one part of the batch in every layer."""
        arrays, decoding = metadata.arrays, span.part == "update "
        pages = metadata.states(group, span.part, span.rows.longest if decoding else 1)
        stops = None if decoding else metadata.stops(group, span.part, pages.outputs)
        offsets = arrays[f"{group} {span.part}offsets"]
        for layer in range(self.layout.groups[group].layers):
            weights, name = self.weights[group, layer], f"{group, layer} {span.part}"
            inputs = weights["inputs"][embeddings]
            mixed = torch.full_like(inputs, torch.nan)
            source = with_overrides(arrays[name + "conv"], pages.windows), offsets
            filters = (inputs, weights["filter"], weights["bias"], self.pool.conv(layer), span.rows)
            stored: Tensor | Stops
            if stops is None:
                stored = with_overrides(arrays[name + "outputs"], pages.outputs)
                windows = with_overrides(arrays[name + "windows"], pages.outputs[:, 0].contiguous())
                self.ops.conv_update(*filters, *source, windows, mixed)
            else:
                stored = metadata.stops_with_overrides(name + "states ", stops)
                self.ops.conv_prefill(*filters, *source, metadata.stops_with_overrides(name + "windows ", stops), mixed)
            sources = with_overrides(arrays[name + "temporal"], pages.sources)
            one = MixerInputs(self.pool.temporal(layer), mixed, embeddings, span.rows, sources, stored)
            out[:, layer] = MIXERS[self.model.mixer](self.ops, weights, one).flatten(1)

    def _attention_group(self, group: int, rows: Rows, metadata: Metadata, embeddings: Tensor, out: Tensor) -> None:
        """Run attention; in each layer KV of all rows is stored before any row reads."""
        arrays, spec = metadata.arrays, self.layout.groups[group]
        slots = metadata.slots(group, rows, len(embeddings))
        table = metadata.table(group, self.pool.pages.split(spec.block_size))
        for layer in range(spec.layers):
            weights, name = self.weights[group, layer], f"{group, layer} "
            keys, values = self.write((group, layer), embeddings, with_overrides(arrays[name + "slots"], slots))
            self.ops.paged_attention(
                weights["queries"][embeddings],
                keys,
                values,
                with_overrides(arrays[name + "table"], table),
                rows,
                arrays[name + "lengths"],
                out[:, layer].view(len(out), HEADS, -1),
                scale=tiny_model.ATTENTION_DIM**-0.5,
                masking=self.masking,
                window=spec.window,
            )

    def write_lone(self, layer: Layer, metadata: Metadata, longest: int) -> Tensor:
        """Store a drafter's KV; return the computed slots, int32."""
        arrays = metadata.arrays
        slots = metadata.slots(layer[0], Rows(arrays["starts"], longest), len(arrays["embeddings"]))
        self.write(layer, arrays["embeddings"].long(), with_overrides(arrays[f"{layer} slots"], slots))
        return metadata.all_found()

    def write(self, layer: Layer, embeddings: Tensor, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Store KV of tokens, given by their rows in the embedding tables; return the caches (keys, values)."""
        weights = self.weights[layer]
        keys, values = self.pool.keys_and_values(layer[1], self.layout.groups[layer[0]].block_size)
        self.ops.write_kv(weights["keys"][embeddings], weights["values"][embeddings], keys, values, slots)
        return keys, values
