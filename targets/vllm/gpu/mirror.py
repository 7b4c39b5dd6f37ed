"""The shadow layers of the CPU adapter beside a real model: tags on the host, at the places that vLLM's metadata names.

On a CPU the tags lie in vLLM's own tensors and vLLM's kernels move them. Here those tensors hold the real model's
numbers. The tags lie in arrays of the same arrangement: one storage per layer slot, overlaid by all groups. What the
CPU adapter observes of a copy, a copy on write or a zeroing is done to them as well. A kernel that does something else
than its arguments say is therefore not seen here but in the real model's numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from ....reference.tokens import next_token
from ...base.observe import Zeroed
from ...base.shadow import join
from ...base.trace import Group
from ..rows.contracts import Contract
from ..rows.layer_rows import kernels_of
from ..runner_adapter import Rows, RunnerV1, RunnerV2
from ..shadow.forward import ModelForward
from ..shadow.layers import ShadowAttention, Tags
from ..shadow.recorder import Recorder
from ..shadow.state_layers import ShadowMamba
from . import jitter
from .host_copy import on_host
from .memories import repeated

Words = npt.NDArray[np.int64]


class MirrorMamba(ShadowMamba):
    """A state layer over words of the host: a convolution buffer, the temporal state, the ring of ReplaySSM."""

    def __init__(
        self, name: str, recorder: MirrorRecorder, words: Words, window: int, drafts: int, entries: int,
        contract: Contract, place: tuple[int, int],
    ) -> None:  # fmt: skip
        nn.Module.__init__(self)
        self.prefix = self.layer_name = name
        self.recorder = recorder
        self.contract = contract
        self.skipped = contract.skipped
        self.window, self.buffer = window, window + drafts
        self.group, self.index = place
        self.conv, self.temporal = words[:, : self.buffer], words[:, self.buffer]
        self.ring = words[:, self.buffer + 1 : self.buffer + 1 + entries]

    def run(self, forward: ModelForward, below: Tags | None) -> Tags:
        """Run all rows, and note which kernel computes each of them."""
        self.recorder.kernels.update(kernels_of(forward.state_rows(self), self.contract.mixes))
        return super().run(forward, below)


class MirrorAttention(ShadowAttention):
    """An attention layer over words of the host: key and value per slot."""

    def __init__(self, name: str, words: Words, form: Group, place: tuple[int, int], real: Any) -> None:
        nn.Module.__init__(self)
        self.layer_name = name
        self.form = form
        self.block_size = block_size = form.block_size
        self.group, self.index = place
        self.pages = words[:, : 2 * block_size].reshape(len(words), block_size, 2)
        assert np.shares_memory(self.pages, words)
        self.keys, self.values = self.pages[:, :, 0], self.pages[:, :, 1]
        self._contents = {}
        self.real = real
        """The layer whose pages vLLM zeroes."""


class RealV2(RunnerV2):
    """The V2 runner; its tables are those that were copied with the forward's metadata."""

    tables: Sequence[torch.Tensor] = ()

    def __init__(self, runner: Any, recorder: Recorder) -> None:
        zeroer = getattr(runner, "kv_block_zeroer", None)
        if zeroer is not None:
            zeroer.zero_block_ids = repeated(zeroer.zero_block_ids)
        super().__init__(runner, recorder)

    def device_tables(self) -> Sequence[torch.Tensor]:
        """The batch-ordered tables of all groups, to be copied."""
        return () if self.is_dummy else list(self.runner.block_tables.input_block_tables)

    def table(self, group: int, names: Sequence[str | None]) -> Rows:
        """A group's table as the forward reads it."""
        if self.is_dummy:
            return ()
        slots = self._batch.idx_mapping_np[: len(names)].tolist()
        lengths = self.runner.block_tables.num_blocks.np[group]
        rows = self.tables[group][: len(slots)].tolist()
        return [row[: lengths.item(slot)] for row, slot in zip(rows, slots, strict=True)]


class RealV1(RunnerV1):
    """The V1 runner, likewise."""

    tables: Sequence[torch.Tensor] = ()

    def __init__(self, runner: Any, recorder: Recorder) -> None:
        if hasattr(runner, "_zero_block_ids"):
            runner._zero_block_ids = repeated(runner._zero_block_ids)
        super().__init__(runner, recorder)

    def device_tables(self) -> Sequence[torch.Tensor]:
        """The tables of all groups, to be copied."""
        if self.is_dummy:
            return ()
        batch = self.runner.input_batch
        return [table.get_device_tensor(len(batch.req_ids)) for table in batch.block_table.block_tables]

    def table(self, group: int, names: Sequence[str | None]) -> Rows:
        """A group's table as the forward reads it."""
        if self.is_dummy:
            return ()
        count = len(names) - names.count(None)
        lengths = self.runner.input_batch.block_table[group].num_blocks_per_row[:count].tolist()
        return [row[:length] for row, length in zip(self.tables[group][:count].tolist(), lengths, strict=True)]


class MirrorRecorder(Recorder):
    """Sees device work go by, and does to the tags what it says."""

    worker: RealV1 | RealV2 | None

    def __init__(self) -> None:
        super().__init__()
        self.storages: Sequence[Words] = ()
        self.layers: dict[tuple[int, int], MirrorMamba | MirrorAttention] = {}
        self.kernels: dict[int, str] = {}
        """Rows of the last forward: what computed them."""
        self.behind_zeroing: Callable[[Sequence[int]], None] = lambda blocks: None
        """Told of blocks that were zeroed in all memories."""

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
        layers = self.attention_layers
        there = [block for block in blocks if all(0 <= block < len(layer.pages) for layer in layers)]
        if not there:
            return
        held = torch.stack([layer.real.kv_cache[there].flatten(1).any(1) for layer in layers]).any(0).tolist()
        jitter.behind_read()
        self.behind_zeroing(there)
        done = [block for block, has_content in zip(there, held, strict=True) if not has_content]
        if done:
            self.note(Zeroed(self.step, done))
            for words in self.storages:
                words[done] = 0

    def on_host(self, call: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a copy, read from the device at once."""
        read: dict[str, Any] = on_host(call)
        return read

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
        forward = self.recorder.begin_forward(context, ids)
        if forward is None:
            return False
        hidden: Tags | None = None
        self.recorder.kernels.clear()
        for layer in self.layers:
            hidden = join(hidden, layer.run(forward, hidden))
        forward.end()
        self.tags = hidden or ()
        return True

    def tokens(self, indices: Sequence[int]) -> list[int]:
        """The tag model's greedy tokens after some tokens of the batch."""
        return [next_token(self.tags[index]) for index in indices]


def storages(num_blocks: int, num_slots: int, words: int, seed: int) -> list[Words]:
    """Random words, as recycled memory holds: one array per layer slot, a row of `words` per block."""
    random = np.random.default_rng(seed)
    return [random.integers(1, 1 << 62, (num_blocks, words), dtype=np.int64) for _ in range(num_slots)]
