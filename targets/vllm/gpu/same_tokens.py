"""The reference of a real model: the same tokens alone, in one chunk, in an empty engine.

Eager, V2, without speculation and prefix caching, so that none of a batch's bookkeeping is involved. A difference
counts only if two fills of unused memory give the same bits here; the second one is run where there is a difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec import structs
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

from ...base.trace import Config, Group
from ..models import dtype, mixer
from ..options import has_adapters, has_images, options_of
from ..pool_reader import pool_of
from ..shadow import patches
from ..versions import compat
from .beside import ALONE, Beside
from .real_engine import Fill, RealEngine
from .real_model import Floats, logprobs

LONGEST = 1024
"""Tokens of a sequence at most."""
CHANGE = 2.0**-22
"""Relative change of each weight in `SameTokens.rounding`: four times the rounding of a float32."""
PATTERNS = 4


def model_options(config: Config) -> dict[str, str]:
    """Return the options on which a model and its pages depend."""
    given = options_of(config)
    if has_images(config):
        return {"mixer": given.mixer, "dtype": dtype(config), "conv_layout": given.conv_layout, "inputs": "images"}
    options = {"mixer": mixer(config), "dtype": dtype(config), "conv_layout": given.conv_layout}
    return options | ({"inputs": "adapters"} if has_adapters(config) else {})


def alone_config(config: Config, drafts: int) -> Config:
    """The configuration of an empty engine for one request: eager, V2, no prefix caching."""
    size = next(group.block_size for group in config.groups if group.kind == "attention")
    return structs.replace(
        config,
        num_blocks=(LONGEST // size + 8 + drafts) * len(config.groups),
        mamba_cache_mode="none",
        enable_prefix_caching=False,
        num_speculative_tokens=drafts,
        eagle_block_drop=False,
        max_model_len=LONGEST,
        max_num_seqs=1,
        max_num_batched_tokens=LONGEST,
        long_prefill_token_threshold=0,
        async_depth=0,
        policy="fcfs",
        options=model_options(config),
    )


class Alone(NamedTuple):
    """A sequence, and what it is computed with."""

    tokens: tuple[int, ...]
    beside: Beside = ALONE


class SameTokens:
    """Log-probabilities after each token of a sequence."""

    def __init__(self, config: Config, device: str) -> None:
        self._config = alone_config(config, 0)
        self._engine = RealEngine(self._config, device)
        self._engine.reset("zero")
        self._engine.real.mirror = None
        if has_images(config):
            # A sequence runs in one chunk, with all its images.
            scheduler = self._engine.scheduler
            scheduler.max_num_encoder_input_tokens = LONGEST
            scheduler.encoder_cache_manager = type(scheduler.encoder_cache_manager)(cache_size=LONGEST)
        self._known: dict[Alone, Floats] = {}
        self._is_sound: dict[Alone, bool] = {}
        self._rounding: dict[Alone, Floats] = {}
        self._blocks: Sequence[Sequence[int]] = ()
        """Of the last sequence, by group."""
        self._runs = 0

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()

    def expected(self, tokens: Sequence[int], beside: Beside = ALONE) -> Floats:
        """[tokens, vocabulary]."""
        key = Alone(tuple(tokens), beside)
        if key not in self._known:
            self._known[key] = self._run(key, "zero")
        return self._known[key]

    def pages(self, tokens: Sequence[int], beside: Beside = ALONE) -> Mapping[str, Sequence[torch.Tensor]]:
        """Compute a sequence; return the parts of each layer's pages, [blocks, ...] each. A state layer has one block,
        with the state behind the last token."""
        engine, key = self._engine, Alone(tuple(tokens), beside)
        self._known[key] = self._run(key, "zero")
        return {
            name: [part[list(blocks)].clone() for part in engine.caches(name)]
            for group, blocks in enumerate(self._blocks)
            for name in engine.layer_names(group)
        }

    def is_sound(self, tokens: Sequence[int], beside: Beside = ALONE) -> bool:
        """Return True if the log-probabilities of a sequence do not depend on unused memory."""
        key = Alone(tuple(tokens), beside)
        if key not in self._is_sound:
            self._is_sound[key] = np.array_equal(self.expected(*key), self._run(key, "nan"), equal_nan=True)
        return self._is_sound[key]

    def rounding(self, tokens: Sequence[int], beside: Beside = ALONE) -> Floats:
        """[tokens]: how far log-probabilities move where each weight changes in its last bits.

        A batch computes the same sums in another order, which changes as little: where this moves a row far, so does a
        batch. The largest of `PATTERNS` patterns of signs; 0 in bfloat16, which has no such bits.
        """
        key = Alone(tuple(tokens), beside)
        if key not in self._rounding:
            moved = [np.abs(self._with_other_weights(key, seed) - self.expected(*key)) for seed in range(PATTERNS)]
            self._rounding[key] = np.max(moved, axis=(0, 2))
        return self._rounding[key]

    def _with_other_weights(self, key: Alone, seed: int) -> Floats:
        weights = [one.data for one in self._engine.real.model.parameters() if one.is_floating_point()]
        kept = [one.clone() for one in weights]
        generator = torch.Generator().manual_seed(seed)
        try:
            for one in weights:
                signs = torch.randint(0, 2, one.shape, generator=generator).to(one.device) * 2 - 1
                one.mul_(1 + CHANGE * signs)
            return self._run(key, "zero")
        finally:
            for one, before in zip(weights, kept, strict=True):
                one.copy_(before)

    def _run(self, key: Alone, fill: Fill) -> Floats:
        engine, scheduler, tokens = self._engine, self._engine.scheduler, key.tokens
        patches.activate(None)
        engine.fill_pool(fill)
        self._runs += 1
        parameters = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        arguments = compat.request_arguments(None, 0, float(self._runs))
        name, truths = f"alone-{self._runs}", engine.drafter.truths
        if engine.inputs:
            truths[name] = key.beside.truth()
            arguments |= engine.inputs.arguments(truths[name], 0)
        scheduler.add_request(Request(name, list(tokens), parameters, **arguments))
        engine.real.keep_hidden = True
        while scheduler.has_requests():
            plan = scheduler.schedule()
            scheduled = plan.total_num_scheduled_tokens
            if scheduled:
                self._blocks = pool_of(scheduler).tables()[name]
            engine.recorder.begin_step(0)
            output: Any = engine.worker.execute(plan, 0)
            scheduler.update_from_output(plan, output)
            if scheduled:
                assert scheduled == len(tokens), "a sequence alone runs in one chunk"
                hidden = engine.real.hidden[: len(tokens)]
        truths.pop(name, None)
        return logprobs(engine.real.logits(hidden))


def plain(config: Config) -> Config:
    """The configuration with only what `SameTokens` depends on."""
    return Config(
        num_blocks=64,
        groups=tuple(
            Group(one.kind, one.block_size, one.layers, window=one.window) for one in config.groups if not one.draft
        ),
        conv_width=config.conv_width,
        options=model_options(config),
    )
