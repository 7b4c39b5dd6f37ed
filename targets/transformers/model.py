"""The real model: a tiny one with random weights, and its own forward.

Its log-probabilities in a batch, with a cache, are compared with those of the same tokens alone, in one forward without
a cache. Both are float32 and differ by rounding; the margin is derived from the model itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ..base.observe import RealRow
from . import operations as do
from .caches import Batch
from .families import FAMILIES, WEIGHTS, Family

MARGIN = 100.0
"""Rounding in another order may differ by so many times what float32 differs from float64."""
MARGIN_MIN = 1e-3
"""The smallest tolerance of a log-probability: what is smaller cannot be told from rounding in long sums."""


class Model:
    """A tiny model of one family."""

    def __init__(self, family: Family) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        self.family = family
        self.config = AutoConfig.for_model(family.model_type, **family.sizes)
        self.config._experts_implementation = "eager"
        torch.manual_seed(0)
        self.model: Any = AutoModelForCausalLM.from_config(self.config, dtype=torch.float32).eval()
        with torch.no_grad():
            for name, weights in self.model.named_parameters():
                if weights.dim() >= 2 and "A_log" not in name:
                    inputs = weights.shape[-1] if weights.dim() == 2 else weights[0].numel()
                    weights.copy_(torch.randn_like(weights) * WEIGHTS / inputs**0.5)
        parameters = inspect.signature(self.model.forward).parameters
        self.cache_name = "cache_params" if "cache_params" in parameters else "past_key_values"
        self.takes_positions = "position_ids" in parameters
        self.tolerance = self._tolerance()

    def _tolerance(self) -> float:
        """Return the largest sound difference of a log-probability."""
        tokens = [2 + 37 * index % 126 for index in range(48)]
        single = self.alone(tokens)
        try:
            double = self.model.double()(input_ids=torch.tensor([tokens]), use_cache=False).logits
            noise = float(np.abs(_logprobs(double)[0] - single).max())
        except RuntimeError:  # a kernel without float64
            noise = 0.0
        finally:
            self.model.float()
        return max(MARGIN * noise, MARGIN_MIN)

    def alone(self, tokens: Sequence[int]) -> Any:
        """Return the log-probabilities [tokens, vocabulary] after each of these tokens, alone and without a cache."""
        with torch.no_grad():
            return _logprobs(self.model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits)[0]


class ModelBatch:
    """A model on the cache of one batch."""

    def __init__(self, model: Model, batch: Batch, *, positions: bool, recording: bool) -> None:
        self.model = model
        self.batch = batch
        self.positions = positions
        self.recording = recording
        self._alone: dict[tuple[int, ...], Any] = {}

    def feed(self, feed: do.Feed, rows: Sequence[tuple[str | None, int, Sequence[int], int]]) -> list[RealRow]:
        """Run one forward; return the log-probabilities that differ most from the same tokens alone, by row.

        `rows`: name, tokens fed before, all tokens that will ever be fed as far as they are known, and how many of
        those this forward feeds.
        """
        model, mask = self.model, torch.tensor(feed.mask)
        given: dict[str, Any] = {
            "input_ids": torch.tensor(feed.tokens), "attention_mask": mask, model.cache_name: self.batch.cache,
            "use_cache": True,
        }  # fmt: skip
        if self.positions and model.takes_positions:
            given["position_ids"] = torch.tensor(feed.positions)
        if self.positions and model.family.mask_once and feed.start:
            given["attention_mask"] = None  # as `prepare_inputs_for_generation` does
        with torch.no_grad():
            output = model.model(**given)
        if self.batch.cache is None:
            self.batch.cache = getattr(output, model.cache_name)
        found = _logprobs(output.logits)
        return [
            self._worst(name, before, tokens, found[row][found.shape[1] - count :])
            for row, (name, before, tokens, count) in enumerate(rows)
            if name is not None and count
        ]

    def _worst(self, name: str, before: int, tokens: Sequence[int], found: Any) -> RealRow:
        expected = self._expected(tuple(tokens))[before : before + len(found)]
        distance = np.nan_to_num(np.abs(found - expected).max(axis=1), nan=np.inf)
        worst = int(distance.argmax())
        return RealRow(name, before + worst, found[worst], expected[worst], True)

    def _expected(self, tokens: tuple[int, ...]) -> Any:
        known = self._alone.get(tokens)
        if known is None:
            known = self._alone[tokens] = self.model.alone(tokens)
        return known


class Models:
    """The models of this process, each made when it is first used."""

    def __init__(self) -> None:
        self._models: dict[str, Model] = {}

    def get(self, name: str) -> Model:
        """Return the model of a family."""
        if name not in self._models:
            self._models[name] = Model(FAMILIES[name])
        return self._models[name]


def new_cache(model: Model, kind: str, length: int, *, recording: bool, own: bool) -> Callable[[], Any]:
    """Return what makes a cache for up to `length` columns.

    `own`: None may stand for the cache that the model makes in its first forward.
    """
    from transformers import DynamicCache, StaticCache

    def make() -> Any:
        if kind == "static":
            return StaticCache(config=model.config, max_cache_len=length)
        if own and not recording:
            return None
        if not model.family.conv:
            from transformers.models.minimax.modeling_minimax import MiniMaxCache

            return MiniMaxCache()
        cache = DynamicCache(config=model.config)
        if recording:
            cache.activate_past_recording()
        return cache

    return make


def _logprobs(logits: torch.Tensor) -> Any:
    return logits.float().log_softmax(-1).numpy()
