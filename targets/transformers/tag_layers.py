"""Shadow layers: tags in transformers' own cache and under its own masks.

Each layer makes the calls that a model of the family makes on its cache (from 5.14 on: `get_conv_state`,
`update_conv_state`, `update_recurrent_state`, `update`), and reads what they return where the library's mask functions
show it. Only the arithmetic is replaced: a state layer extends the tag that it finds, an attention layer stores the tag
of each position and reads those that its mask shows. A padding token that no mask hides is a token like any other: it
spoils the content as it does in a model.

A zeroed state stands for "no tokens yet".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...reference.tokens import EMPTY, mix, next_token, window_of
from ..base.observe import Access, Content, SlotContent, SlotRead, SlotWrite, StateContent, StateRead, StateWrite
from ..base.protocol import EngineError
from ..base.shadow import POISON, combine
from . import operations as do
from .caches import Batch
from .devices import plain
from .families import CONV_WIDTH, Family, Kind
from .features import part_of, states_of

PADDING = mix(EMPTY, 0)
"""The tag that attention stores for a padding token."""
WRONG = 1
"""A token that turns a tag into that of no prefix."""
Tags = list[list[int]]
"""By row and column of a forward."""


class TagLayers:
    """The layers of one family, on the cache of one batch."""

    def __init__(self, family: Family, config: Any, batch: Batch, *, recording: bool) -> None:
        self.family = family
        self.config = config
        self.batch = batch
        self.recording = recording
        has_states, has_slots = family.count("state") > 0, family.count("attention") > 0
        self.states, self.slots = (0 if has_states else -1), (int(has_states) if has_slots else -1)
        """The groups of the state layers and of the attention layers, -1 if there are none."""

    def feed(self, feed: do.Feed, own: Tags) -> tuple[list[Access], list[int]]:
        """Run all layers once on the columns whose tags are `own`; return what they read and wrote, and the token that
        each row samples."""
        from transformers.masking_utils import create_causal_mask, create_recurrent_attention_mask

        given = {
            "config": self.config,
            "inputs_embeds": torch.zeros(len(own), len(own[0]), 1),
            "attention_mask": torch.tensor(feed.mask),
            "past_key_values": self.batch.cache,
            "position_ids": torch.tensor(feed.positions),
        }
        shown = create_causal_mask(**given) if self.slots >= 0 else None
        counted = create_recurrent_attention_mask(**given) if self.states >= 0 else None
        hidden, accesses = own, list[Access]()
        layers = {self.states: 0, self.slots: 0}
        for index, kind in enumerate(self.family.layers):
            for half in self._halves(kind):
                if half == "state":
                    tags = self._state_layer(index, layers[self.states], feed, counted, accesses)
                    hidden = [_combined(*pair) for pair in zip(hidden, tags, strict=True)]
                    layers[self.states] += 1
                else:
                    hidden = self._attention_layer(index, layers[self.slots], feed, shown, hidden, accesses)
                    layers[self.slots] += 1
        return accesses, [next_token(row[-1]) for row in hidden]

    def _halves(self, kind: Kind) -> Sequence[Kind]:
        """Return what a layer runs, in order."""
        if kind == "none":
            return ()
        if kind != "both":
            return (kind,)
        return ("attention", "state") if self.family.attention_first else ("state", "attention")

    def _state_layer(
        self, index: int, layer: int, feed: do.Feed, counted: torch.Tensor | None, accesses: list[Access]
    ) -> Tags:
        windows, states = self._states(index)
        chains, inputs, after = [], [], []
        for row, tokens in enumerate(feed.tokens):
            window = None if windows is None else _inputs(windows[row])
            temporal = None if states is None else int(states[row].flatten()[0])
            if windows is not None or states is not None:
                accesses.append(StateRead(row, self.states, layer, 0, row, temporal, window))
            held = temporal if self.family.recurrent else window[-1] if window else 0
            tag, chain, values = held or EMPTY, list[int](), list[int]()
            for column, token in enumerate(tokens):
                counts = counted is None or int(counted[row, column]) > 0
                tag = mix(tag, token) if counts else tag
                chain.append(tag)
                values.append(tag if counts else 0)
            chains.append(chain)
            inputs.append(values)
            after.append(held or 0 if tag == EMPTY else tag)
        self._store(index, windows, torch.tensor(inputs)[:, None, :], torch.tensor(after)[:, None, None, None])
        windows, states = self._states(index)
        for row, mask in enumerate(feed.mask):
            temporal = None if states is None else _first(states, row)
            window = None if windows is None else _inputs(windows[row])
            accesses.append(StateWrite(row, self.states, layer, 0, row, sum(mask), temporal, window))
        return chains

    def _states(self, index: int) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Return the convolution inputs [rows, 1, inputs] and the recurrent states [rows, 1, 1, 1] of a layer, each
        None before its first token and where the family has none."""
        cache = self.batch.cache
        if not self.family.conv:
            return None, cache.get_linear_cache(index)
        windows, states = states_of(cache, index)
        return windows, states if self.family.recurrent else None

    def _store(self, index: int, windows: torch.Tensor | None, inputs: torch.Tensor, after: torch.Tensor) -> None:
        cache = self.batch.cache
        if not self.family.conv:
            cache.set_linear_cache(index, after)
            return
        if windows is not None and inputs.shape[-1] == 1 and not self.recording:
            # What the fused kernel of a single step does: in place, without the cache's method.
            windows.copy_(torch.cat([windows, inputs], dim=-1)[..., -windows.shape[-1] :])
        else:
            cache.update_conv_state(inputs, index, conv_kernel_size=CONV_WIDTH)
        if self.family.recurrent:
            cache.update_recurrent_state(after, index)

    def _attention_layer(
        self, index: int, layer: int, feed: do.Feed, shown: torch.Tensor | None, hidden: Tags, accesses: list[Access]
    ) -> Tags:
        real = [[column for column in range(len(tags)) if mask[feed.start + column]]
                for tags, mask in zip(hidden, feed.mask, strict=True)]  # fmt: skip
        new = torch.tensor(hidden)[:, None, :, None]
        keys, values = self.batch.cache.update(new, new.clone(), index)
        tags = torch.where(keys == values, keys, keys * 31 + WRONG)[:, 0, :, 0]
        outputs = []
        for row, columns in enumerate(real):
            before = sum(feed.mask[row]) - len(columns)
            output, first = list(hidden[row]), list[int]()
            for count, column in enumerate(columns, 1):
                seen = _attended(shown, tags, row, column, len(hidden[row]))
                past, now = seen[:-count], seen[-count:]
                first = past if count == 1 else first
                if (past or before) and count in (1, len(columns)):
                    accesses.append(SlotRead(row, self.slots, layer, (row,), tuple(past)))
                if past != first or now != [hidden[row][one] for one in columns[:count]]:
                    output[column] = mix(output[column], WRONG)
            if columns:
                places = [feed.start + column for column in columns]
                written = [hidden[row][column] for column in columns]
                accesses.append(SlotWrite(row, self.slots, layer, before, (row,) * len(columns), places, written))
            outputs.append(output)
        return outputs

    def read(self, cache: Any, group: int, layer: int, row: int, mask: Sequence[int]) -> Content:
        """Return the content of one row of a cache; `mask` is the attention mask of the columns that it holds."""
        wanted = ("state", "both") if group == self.states else ("attention", "both")
        index = [place for place, kind in enumerate(self.family.layers) if kind in wanted][layer]
        if group != self.states:
            held = cache.layers[index]
            width = 0 if held.keys is None else held.keys.shape[2]
            static = hasattr(held, "max_cache_len")
            places = [column for column in range(width) if (mask[column] if column < len(mask) else not static)]
            if row >= (0 if held.keys is None else len(held.keys)):
                return SlotContent(())
            tags = plain(held.keys)[row, 0, :, 0].tolist()
            return SlotContent([tags[column] for column in places])
        if not self.family.conv:
            return StateContent(_first(cache.linear_cache[index], row), ())
        held = cache.layers[index]
        temporal = _first(plain(part_of(held.recurrent_states)), row) if self.family.recurrent else None
        windows = plain(part_of(held.conv_states))
        return StateContent(temporal, _inputs(windows[row]) if row < len(windows) else ())


