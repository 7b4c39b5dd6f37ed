"""The exact reference of a real model: the steps of one request, repeated alone in an empty engine.

With batch-invariant kernels (`VLLM_BATCH_INVARIANT=1`) the other rows of a batch change no bit, so log-probabilities
and stored states have to be those of the same steps alone. Eager, V2, without prefix caching and align copies. A
difference counts only if two fills of unused memory give the same bits alone, and up to the first step that a
different kernel computes alone than in the batch: a prompt chunk of one token is a decode step to some batches and a
prefill to others, and a gated delta net has another kernel for decode rows beside prefills. The mirror runs here for
that only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request, RequestStatus

from ...base.trace import Config, Group
from ..models import mixer
from ..options import has_adapters
from ..pool_reader import pool_of
from ..shadow import patches
from ..versions import compat
from .plans import Floats, Place, Plan, Segment, Solo
from .real_engine import Fill, RealEngine
from .same_tokens import LONGEST, alone_config, model_options
from .stand_ins import BATCH_INVARIANT

EXACT = ("mamba2", "gdn")
"""Models of which no bit differed on a tree with the known causes fixed: 100,020 steps (benchmarks/gpu_engines.md)."""


def has_exact_reference(config: Config) -> bool:
    """Return True if this process runs vLLM's batch-invariant kernels, and a trace's steps can be repeated alone."""
    is_exact = mixer(config) in EXACT and not has_adapters(config)  # with images it is another model
    return os.environ.get(BATCH_INVARIANT) == "1" and is_exact and not config.async_depth


class SameSteps:
    """Repeats plans, one at a time."""

    def __init__(self, config: Config, device: str) -> None:
        self._engine = RealEngine(alone_config(config, config.num_speculative_tokens), device)
        self._engine.reset("zero")
        self._engine.real.choose = self._choose
        self._engine.drafter.propose = self._propose  # type: ignore[method-assign]
        self._places = [place for place, layer in self._engine.recorder.layers.items() if hasattr(layer, "temporal")]
        self._tokens: Sequence[int] = ()
        self._start = 0
        self._drafts: Sequence[int] = ()
        self._runs = 0

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()

    def _choose(self, indices: Sequence[int]) -> Sequence[int]:
        """Return the request's own token after each token of the step; 0 after its last one."""
        behind = [self._start + index + 1 for index in indices]
        return [self._tokens[at] if at < len(self._tokens) else 0 for at in behind]

    def _propose(self, name: str, known: int, count: int) -> list[int]:
        return [*self._drafts, *[0] * count][:count]

    def run(self, plan: Plan, tokens: Sequence[int], fill: Fill) -> Solo:
        """Return the results for the request whose own tokens are `tokens`; `fill` is what unused memory holds."""
        engine, scheduler = self._engine, self._engine.scheduler
        patches.activate(None)
        engine.fill_pool(fill)
        self._runs += 1
        name, self._tokens = f"alone-{self._runs}", tokens
        prompt = max(segment.end for segment in plan if segment.prefill)
        parameters = SamplingParams(max_tokens=LONGEST - prompt, temperature=0.0, ignore_eos=True)
        arguments = compat.request_arguments(None, 0, float(self._runs))
        request = Request(name, list(tokens[:prompt]), parameters, **arguments)
        scheduler.add_request(request)
        logprobs: dict[int, Floats] = {}
        states: dict[tuple[int, Place], torch.Tensor] = {}
        for index, segment in enumerate(plan):
            self._start, self._drafts = segment.start, plan[index + 1].drafts if index + 1 < len(plan) else ()
            request.spec_token_ids = list(segment.drafts)
            self._step(segment)
            reads = list(engine.real.reads)
            engine.real.reads.clear()
            if any(read.kernels.get(0) != segment.kernel for read in reads):
                break
            for read in reads:
                for row, token in enumerate(read.indices):
                    if token < segment.kept:
                        logprobs[segment.start + token] = read.logprobs[row]
            for place, state in self._states(name, segment):
                states[segment.end, place] = state
        scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
        while scheduler.has_requests():
            empty = scheduler.schedule()
            scheduler.update_from_output(empty, engine.worker.execute(empty, 0))
        scheduler.max_num_scheduled_tokens = LONGEST
        bits = torch.stack(list(states.values())).cpu().numpy() if states else ()
        return Solo(logprobs, {key: one.tobytes() for key, one in zip(states, bits, strict=True)})

    def _step(self, segment: Segment) -> None:
        """Run one step of exactly the segment's tokens."""
        engine, scheduler = self._engine, self._engine.scheduler
        wanted = segment.kept if segment.prefill else 1 + len(segment.drafts)
        scheduler.max_num_scheduled_tokens = wanted
        scheduled = scheduler.schedule()
        if scheduled.total_num_scheduled_tokens != wanted:
            raise AssertionError(f"{scheduled.total_num_scheduled_tokens} tokens scheduled alone in place of {wanted}")
        engine.recorder.begin_step(0)
        output: Any = engine.worker.execute(scheduled, 0)
        scheduler.update_from_output(scheduled, output)
        if engine.config.num_speculative_tokens:
            engine.worker.pass_drafts(scheduler)

    def _states(self, name: str, segment: Segment) -> Sequence[tuple[Place, torch.Tensor]]:
        """Bits of the temporal states after the segment; a decode step with drafts leaves one for each token."""
        blocks = pool_of(self._engine.scheduler).tables()[name]
        column = 0 if segment.prefill or not self._engine.config.num_speculative_tokens else segment.kept - 1
        return [
            (place, self._engine.temporal(*place)[blocks[place[0]][column]].flatten().clone()) for place in self._places
        ]


def plain(config: Config) -> Config:
    """The configuration with only what `SameSteps` depends on."""
    groups = tuple(Group(group.kind, group.block_size, group.layers) for group in config.groups if not group.draft)
    return Config(
        num_blocks=64,
        groups=groups,
        conv_width=config.conv_width,
        num_speculative_tokens=config.num_speculative_tokens,
        options=model_options(config),
    )


__all__ = ["SameSteps", "has_exact_reference", "plain"]
