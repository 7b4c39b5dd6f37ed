"""The shadow layers of the CPU adapter beside a real model: tags on the host, at the places that vLLM's metadata names.

On a CPU the tags lie in vLLM's own tensors and vLLM's kernels move them. Here those tensors hold the real model's
numbers. The tags lie in arrays of the same arrangement: one storage per layer slot, overlaid by all groups. What the
CPU adapter observes of a copy, a copy on write or a zeroing is done to them as well. A kernel that does something else
than its arguments say is therefore not seen here but in the real model's numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from ....reference.tokens import next_token
from ...base.observe import Zeroed
from ...base.shadow import join
from ..contracts import Contract
from ..hooks import Recorder
from ..layers import ShadowAttention, Tags
from ..state_layers import ShadowMamba

Words = npt.NDArray[np.int64]


class MirrorMamba(ShadowMamba):
    """A state layer over words of the host: a convolution buffer, then the temporal state."""

    def __init__(
        self, name: str, recorder: Recorder, words: Words, window: int, drafts: int, contract: Contract,
        place: tuple[int, int],
    ) -> None:  # fmt: skip
        nn.Module.__init__(self)
        self.prefix = self.layer_name = name
        self.recorder = recorder
        self.contract = contract
        self.window, self.buffer = window, window + drafts
        self.group, self.index = place
        self.conv, self.temporal = words[:, : self.buffer], words[:, self.buffer]


class MirrorAttention(ShadowAttention):
    """An attention layer over words of the host: key and value per slot."""

    def __init__(
        self, name: str, recorder: Recorder, words: Words, block_size: int, place: tuple[int, int], real: Any
    ) -> None:
        nn.Module.__init__(self)
        self.layer_name = name
        self.recorder = recorder
        self.block_size = block_size
        self.group, self.index = place
        self.pages = words[:, : 2 * block_size].reshape(len(words), block_size, 2)
        assert np.shares_memory(self.pages, words)
        self.keys, self.values = self.pages[:, :, 0], self.pages[:, :, 1]
        self._contents = {}
        self._real = real
        """The layer whose pages vLLM zeroes; None where there is none (tests)."""

    def is_zero(self, block: int) -> bool:
        """Whether there is such a page, and the real model's is all zeros."""
        if not 0 <= block < len(self.pages):
            return False
        return not bool(self._real.kv_cache[block].any())


class MirrorRecorder(Recorder):
    """Sees device work go by, and does to the tags what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: Sequence[Words] = ()
        self.layers: dict[tuple[int, int], MirrorMamba | MirrorAttention] = {}

    def copied(self, name: str | None, group: int, columns: tuple[int, int], offset: int, table: Sequence[int]) -> None:
        """An align copy: temporal state and shifted window of every layer of the group."""
        super().copied(name, group, columns, offset, table)
        source, destination = columns
        if not all(0 <= column < len(table) for column in (source, destination, source + offset)):
            return
        for layer in range(self.group_layers[group]):
            one = self.layers[group, layer]
            assert isinstance(one, MirrorMamba)
            window = one.conv[table[source], offset:].copy()
            one.temporal[table[destination]] = one.temporal[table[source + offset]]
            one.conv[table[destination], : len(window)] = window

    def zeroed(self, blocks: Sequence[int]) -> None:
        """Blocks were to be zeroed; what counts is what the real pages hold now."""
        before = len(self.records)
        super().zeroed(blocks)
        for record in self.records[before:]:
            assert isinstance(record, Zeroed)
            for words in self.storages:
                words[list(record.blocks)] = 0

    def block_copied(self, source: int, destination: int) -> None:
        """Copy on write: a whole page, all layers."""
        for words in self.storages:
            words[destination] = words[source]
        super().block_copied(source, destination)


class Mirror:
    """All layers of one engine, in the model's order; the last forward's tags, one a token."""

    def __init__(self, recorder: MirrorRecorder, layers: Sequence[MirrorMamba | MirrorAttention]) -> None:
        self.recorder = recorder
        self.layers = layers
        self.tags: Tags = ()

    def run(self, context: Any, ids: Sequence[int]) -> bool:
        """Walk all layers of one forward; False where the engine gives it no metadata."""
        self.tags = ()
        if context.attn_metadata is None or not self.recorder.begin_forward(context, ids):
            return False
        hidden: Tags | None = None
        for layer in self.layers:
            hidden = join(hidden, layer.run(ids))
        self.recorder.end_forward()
        self.tags = hidden or ()
        return True

    def tokens(self, indices: Sequence[int]) -> list[int]:
        """The tag model's greedy tokens after some tokens of the batch."""
        return [next_token(self.tags[index]) for index in indices]


def storages(num_blocks: int, num_slots: int, words: int, seed: int) -> list[Words]:
    """Random words, as recycled memory holds: one array per layer slot, a row of `words` per block."""
    random = np.random.default_rng(seed)
    return [random.integers(1, 1 << 62, (num_blocks, words), dtype=np.int64) for _ in range(num_slots)]