def _attended(shown: torch.Tensor | None, tags: torch.Tensor, row: int, column: int, count: int) -> list[int]:
    """Return the tags that a column attends to, oldest first.

    A mask of one column is broadcast over all slots, as the library's addition does. Without a mask
    `scaled_dot_product_attention` is called with `is_causal` if there is more than one column, which counts both
    columns and slots from the first on; else without any mask.
    """
    if shown is None:
        return [*tags[row, : column + 1 if count > 1 else None].tolist()]
    one = shown[row if shown.shape[0] > 1 else 0, 0, column]
    visible = (one if one.dtype == torch.bool else one >= 0)[: tags.shape[1]]
    if len(visible) not in (1, tags.shape[1]):
        raise EngineError(f"the mask has {len(visible)} columns, but the cache returned {tags.shape[1]} slots")
    return [*tags[row][visible.expand(tags.shape[1])].tolist()]


def _first(states: torch.Tensor, row: int) -> int:
    """Return the tag in a row of recurrent states, `POISON` if there is no such row."""
    return int(states[row].flatten()[0]) if row < len(states) else POISON


def _inputs(state: torch.Tensor) -> tuple[int, ...]:
    """Return the inputs of a convolution [1, inputs] that its next output depends on."""
    return window_of(state[0].tolist(), CONV_WIDTH)


def _combined(first: Sequence[int], second: Sequence[int]) -> list[int]:
    return [combine(*pair) for pair in zip(first, second, strict=True)]
