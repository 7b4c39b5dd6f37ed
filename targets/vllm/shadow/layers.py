"""Shadow layers: a hybrid model whose arithmetic is tags, kept in vLLM's own KV tensors.

Every layer (state layers: `state_layers`) computes its own chain of tags over the input token ids, starting from the
contents of its own memory at the place that vLLM's metadata names. If the caches of a request are correct, all layers
agree; a wrong block id in one of them shows as a tag of another prefix. An attention page holds, per slot, key = tag
and value = minus tag: zeroed memory is consistent, arbitrary bytes are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend

from ....reference.layout import first_in_reach
from ....reference.tokens import EMPTY, FIRST_TOKEN, VOCABULARY, chain, mix, next_token, other_token
from ...base.decoys import Decoys
from ...base.observe import SlotContent, SlotRead, SlotWrite
from ...base.shadow import combine, join
from ...base.trace import Config, Group
from ..rows.contracts import Contract
from ..rows.layer_rows import SlotRow
from ..sizes import head_size
from ..versions import compat
from .forward import ModelForward
from .recorder import Recorder
from .state_layers import ShadowMamba

Tags = tuple[int, ...]


class ShadowBackend(TritonAttentionBackend):
    """The real backend, hence the real metadata, for 64-bit words."""

    supported_dtypes = (torch.int64,)
    get_supported_kernel_block_sizes = staticmethod(compat.kernel_block_sizes())
    get_kv_cache_shape = staticmethod(compat.kv_cache_shape)
    get_kv_cache_stride_order = staticmethod(compat.stride_order(TritonAttentionBackend))


class _Implementation:
    """The attributes that older releases read from an attention layer's `impl`."""

    num_heads = 1
    need_to_return_lse_for_decode = False
    supports_quant_query_input = False


def _attention_spec(group: Group, **sizes: Any) -> Any:
    """Return the spec of an attention layer: full, with a sliding window, or chunked-local."""
    from vllm.v1 import kv_cache_interface as interface

    if group.window:
        return interface.SlidingWindowSpec(**sizes, sliding_window=group.window)
    if group.chunk:
        return interface.ChunkedLocalAttentionSpec(**sizes, attention_chunk_size=group.chunk)
    return interface.FullAttentionSpec(**sizes)


def _chunked_backend(backend: Any, chunk: int) -> Any:
    """Return the backend whose metadata cuts rows at the chunks of chunked-local attention."""
    from vllm.model_executor.layers.attention import chunked_local_attention

    return chunked_local_attention.create_chunked_local_attention_backend(backend, chunk)


class ShadowAttention(nn.Module, AttentionLayerBase):
    """An attention layer: stores a tag per position and reads its whole context back."""

    num_heads = 1
    impl = _Implementation()
    form: Group
    """The trace's group that the layer belongs to."""

    def __init__(self, name: str, config: Any, head_size: int, form: Group) -> None:
        super().__init__()
        self.layer_name = name
        self.head_size = head_size
        self.form = form
        self.kv_cache = torch.tensor([])
        self.group = self.index = -1
        config.compilation_config.static_forward_context[name] = self

    def get_attn_backend(self) -> type[ShadowBackend]:
        """Return the backend whose metadata builder vLLM uses for this layer."""
        return _chunked_backend(ShadowBackend, self.form.chunk) if self.form.chunk else ShadowBackend

    def first(self, position: int) -> int:
        """Return the first position that the token at a position attends to."""
        return first_in_reach(self.form.window, self.form.chunk, position)

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        """Return the spec of pages with `block_size` slots of one key and one value."""
        return _attention_spec(
            self.form,
            block_size=self.form.block_size,
            num_kv_heads=1,
            head_size=self.head_size,
            head_size_v=self.head_size,
            dtype=torch.int64,
        )

    def attach(self, group: int, index: int) -> None:
        """Note that the caches are allocated and that this is layer `index` of `group`."""
        self.group, self.index = group, index
        cache = compat.bound_cache(self.kv_cache).numpy()
        self.pages = cache[:, 0]
        self.keys, self.values = self.pages[:, :, 0], self.pages[:, :, self.head_size]
        self.block_size = int(cache.shape[2])
        self._contents: dict[bytes, SlotContent] = {}

    def run(self, forward: ModelForward, below: Tags | None) -> Tags:
        """Store the tags of all rows, then read all contexts; `below` is the output of the layer below."""
        rows, order = forward.slot_rows(self)
        ids = forward.contents
        out = [0] * len(ids)
        for position in order:
            row = rows[position]
            tokens = tuple(ids[row.tokens.start : row.tokens.stop])
            if row.start > 0 and self.first(row.start) == row.start:  # nothing to attend to but the layer below
                assert below is not None
                tags = below[row.tokens.start : row.tokens.stop]
            else:
                tags = chain(self._start(row), tokens)
            self._store(forward, row, tags)
            out[row.tokens.start : row.tokens.stop] = tags
        for row in rows:
            if row.is_first:  # else its context is what the row itself has just stored
                self._read_context(forward, row)
        return tuple(out)

    def draft(self, forward: ModelForward, hidden: Sequence[int], ids: Sequence[int]) -> list[int]:
        """Run all rows of a drafter's layer: store their tags, then read all contexts; return a tag for each token.

        A tag follows from the target's at its position, `hidden`, and from the next token, as an EAGLE head has it. It
        does not depend on the context, which is read and checked.
        """
        rows, _ = forward.slot_rows(self)
        contents = forward.next_contents(rows, ids)
        out = [mix(tag, content) for tag, content in zip(hidden, contents, strict=True)]
        for row in rows:
            self._store(forward, row, out[row.tokens.start : row.tokens.stop])
        for row in rows:
            self._read_context(forward, row)
        return out

    def _store(self, forward: ModelForward, row: SlotRow, tags: Sequence[int]) -> None:
        """Store the tags of those of the row's tokens that have slots."""
        if not row.stored:
            return
        stored = tags if len(row.stored) == len(tags) else [tags[one] for one in row.stored]
        for block, slot, tag in zip(row.blocks, row.slots, stored, strict=True):
            self.keys[block, slot], self.values[block, slot] = tag, -tag
        first = row.start + row.stored[0]
        forward.accesses.append(SlotWrite(row.row, self.group, self.index, first, row.blocks, row.slots, stored))

    def _read_context(self, forward: ModelForward, row: SlotRow) -> None:
        """Record what the row attends to: the slots of its pages up to the end of its context."""
        context: list[int] = []
        for block in row.pages:
            context += self.read(block).tags
        del context[row.context - row.first_column * self.block_size :]
        forward.accesses.append(SlotRead(row.row, self.group, self.index, row.pages, context, row.first_column))

    def _start(self, row: SlotRow) -> int:
        """Return the tag of everything before the row's first token, from the slot of the position before it."""
        if row.start <= 0:
            return EMPTY
        column, slot = divmod(row.start - 1, self.block_size)
        block = row.pages[column - row.first_column]
        key, value = self.keys.item(block, slot), self.values.item(block, slot)
        return key if key == -value else combine(key, -value)

    def is_zero(self, block: int) -> bool:
        """Return True if the page exists and is all zeros."""
        if not 0 <= block < len(self.pages):
            return False
        return not any(self.read(block).tags)

    def write(self, block: int, content: SlotContent) -> None:
        """Store the content of a page, as a load from outside the pool does."""
        self.keys[block], self.values[block] = content.tags, [-tag for tag in content.tags]

    def read(self, block: int) -> SlotContent:
        """Return the content of a page; a slot whose key and value disagree gets a tag of no prefix.

        Cached, since pages are read in every step and after every event, and rarely change.
        """
        words = self.pages[block].tobytes()
        content = self._contents.get(words)
        if content is None:
            keys, values = self.keys[block].tolist(), self.values[block].tolist()
            tags = [key if key == -value else combine(key, -value) for key, value in zip(keys, values, strict=True)]
            content = self._contents[words] = SlotContent(tags)
        return content


