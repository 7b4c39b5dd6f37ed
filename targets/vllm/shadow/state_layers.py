"""Shadow state layers: tags in vLLM's own state pages, at the places that vLLM's own metadata names.

One class serves every contract between a model's state layers and their metadata builder (`contracts`): a contract
names the builder and turns its metadata into rows. Layout of a page in 64-bit words: a convolution buffer of
width - 1 + k tags, then the temporal state, one tag; a layer may have only one of the two. A layer without a temporal
state starts from the last input of its window, which is a tag, too. With ReplaySSM a ring of inputs (tokens) follows,
and the two smaller rings of the real layer, which stay unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.mamba.abstract import MambaBase

from ....reference.tokens import EMPTY, NO_INPUT, chain
from ...base.observe import Content, StateContent, StateRead, StateWrite
from ...base.shadow import combine
from ...base.trace import Config
from ..options import ring_entries, windows_are_last
from ..rows.contracts import Contract
from ..rows.layer_rows import Cached, StateRow
from ..versions import compat
from .forward import ModelForward

Tags = tuple[int, ...]
_prefill = attrgetter("prefill")


def _most_drafts(config: Any) -> int:
    """Return the number of speculative tokens, 0 without speculation."""
    return config.speculative_config.num_speculative_tokens if config.speculative_config else 0


class ShadowMamba(nn.Module, MambaBase):
    """A state layer: one convolution buffer and one recurrent state per block, as far as the contract has them."""

    def __init__(self, name: str, config: Any, conv_width: int, contract: Contract, trace: Config) -> None:
        super().__init__()
        self.prefix = self.layer_name = name
        self.contract = contract
        self.skipped = contract.skipped
        self.entries = ring_entries(trace)
        self.window_last = windows_are_last(trace)
        self.window = conv_width - 1
        self.buffer = self.window + _most_drafts(config)
        self.kv_cache = (torch.tensor([]), torch.tensor([]))
        self.group = self.index = -1
        config.compilation_config.static_forward_context[name] = self

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of convolution buffer, temporal state and rings."""
        buffer = (1, self.buffer) if self.window_last else (self.buffer, 1)
        rings = ((self.entries, 1), (1,), (1, 1)) if self.entries else ()
        return (buffer,) * self.contract.parts.conv + ((1,),) * self.contract.parts.recurrent + rings

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        """Return their dtypes: 64-bit tags."""
        return (torch.int64,) * len(self.get_state_shape())

    @property
    def mamba_type(self) -> Any:
        """The name by which vLLM selects the real metadata builder."""
        return self.contract.backend

    def get_attn_backend(self) -> Any:
        """Return the backend whose metadata builder vLLM uses for this layer."""
        return self.contract.builder or super().get_attn_backend()

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        """Return the spec of the state's blocks, including the one for a state at a boundary inside a chunk."""
        spec = super().get_kv_cache_spec(vllm_config)
        if not self.contract.exports:
            return spec
        return replace(spec, num_prefill_checkpoint_blocks=1, prefill_checkpoint_alignment=1)

    def attach(self, group: int, index: int) -> None:
        """Note that the caches are allocated and that this is layer `index` of `group`."""
        self.group, self.index = group, index
        states = [state.numpy() for state in compat.bound_states(self.kv_cache)]
        if self.contract.parts.conv:
            buffer = states.pop(0)
            self.conv = buffer[:, 0] if self.window_last else buffer[..., 0]
        if self.contract.parts.recurrent:
            self.temporal = states.pop(0)[..., 0]
        if self.entries:
            self.ring = states.pop(0)[..., 0]

    @property
    def num_blocks(self) -> int:
        """The number of blocks in the pool."""
        return len(self.temporal if self.contract.parts.recurrent else self.conv)

    def run(self, forward: ModelForward, below: Tags | None) -> Tags:
        """Run all rows in the order of the kernels. Prefills load their initial states before any state is stored."""
        del below  # a state does not depend on it
        out = [0] * len(forward.contents)
        for prefill, rows in groupby(forward.state_rows(self), _prefill):
            if prefill:
                prefills = list(rows)
                starts = [self._initial(row) for row in prefills]
                for row, start in zip(prefills, starts, strict=True):
                    self._starts_from(forward, row, start, None)
                for row, start in zip(prefills, starts, strict=True):
                    window = self._window(row)
                    self._starts_from(forward, row, None, window)
                    self._row(forward, row, start, window, out)
                if any(row.inner for row in prefills):
                    self._export(forward, prefills, out)
            else:
                for row in rows:
                    start, window = self._initial(row), self._window(row)
                    self._starts_from(forward, row, start, window)
                    self._row(forward, row, start, window, out)
        return tuple(out)

    def _export(self, forward: ModelForward, rows: Sequence[StateRow], tags: Sequence[int]) -> None:
        """Store the states at a boundary inside a chunk.

        The kernels store in this order: last windows, windows and states inside chunks, last states.
        """
        last = {row.outputs[0]: self.temporal[row.outputs[0]].copy() for row in rows}
        for row in rows:
            if row.inner is None:
                continue
            inner, block = row.inner, row.inner.block
            temporal, window = tags[inner.last], tuple(tags[token] for token in inner.inputs)
            self.temporal[block], self.conv[block, : self.window] = last.get(block, temporal), window
            if block != self.skipped:  # without a block for it, the kernel writes to the null block
                self._wrote(forward, row, inner.column, block, inner.folded, temporal, window)

    def _initial(self, row: StateRow) -> int | None:
        """Return the initial temporal state, None if the kernel skips the row."""
        if not self.contract.parts.recurrent:
            window = self._window(row)
            return None if window is None else window[-1] if row.has_conv else EMPTY
        if not row.has_temporal:
            return EMPTY
        if row.temporal == self.skipped and not row.prefill:
            return None
        tag: int = self.temporal.item(row.temporal)
        if row.replay and row.replay.entries:
            tag = chain(tag, tuple(self.ring[row.temporal, : row.replay.entries].tolist()))[-1]
        return tag

    def _window(self, row: StateRow) -> Tags | None:
        """Return the last inputs of the convolution, None if the kernel skips the row, () without a convolution."""
        if not self.contract.parts.conv:
            return ()
        if row.conv == self.skipped:
            return None
        if not row.has_conv:
            return (NO_INPUT,) * self.window
        return tuple(self.conv[row.conv, row.offset : row.offset + self.window].tolist())

    def _starts_from(self, forward: ModelForward, row: StateRow, start: int | None, window: Tags | None) -> None:
        """Record the reads of temporal state and window: one record if they lie in one page."""
        temporal = start if row.has_temporal and self.contract.parts.recurrent else None
        inputs = window if row.has_conv and self.contract.parts.conv else None
        log, where = forward.accesses, (row.row, self.group, self.index)
        in_one_page = (row.conv, row.conv_column) == (row.temporal, row.temporal_column)
        shared = temporal is not None and in_one_page
        if temporal is not None:
            log.append(StateRead(*where, row.temporal_column, row.temporal, temporal, inputs if shared else None))
        if inputs is not None and not shared:
            log.append(StateRead(*where, row.conv_column, row.conv, None, inputs))

    def _row(
        self, forward: ModelForward, row: StateRow, start: int | None, window: Tags | None, out: list[int]
    ) -> None:
        """Compute convolution and recurrence of one row."""
        tokens = tuple([forward.contents[token] for token in row.tokens])
        tags = chain(EMPTY if start is None else start, tokens)
        if row.cached is not None:
            stored = None
            if start is not None and window is not None:
                self._cache(forward, row, row.cached, window + tags, tags, out)
        else:
            stored = self._convolve(row, window + tags) if window else None
        if start is not None:
            if row.replay and not row.replay.flushes:
                self.ring[row.temporal, row.replay.entries] = tokens[0]
                self._wrote(forward, row, row.temporal_column, row.temporal, 1, tags[0], stored)
            elif row.cached is None and self.contract.parts.recurrent:
                self._recur(forward, row, tags, stored)
            elif stored is not None:
                self._wrote(forward, row, row.conv_column, row.conv, len(tokens), None, stored)
            # The window identifies the prefix, too: its last input is the tag of the last state.
            if window and window[-1] != (NO_INPUT if start == EMPTY else start):
                tags = chain(combine(window[-1], start), tokens)
            for token, tag in zip(row.tokens, tags, strict=True):
                out[token] = tag
        elif stored is not None:
            self._wrote(forward, row, row.conv_column, row.conv, len(tokens), None, stored)

    def _cache(
        self, forward: ModelForward, row: StateRow, cached: Cached, history: Tags, tags: Tags, out: Sequence[int]
    ) -> None:
        """Store the windows, then the states of a row of mode all."""
        written: dict[tuple[int, int, int], list[Any]] = {}
        for block, column, count, inputs in cached.windows:
            own = history[1:] if row.speculative else history[count : count + self.window]
            first = row.tokens[0]
            foreign = tuple(
                [tags[one - first] if one >= first else out[one] if one >= 0 else NO_INPUT for one in inputs]
            )
            window = foreign or own
            self.conv[block, : len(window)] = window
            written.setdefault((block, column, count), [None, None])[1] = window
        for block, column, count in cached.states:
            self.temporal[block] = tags[count - 1]
            written.setdefault((block, column, count), [None, None])[0] = tags[count - 1]
        for (block, column, count), (temporal, window) in written.items():
            self._wrote(forward, row, column, block, count, temporal, window)

    def _wrote(
        self, forward: ModelForward, row: StateRow, column: int, block: int, count: int, temporal: int | None,
        window: Tags | None,
    ) -> None:  # fmt: skip
        depth = forward.batch.position(row.row) + count
        forward.accesses.append(StateWrite(row.row, self.group, self.index, column, block, depth, temporal, window))

    def _recur(self, forward: ModelForward, row: StateRow, tags: Tags, stored: Tags | None) -> None:
        """Store the temporal states. Both parts of a page that the kernels write in one row make one record."""
        if stored is not None and row.conv != row.outputs[0]:
            self._wrote(forward, row, row.conv_column, row.conv, len(tags), None, stored)
            stored = None
        last = len(tags) if row.folded is None else row.folded
        for index, block in enumerate(row.outputs):
            count = index + 1 if row.speculative else last
            if block != self.skipped or row.prefill:
                self.temporal[block] = tags[count - 1]
                if block == 0 and forward.is_dead(row.row):
                    continue  # padding rows write to the null block
                self._wrote(
                    forward, row, row.output_columns[index], block, count, tags[count - 1], None if index else stored
                )

    def _convolve(self, row: StateRow, history: Tags) -> Tags:
        """Roll the buffer, given the window and the inputs after it (`history`); return the stored window."""
        # A speculative row shifts by one only: the next step reads at the offset of the accepted tokens.
        stored = history[1:] if row.speculative else history[-self.window :]
        self.conv[row.conv, : len(stored)] = stored
        return stored

    def write(self, block: int, content: StateContent) -> None:
        """Store the content of a page, as a load from outside the pool does."""
        if self.contract.parts.recurrent:
            self.temporal[block] = content.temporal
        if self.contract.parts.conv:
            self.conv[block, : self.window] = content.window

    def read(self, block: int) -> Content:
        """Return the content of a page."""
        temporal = self.temporal.item(block) if self.contract.parts.recurrent else None
        window = tuple(self.conv[block, : self.window].tolist()) if self.contract.parts.conv else ()
        return StateContent(temporal, window)
