"""The drafter: proposes as many tokens as the trace specifies, of which the specified number is right.

It takes the place of vLLM's own drafters (V2: a speculator with device tensors, always k proposals; V1: an n-gram
proposer with lists of any length, with asynchronous scheduling one with device tensors). It knows the tokens that the
model will sample and the last known length of each request; it never reads the caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch

from ....reference.tokens import Truth
from ...base.decoys import Decoys
from ...base.trace import Config, Step
from ..options import drafts_on_device
from ..sizes import has_eagle_rules


class Drafter:
    """Proposals for the requests of one engine."""

    def __init__(self, most: int, longest: int) -> None:
        self.most = most
        self.longest = longest
        """Most tokens of a request."""
        self.truths: dict[str, Truth] = {}
        self.decoys = Decoys()
        """What the model prefers here and there, though a request rules it out. A drafter proposes none."""
        self.event = Step()
        self.runner: Any = None
        """The runner that asks; its batch has the requests' names."""

    def propose(self, name: str, known: int, count: int) -> list[int]:
        """Return `count` proposals after the first `known` tokens, of which the event's number is right.

        For an unknown request or an impossible length all of them are wrong.
        """
        _, right = self.event.per_request.get(name, (self.event.drafts, self.event.right))
        truth = self.truths.get(name)
        possible = truth is not None and 0 <= known <= self.longest
        return truth.drafts(known, count, right) if truth and possible else [0] * count

    def proposals(self, batch: Any) -> torch.Tensor:
        """Return int64 [requests, k] for a batch of the V2 runner. The total length of a request includes the tokens
        that this step accepted."""
        known = self.runner.req_states.total_len.gpu[batch.idx_mapping].tolist()
        return self.rows(batch.req_ids, known)

    def rows(self, names: Sequence[str], known: Sequence[int]) -> torch.Tensor:
        """Return int64 [requests, k]: the proposals after the known tokens of each."""
        rows = [self.propose(name, length, self.most) for name, length in zip(names, known, strict=True)]
        return torch.tensor(rows, dtype=torch.int64)

    def right(self, name: str) -> int:
        """The number of proposals that are right by the event."""
        _, right = self.event.per_request.get(name, (self.event.drafts, self.event.right))
        return right if name in self.truths else 0

    def wanted(self, name: str) -> int:
        """The number of proposals that the event specifies."""
        count, _ = self.event.per_request.get(name, (self.event.drafts, self.event.right))
        return min(count, self.most)


class Speculator:
    """The drafter with the interface of the V2 runner."""

    num_query_per_req = 1
    num_extra_query_per_req = 0
    supports_mm_inputs = False
    draft_logits = None
    pcp_manager = None

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.model = torch.nn.Module()
        """Without layers: 0.25 to 0.27 look for layers that communicate."""

    def init_cudagraph_manager(self, *_: Any) -> None:
        """No graphs."""

    def capture(self) -> None:
        """No graphs."""

    def propose(self, input_batch: Any, *_: Any, dummy_run: bool = False, **__: Any) -> torch.Tensor:
        """Return [requests, k] token ids."""
        if dummy_run:
            return torch.zeros((len(input_batch.req_ids), self.drafter.most), dtype=torch.int64)
        return self.drafter.proposals(input_batch)


def ngram_proposer(drafter: Drafter) -> type:
    """Return a class with the interface of the V1 runner, in place of `NgramProposer`."""

    class Proposer:
        """Proposes lists of any length, for sampled rows only."""

        def __init__(self, *_: Any, **__: Any) -> None:
            """Ignore the VllmConfig that vLLM passes."""

        def load_model(self, *_: Any, **__: Any) -> None:
            """No weights."""

        def propose(self, *arguments: Any, **_: Any) -> list[list[int]]:
            """Return lists of token ids. Called with (sampled, lengths, ...); newer releases put k first."""
            sampled, lengths = arguments[1:3] if isinstance(arguments[0], int) else arguments[:2]
            names: Sequence[str] = drafter.runner.input_batch.req_ids
            return [
                drafter.propose(name, int(lengths[row]), drafter.wanted(name)) if sampled[row] else []
                for row, name in enumerate(names)
            ]

    return Proposer


def drafting_plainly(vllm_config: Any, config: Config) -> Sequence[tuple[Any, str, Any]]:
    """Return the replacement without which the V1 runner would load an EAGLE head, as for `replaced`. Only cache and
    scheduler then have EAGLE's rules."""
    if not has_eagle_rules(config):
        return ()
    plain = copy(vllm_config.speculative_config)
    plain.method = "ngram_gpu" if drafts_on_device(config) else "ngram"
    return ((vllm_config, "speculative_config", plain),)


def set_draft_counts(runner: Any, config: Config) -> None:
    """Fill a buffer of the V1 runner that vLLM leaves uninitialized, and reads before the first batch that a drafter on
    the device handles."""
    if drafts_on_device(config):
        runner._num_valid_draft_tokens_cpu.fill_(config.num_speculative_tokens)


def device_proposer(drafter: Drafter, real: type) -> type:
    """Return a class for asynchronous scheduling: vLLM's own `NgramProposerGPU` with another kernel."""

    class Proposer(real):
        """Proposes k tokens for each row; the length of a row comes from vLLM's bookkeeping on the device."""

        def __init__(self, vllm_config: Any, device: Any, *_: Any) -> None:
            speculation = vllm_config.speculative_config
            self.vllm_config, self.device = vllm_config, device
            self.k, self.min_n = speculation.num_speculative_tokens, speculation.prompt_lookup_min

        def load_model(self, *_: Any, **__: Any) -> None:
            """No weights."""

        def kernel(self, lengths: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
            """Return [rows, k] token ids and the number of valid ones in each row."""
            rows = drafter.rows(drafter.runner.input_batch.req_ids, lengths.tolist()).int()
            return rows, torch.full((len(rows),), self.k, dtype=torch.int32)

    return Proposer
