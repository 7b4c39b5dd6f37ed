"""vLLM's own MTP head with random weights beside a real model, around vLLM's own speculator (V2).

The speculator's inputs, metadata, slot mappings, steps and forwards are vLLM's, and so is the head. A draft is the
head's own choice, except that the trace says how many of a request's first ones are right: with random weights the
head's hardly ever are. The values need no oracle, since an answer does not depend on its drafts. What they are
computed from does: each forward runs once for each memory (`memories`), all have to get the same bits (S4), and none
may be NaN (S7).

Beside each forward the tags of the shadow kit's drafter are stored and read on the host (`mirror`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from vllm.config import CUDAGraphMode
from vllm.forward_context import get_forward_context
from vllm.v1.worker.gpu.spec_decode.eagle import utils
from vllm.v1.worker.gpu.spec_decode.mtp.speculator import MTPSpeculator

from ...base.observe import RealDraft
from ..shadow.drafter import Drafter
from ..versions.wrapping import replaced
from . import jitter, memories
from .host_copy import on_host
from .mirror import MirrorAttention, MirrorRecorder


class RealMtp(MTPSpeculator):
    """vLLM's MTP speculator and head. `layer` is its mirror, once there is one."""

    layer: MirrorAttention | None = None

    def __init__(
        self, config: Any, device: torch.device, drafter: Drafter, recorder: MirrorRecorder, build: Callable[..., Any]
    ) -> None:
        """`build` returns the head for a vLLM configuration and a model configuration, with its weights."""
        super().__init__(config, device)
        self.drafter = drafter
        self.recorder = recorder
        self.target_tags: Callable[[], Sequence[int]] = tuple
        """Returns the tags of the target's last forward, one a token."""
        self.reads: list[tuple[int, list[RealDraft]]] = []
        """The drafts of each step."""
        self._build = build
        self._step = 0
        """Of the drafts that are made, behind one step of the model."""
        self._names: Sequence[str] = ()
        self._wanted = torch.empty((0, 0), dtype=torch.int64)
        self._right: Sequence[int] = ()
        self._tags: list[int] = []
        """Of the last forward's tokens, one each: what the head would pass to its next step."""
        self._others: list[torch.Tensor] = []
        """What the last forward returned on each other memory."""

    def load_draft_model(self, target_model: nn.Module, target_attn_layer_names: set[str]) -> nn.Module:
        """Return the head; its layer enters vLLM's forward context now. Embedding and output are the target's."""
        with replaced((utils, "get_model", self._build)):
            head: Any = super().load_draft_model(target_model, target_attn_layer_names)
        self._forward = head.forward
        head.forward = self.run
        return head  # type: ignore[no-any-return]

    def init_cudagraph_manager(self, cudagraph_mode: CUDAGraphMode) -> None:
        """The head's forwards are eager, also behind a replay of the model: what each of them computes is read."""
        super().init_cudagraph_manager(CUDAGraphMode.NONE)

    def capture(self) -> None:
        """No graphs of the head."""

    def propose(self, input_batch: Any, *arguments: Any, dummy_run: bool = False, **keywords: Any) -> torch.Tensor:
        """Return [requests, k] token ids."""
        self._names = () if dummy_run else input_batch.req_ids
        self._step, self._tags = 0, []
        if not dummy_run:
            wanted = self.drafter.proposals(input_batch)
            jitter.behind_read()
            self._wanted = wanted.to(self.device)
            self._right = [self.drafter.right(name) for name in self._names]
            self.reads.append((self.recorder.step, []))
        found: torch.Tensor = super().propose(input_batch, *arguments, dummy_run=dummy_run, **keywords)
        return found

    def run(self, input_ids: torch.Tensor, positions: torch.Tensor, *arguments: Any, **keywords: Any) -> torch.Tensor:
        """The head's forward on each memory, then the mirror's."""
        self._others = [self._forward(input_ids, positions, *arguments, **keywords) for _ in memories.each()]
        hidden: torch.Tensor = self._forward(input_ids, positions, *arguments, **keywords)
        context = get_forward_context()
        if self.layer is not None and context.attn_metadata is not None:
            metadata, slots, ids = on_host((context.attn_metadata, context.slot_mapping, input_ids))
            self._walk(self.layer, SimpleNamespace(attn_metadata=metadata, slot_mapping=slots), ids.tolist())
        return hidden

    def _walk(self, layer: MirrorAttention, context: Any, ids: list[int]) -> None:
        forward = self.recorder.begin_draft(context)
        if forward is None:
            return
        tags = self._tags if self._step else self.target_tags()
        self._tags = layer.draft(forward, [*tags, *[0] * (len(ids) - len(tags))][: len(ids)], ids)

    def sample_draft(self, hidden_states: torch.Tensor, *arguments: Any, **keywords: Any) -> torch.Tensor:
        """Return the drafts of one step: the trace's right ones, then the head's own."""
        count, step = len(hidden_states), self._step
        self._step += 1
        own: torch.Tensor = super().sample_draft(hidden_states, *arguments, **keywords)
        where: Any = slice(count)
        if not step:
            where = self.last_token_indices[:count]
            if self._tags:
                self._tags = [self._tags[index] for index in where.tolist()]
        if not self._names:
            return own
        self._keep(hidden_states, [one[where] for one in self._others], step)
        right = torch.tensor([step < one for one in self._right], device=own.device)
        return torch.where(right, self._wanted[:, step], own)

    def _keep(self, hidden: torch.Tensor, others: Sequence[torch.Tensor], step: int) -> None:
        """Keep whether a step's numbers are finite, and the same on each memory."""
        found = [self.compute_draft_logits(one, 0) for one in (hidden, *others)]
        bits = [one.contiguous().view(torch.uint8) for one in found]
        agrees = [torch.ones(len(hidden), dtype=torch.bool, device=hidden.device)]
        agrees += [(bits[0] == one).flatten(1).all(1) for one in bits[1:]]
        rows = torch.stack([torch.stack(agrees).all(0), found[0].isnan().any(1)]).tolist()
        jitter.behind_read()
        self.reads[-1][1].extend(
            RealDraft(name, step, same, is_nan) for name, same, is_nan in zip(self._names, *rows, strict=True)
        )
