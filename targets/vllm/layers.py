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
import torch
from torch import nn
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backends.triton_attn import TritonAttentionBackend
from vllm.v1.kv_cache_interface import FullAttentionSpec

from ...reference.tokens import EMPTY, VOCABULARY, chain, next_token
from ..base.observe import SlotContent, SlotRead, SlotWrite
from ..base.shadow import combine, join
from . import compat
from .contracts import Contract
from .hooks import Recorder
from .layer_rows import SlotRow
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


class ShadowAttention(nn.Module, AttentionLayerBase):
    """An attention layer: stores a tag per position and reads its whole context back."""

    num_heads = 1
    impl = _Implementation()

    def __init__(self, name: str, config: Any, recorder: Recorder, head_size: int) -> None:
        super().__init__()
        self.layer_name = name
        self.recorder = recorder
        self.head_size = head_size
        self.kv_cache = torch.tensor([])
        self.group = self.index = -1
        config.compilation_config.static_forward_context[name] = self

    def get_attn_backend(self) -> type[ShadowBackend]:
        """Return the backend whose metadata builder vLLM uses for this layer."""
        return ShadowBackend

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        """Return the spec of pages with `block_size` slots of one key and one value."""
        return FullAttentionSpec(
            block_size=vllm_config.cache_config.block_size,
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

    def run(self, ids: Sequence[int]) -> Tags:
        """Store the tags of all rows, then read all contexts."""
        rows, order = self.recorder.slot_rows(self)
        log, group, index = self.recorder.log, self.group, self.index
        out = [0] * len(ids)
        for position in order:
            row = rows[position]
            tags = chain(self._start(row), tuple(ids[row.tokens.start : row.tokens.stop]))
            stored = tags if len(row.stored) == len(tags) else [tags[one] for one in row.stored]
            if stored:
                for block, slot, tag in zip(row.blocks, row.slots, stored, strict=True):
                    self.keys[block, slot], self.values[block, slot] = tag, -tag
                first = row.start + row.stored[0]
                log.append(SlotWrite(row.row, group, index, first, row.blocks, row.slots, stored))
            out[row.tokens.start : row.tokens.stop] = tags
        for row in rows:
            context: list[int] = []
            for block in row.pages:
                context += self.read(block).tags
            del context[row.context :]
            log.append(SlotRead(row.row, group, index, row.pages, context))
        return tuple(out)

    def _start(self, row: SlotRow) -> int:
        """Return the tag of everything before the row's first token, from the slot of the position before it."""
        if row.start <= 0:
            return EMPTY
        column, slot = divmod(row.start - 1, self.block_size)
        block = row.pages[column]
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


class ShadowModel(nn.Module):
    """A decoder of shadow layers: "m" a mamba layer, "a" an attention layer."""

    is_hybrid = True

    def __init__(
        self, config: Any, recorder: Recorder, pattern: str, conv_width: int, head_size: int, contract: Contract
    ) -> None:
        super().__init__()
        self.recorder = recorder
        layers: list[ShadowAttention | ShadowMamba] = []
        for index, kind in enumerate(pattern):
            name = f"model.layers.{index}.mixer"
            if kind == "m":
                layers.append(ShadowMamba(name, config, recorder, conv_width, contract))
            else:
                layers.append(ShadowAttention(name, config, recorder, head_size))
        self.layers: Any = nn.ModuleList(layers)
        self._in_order = tuple(layers)
        self._one_hot = 10 * np.eye(VOCABULARY, dtype=np.float32)

    @classmethod
    def get_mamba_state_copy_func(cls) -> Any:
        """Return vLLM's own functions for moving a state between blocks."""
        from vllm.model_executor.layers.mamba.mamba_utils import MambaStateCopyFuncCalculator

        return MambaStateCopyFuncCalculator.gated_delta_net_state_copy_func()

    @classmethod
    def get_mamba_state_copy_funcs(cls, types: Any) -> dict[Any, Any]:
        """Return the same for newer releases, by kind of layer."""
        return {kind: cls.get_mamba_state_copy_func() for kind in types}

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor | None = None, **_: Any) -> torch.Tensor:
        """Return the hidden states: one tag per token."""
        ids = input_ids.tolist()
        hidden: Tags | None = None
        context = get_forward_context()
        if context.attn_metadata is not None and self.recorder.begin_forward(context, ids):
            for layer in self._in_order:
                hidden = join(hidden, layer.run(ids))
            self.recorder.end_forward()
        return torch.from_numpy(np.array(hidden or (0,) * len(ids), dtype=np.int64)[:, None])

    def compute_logits(self, hidden: torch.Tensor, *_: Any) -> torch.Tensor:
        """Return logits whose maximum is the token that follows from the tag."""
        tokens = [next_token(tag) for (tag,) in hidden.tolist()]
        return torch.from_numpy(self._one_hot.take(tokens, axis=0))
