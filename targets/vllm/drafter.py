"""The drafter: proposes as many and as right tokens as the trace asks for.

It stands where vLLM's own drafters stand (V2: a speculator with device tensors, always k proposals; V1: an n-gram
proposer with lists of any length, with asynchronous scheduling one with device tensors). It knows what the model will
say, and the last known length of each request; it never looks at the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...reference.tokens import Truth, draft_tokens
from ..base.trace import Step


class Drafter:
    """Proposals for the requests of one engine."""

    def __init__(self, most: int, longest: int) -> None:
        self.most = most
        self.longest = longest
        """Tokens of any request at most."""
        self.truths: dict[str, Truth] = {}
        self.event = Step()

    def propose(self, name: str, known: int, count: int) -> list[int]:
        """`count` proposals after the first `known` tokens, as right as the event says; nonsense for a request or a
        length that cannot be."""
        _, right = self.event.per_request.get(name, (self.event.drafts, self.event.right))
        truth = self.truths.get(name)
        possible = truth is not None and 0 <= known <= self.longest
        return draft_tokens(truth.tag(known), count, right) if truth and possible else [0] * count

    def wanted(self, name: str) -> int:
        """How many proposals the event asks for."""
        count, _ = self.event.per_request.get(name, (self.event.drafts, self.event.right))
        return min(count, self.most)


class Speculator:
    """The drafter as the V2 runner sees it."""

    num_query_per_req = 1
    num_extra_query_per_req = 0
    supports_mm_inputs = False
    draft_logits = None
    pcp_manager = None

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.runner: Any = None

    def init_cudagraph_manager(self, *_: Any) -> None:
        """No graphs."""

    def capture(self) -> None:
        """No graphs."""

    def propose(self, input_batch: Any, *_: Any, dummy_run: bool = False, **__: Any) -> torch.Tensor:
        """[requests, k] token ids. The total length of a request already counts what this step accepted."""
        count = self.drafter.most
        if dummy_run:
            return torch.zeros((len(input_batch.req_ids), count), dtype=torch.int64)
        known = self.runner.req_states.total_len.gpu[input_batch.idx_mapping].tolist()
        rows = [
            self.drafter.propose(name, length, count) for name, length in zip(input_batch.req_ids, known, strict=True)
        ]
        return torch.tensor(rows, dtype=torch.int64)


def ngram_proposer(drafter: Drafter, engine: Any) -> type:
    """The drafter as the V1 runner sees it: a class that takes the place of `NgramProposer`."""

    class Proposer:
        """Proposes lists of any length, for sampled rows only."""

        def __init__(self, *_: Any, **__: Any) -> None:
            """Takes a VllmConfig and ignores it."""

        def load_model(self, *_: Any, **__: Any) -> None:
            """No weights."""

        def propose(self, *arguments: Any, **_: Any) -> list[list[int]]:
            """Called with (sampled, lengths, ...), in newer releases after the number of drafts."""
            sampled, lengths = arguments[1:3] if isinstance(arguments[0], int) else arguments[:2]
            names: Sequence[str] = engine.runner.input_batch.req_ids
            return [
                drafter.propose(name, int(lengths[row]), drafter.wanted(name)) if sampled[row] else []
                for row, name in enumerate(names)
            ]

    return Proposer


def device_proposer(drafter: Drafter, engine: Any, real: type) -> type:
    """The same on the device, for asynchronous scheduling: vLLM's own `NgramProposerGPU`, with another kernel."""

    class Proposer(real):
        """Always k proposals for each row; how long a row is says vLLM's bookkeeping on the device."""

        def __init__(self, vllm_config: Any, device: Any, *_: Any) -> None:
            speculation = vllm_config.speculative_config
            self.vllm_config, self.device = vllm_config, device
            self.k, self.min_n = speculation.num_speculative_tokens, speculation.prompt_lookup_min

        def load_model(self, *_: Any, **__: Any) -> None:
            """No weights."""

        def kernel(self, lengths: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
            """[rows, k] token ids and how many of each row count."""
            names: Sequence[str] = engine.runner.input_batch.req_ids
            rows = [drafter.propose(name, length, self.k) for name, length in zip(names, lengths.tolist(), strict=True)]
            return torch.tensor(rows, dtype=torch.int32), torch.full((len(rows),), self.k, dtype=torch.int32)

    return Proposer