CHOICES = (10, 9, 8, 7, 6, 5)
"""Logits of the model's choices at a place, the first of them first."""
DECOY_LOGIT = 11


def choices_as_logits() -> npt.NDArray[np.float32]:
    """Return [token, vocabulary] logits with which a token is sampled or, where it may not be, its next choices."""
    logits = np.zeros((VOCABULARY, VOCABULARY), dtype=np.float32)
    for first in range(VOCABULARY):
        token = first
        for logit in CHOICES:
            logits[first, token] = logit
            token = other_token(token)
    # Where a mask hides the right token another one is sampled, and not one that stands for a poisoned state.
    logits[FIRST_TOKEN:, :FIRST_TOKEN] = -1
    return logits


class ShadowModel(nn.Module):
    """A decoder of shadow layers, each in one of the trace's groups."""

    is_hybrid = True

    def __init__(
        self,
        config: Any,
        recorder: Recorder,
        trace: Config,
        forms: Sequence[Group],
        contract: Contract,
        decoys: Decoys,
    ) -> None:
        """`forms` are the groups of the layers, from bottom to top."""
        super().__init__()
        self.recorder = recorder
        self.contract = contract
        layers: list[ShadowAttention | ShadowMamba] = []
        for index, form in enumerate(forms):
            name = f"model.layers.{index}.mixer"
            if form.kind == "mamba":
                layers.append(ShadowMamba(name, config, trace.conv_width, contract, trace))
            else:
                words = head_size(trace, form.block_size)
                layers.append(ShadowAttention(name, config, words, form))
        self.layers: Any = nn.ModuleList(layers)
        self._in_order = tuple(layers)
        self._logits = choices_as_logits()
        self._decoys = decoys

    def get_mamba_state_copy_func(self) -> Any:
        """Return vLLM's own functions for moving a state between blocks, one for each part of the state."""
        from vllm.model_executor.layers.mamba.mamba_utils import MambaStateCopyFuncCalculator

        conv, temporal = MambaStateCopyFuncCalculator.gated_delta_net_state_copy_func()
        return (conv,) * self.contract.parts.conv + (temporal,) * self.contract.parts.recurrent

    def get_mamba_state_copy_funcs(self, types: Any) -> dict[Any, Any]:
        """Return the same for newer releases, by kind of layer."""
        return {kind: self.get_mamba_state_copy_func() for kind in types}

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor | None = None, **_: Any) -> torch.Tensor:
        """Return the hidden states: one tag per token."""
        ids = input_ids.tolist()
        hidden: Tags | None = None
        if forward := self.recorder.begin_forward(get_forward_context(), ids):
            for layer in self._in_order:
                hidden = join(hidden, layer.run(forward, hidden))
            forward.end()
        return torch.from_numpy(np.array(hidden or (0,) * len(ids), dtype=np.int64)[:, None])

    def compute_logits(self, hidden: torch.Tensor, *_: Any) -> torch.Tensor:
        """Return logits whose maximum is the token that follows from the tag."""
        tags = [tag for (tag,) in hidden.tolist()]
        logits = self._logits.take([next_token(tag) for tag in tags], axis=0)
        for place, tag in enumerate(tags):
            if (decoy := self._decoys.at(tag)) is not None:
                logits[place, decoy] = DECOY_LOGIT
        return torch.from_numpy(logits)
