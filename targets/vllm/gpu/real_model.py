"""vLLM's own model in an engine: each forward also runs the mirror, and the sampler is given the tag model's tokens.

The real model's logits are kept, as log-probabilities on the host: one row for each token from which vLLM samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from vllm.forward_context import get_forward_context

from ..shadow.layers import choices_as_logits
from . import jitter, memories
from .host_copy import on_host
from .mirror import Mirror

Floats = npt.NDArray[np.float32]


class Read(NamedTuple):
    """What the real model computed in one forward.

    indices  tokens of the batch from which vLLM samples
    logprobs [indices, vocabulary] log-probabilities
    tokens   the tokens that vLLM was made to sample
    kernels  what computed the state of each row of the batch (`layer_rows.KERNELS`)
    others   log-probabilities computed on each other memory (`memories`)
    """

    indices: Sequence[int]
    logprobs: Floats
    tokens: Sequence[int]
    kernels: Mapping[int, str]
    others: Sequence[Floats]


class Captured(NamedTuple):
    """A forward that was captured: its context, token ids and output, and the buffer of its embeddings, if it was given
    embeddings in the place of ids."""

    context: Any
    ids: torch.Tensor
    hidden: torch.Tensor
    embeddings: torch.Tensor | None


def repeated(run: Callable[[], torch.Tensor], embeddings: torch.Tensor | None) -> list[torch.Tensor]:
    """Run a forward for each other memory, from the same embeddings: a kernel may add to them in place."""
    found = []
    for _ in memories.each():
        before = None if embeddings is None else embeddings.clone()
        found.append(run())
        if embeddings is not None and before is not None:
            embeddings.copy_(before)
    return found


class RealModel:
    """Hooks on one model instance. `sampled_from` is set by the runner's hooks before it asks for logits. `token_ids`
    returns those of so many tokens of the batch, for a model that is given embeddings in their place."""

    def __init__(self, model: Any, token_ids: Callable[[int], torch.Tensor]) -> None:
        self.model = model
        self._token_ids = token_ids
        self.mirror: Mirror | None = None
        self.choose: Callable[[Sequence[int]], Sequence[int]] | None = None
        """Returns the tokens to sample after some tokens of the batch; None: the mirror chooses them."""
        self.sampled_from: torch.Tensor | None = None
        self.reads: list[Read] = []
        self.keep_hidden = False
        self.hidden = torch.empty(0)
        """Of the last forward's tokens, if they are kept."""
        self.others: list[torch.Tensor] = []
        """What the last forward returned on each other memory."""
        self.captured: Captured | None = None
        """The capture that ended last."""
        self.in_pieces = False
        """True while a piecewise graph is captured or replayed: the mirror is walked afterwards."""
        model.real_model = self
        self._forward = model.forward
        self._compute_logits = model.compute_logits
        model.forward = self.forward
        model.compute_logits = self.compute_logits

    def close(self) -> None:
        """Let go of the model, the mirror and the last capture."""
        del self.model.real_model
        self.model.forward, self.model.compute_logits = self._forward, self._compute_logits
        vars(self).clear()

    def forward(self, input_ids: torch.Tensor | None, *arguments: Any, **keywords: Any) -> Any:
        """The real forward, then the mirror's; a capture is only kept, for its replays."""
        context, embeddings = get_forward_context(), keywords.get("inputs_embeds")
        if not self.in_pieces:
            self.others = repeated(lambda: self._forward(input_ids, *arguments, **keywords), embeddings)
        hidden = self._forward(input_ids, *arguments, **keywords)
        if self.keep_hidden:
            self.hidden = hidden
        if self.in_pieces:
            return hidden
        if hidden.is_cuda and torch.cuda.is_current_stream_capturing():
            self.captured = Captured(context, self.ids(input_ids, keywords), hidden, embeddings)
        else:
            self.walk(context, self.ids(input_ids, keywords))
        return hidden

    def ids(self, input_ids: torch.Tensor | None, keywords: Mapping[str, Any]) -> torch.Tensor:
        """The token ids of a forward: those it is given, or those whose embeddings it is given."""
        return self._token_ids(len(keywords["inputs_embeds"])) if input_ids is None else input_ids

    def walk(self, context: Any, input_ids: torch.Tensor) -> None:
        """Run the mirror on the metadata that the kernels were given."""
        mirror = self.mirror
        if mirror is None or context.attn_metadata is None:
            return
        tables = mirror.recorder.worker.device_tables() if mirror.recorder.worker else ()
        metadata, slots, ids, copies = on_host((context.attn_metadata, context.slot_mapping, input_ids, tables))
        if mirror.recorder.worker:
            mirror.recorder.worker.tables = copies
        mirror.run(SimpleNamespace(attn_metadata=metadata, slot_mapping=slots), ids.tolist())

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """The real model's logits."""
        with torch.inference_mode():
            values: torch.Tensor = self._compute_logits(hidden)
            return values

    def compute_logits(self, hidden: torch.Tensor, *arguments: Any, **keywords: Any) -> Any:
        """The tag model's choices; the real ones are kept."""
        logits = self._compute_logits(hidden, *arguments, **keywords)
        chosen = self.sampled_from
        self.sampled_from = None
        choose, kernels = self.choose, dict[int, str]()
        if self.mirror is not None and self.mirror.tags:
            choose, kernels = choose or self.mirror.tokens, dict(self.mirror.recorder.kernels)
        if choose is None or chosen is None:
            return logits
        others, self.others = self.others, []
        with torch.inference_mode():
            # One copy for all: indices are far below 2^24.
            found = [logits, *[self._compute_logits(one[chosen], *arguments, **keywords) for one in others]]
            parts = [one.float().log_softmax(-1) for one in found]
            values = torch.cat([*parts, chosen[:, None].float()], 1).cpu().numpy()
        jitter.behind_read()
        indices: list[int] = values[:, -1].astype(int).tolist()
        tokens = choose(indices)
        own, *rest = np.split(values[:, :-1], len(found), axis=1)
        self.reads.append(Read(indices, own, tokens, kernels, rest))
        return _choices(logits.device, logits.dtype)[torch.tensor(tokens, device=logits.device)]


@cache
def _choices(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(choices_as_logits()).to(device, dtype)


def logprobs(logits: torch.Tensor) -> Floats:
    """Log-probabilities on the host."""
    values: Floats = logits.float().log_softmax(-1).cpu().numpy()
    return values


def watch_sampling(runner: Any, real: RealModel, is_v2: bool) -> None:
    """Keep which tokens of the batch a runner samples from, whenever it is about to ask for their logits."""
    if is_v2:
        sample = runner.sample

        def sampling(hidden: Any, input_batch: Any, *rest: Any, **keywords: Any) -> Any:
            real.sampled_from = input_batch.logits_indices
            return sample(hidden, input_batch, *rest, **keywords)

        runner.sample = sampling
        return
    prepare: Callable[..., Any] = runner._prepare_inputs

    def preparing(*arguments: Any, **keywords: Any) -> Any:
        prepared = prepare(*arguments, **keywords)
        real.sampled_from = prepared[0]
        return prepared

    runner._prepare_inputs = preparing
