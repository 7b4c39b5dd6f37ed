"""vLLM's own MTP speculator around a shadow draft layer, which keeps tags in a KV cache group of its own (V2).

The speculator's inputs, metadata, slot mappings and steps are vLLM's. Replaced are the draft model (one layer whose
slot for position p is the tag that follows from the target's tag there and from the *next* token, as an EAGLE head
has it) and the sampling of drafts, which takes the tokens that the trace specifies.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.forward_context import get_forward_context
from vllm.v1.worker.gpu.spec_decode import speculator as base
from vllm.v1.worker.gpu.spec_decode.mtp.speculator import MTPSpeculator

from ...base.trace import Group
from ..options import DRAFT_LAYER
from ..versions.wrapping import replaced
from .drafter import Drafter
from .layers import ShadowAttention
from .recorder import Recorder


class ShadowDraftModel(nn.Module):
    """A draft model of one layer; `hidden_states` and the result are [tokens, 1] tags."""

    def __init__(self, layer: ShadowAttention, recorder: Recorder) -> None:
        super().__init__()
        self.layer = layer
        self.recorder = recorder

    def forward(self, input_ids: torch.Tensor, hidden_states: torch.Tensor, **_: Any) -> torch.Tensor:
        """Return the hidden states that the drafter would pass to its next step."""
        forward = self.recorder.begin_draft(get_forward_context())
        if forward is None:
            return torch.zeros_like(hidden_states)
        tags = self.layer.draft(forward, hidden_states[:, 0].tolist(), input_ids.tolist())
        return torch.tensor(tags, dtype=torch.int64)[:, None]


class ShadowMtp(MTPSpeculator):
    """vLLM's MTP speculator with a shadow draft model and the trace's drafts."""

    layer: ShadowAttention

    def __init__(self, config: Any, device: Any, drafter: Drafter, recorder: Recorder, form: Group, words: int) -> None:
        # The target's class, which vLLM would import to look for a method, is never built.
        with replaced((base, "_target_feeds_hc_residual", lambda _: False)):
            super().__init__(config, device)
        self.drafter = drafter
        self.hidden_size, self.dtype = 1, torch.int64
        self.hidden_states = torch.zeros((self.max_num_tokens, 1), dtype=torch.int64, device=device)
        self._made = recorder, form, words
        self._wanted = torch.empty((0, 0), dtype=torch.int64)
        """Drafts that the trace specifies."""

    def load_draft_model(self, target_model: nn.Module, target_attn_layer_names: set[str]) -> nn.Module:
        """Return the shadow draft model; its layer enters vLLM's forward context now."""
        recorder, form, words = self._made
        self.layer = ShadowAttention(DRAFT_LAYER, self.vllm_config, words, form)
        return ShadowDraftModel(self.layer, recorder)

    def propose(self, input_batch: Any, *arguments: Any, dummy_run: bool = False, **keywords: Any) -> torch.Tensor:
        """Return [requests, k] token ids: those that the trace specifies."""
        names = input_batch.req_ids
        self._wanted = self.drafter.rows(names, [0] * len(names)) if dummy_run else self.drafter.proposals(input_batch)
        drafts: torch.Tensor = super().propose(input_batch, *arguments, dummy_run=dummy_run, **keywords)
        return drafts

    def sample_draft(self, hidden_states: torch.Tensor, *arguments: Any, **_: Any) -> torch.Tensor:
        """Return the drafts of one step: `arguments` are positions, rows, temperatures, seeds, step, logits."""
        return self._wanted[: len(hidden_states), int(arguments[4])]
