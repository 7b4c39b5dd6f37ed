"""The real model: a tiny one with random weights, and its own forward.

Its log-probabilities in a batch, with a cache, are compared with those of the same tokens alone, in one forward without
a cache. Both are float32 and differ by rounding. How much rounding matters depends on the tokens: the margin is a
multiple of the difference between float32 and float64 on the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import torch

from ..base.observe import RealRow
from . import operations as do
from .caches import Batch
from .families import FAMILIES, WEIGHTS, Family

MARGIN = 100.0
"""Rounding in another order may differ by so many times what float32 differs from float64."""
MARGIN_MIN = 2e-3
"""The smallest tolerance of a log-probability. One wrong token in a cache moves them by 0.1 to 8."""


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
        self.double: Any = deepcopy(self.model).double()

    def alone(self, tokens: Sequence[int]) -> tuple[Any, float]:
        """Return the log-probabilities [tokens, vocabulary] after each of these tokens, alone and without a cache, and
        how far they may differ from another order of the same sums."""
        given = {"input_ids": torch.tensor([list(tokens)]), "use_cache": False}
        with torch.no_grad(), torch._C.DisableTorchFunction():  # no cache, hence nothing to simulate (`devices`)
            single, double = (_logprobs(model(**given).logits)[0] for model in (self.model, self.double))
        return single, max(MARGIN * float(np.abs(single - double).max()), MARGIN_MIN)


class ModelBatch:
    """A model on the cache of one batch."""

    def __init__(self, model: Model, batch: Batch, *, positions: bool, recording: bool) -> None:
        self.model = model
        self.batch = batch
        self.positions = positions
        self.recording = recording
        self._alone: dict[tuple[int, ...], tuple[Any, float]] = {}

    def feed(
        self, feed: do.Feed, rows: Sequence[tuple[str | None, int, Sequence[int], int]]
    ) -> tuple[list[RealRow], float]:
        """Run one forward; return the log-probabilities that differ most from the same tokens alone, by row, and the
        tolerance.

        `rows`: name, tokens fed before, all tokens that will ever be fed as far as they are known, and how many of
        those this forward feeds.
        """
        model, mask = self.model, torch.tensor(feed.mask)
        given: dict[str, Any] = {
            "input_ids": torch.tensor(feed.tokens), "attention_mask": mask, model.family.cache_name: self.batch.cache,
            "use_cache": True,
        }  # fmt: skip
        if self.positions and model.family.positions:
            given["position_ids"] = torch.tensor(feed.positions)
        if self.positions and model.family.masks_itself and feed.start:
            given["attention_mask"] = mask_after_first(feed)
        with torch.no_grad():
            output = model.model(**given)
        if self.batch.cache is None:
            self.batch.cache = getattr(output, model.family.cache_name)
        found = _logprobs(output.logits)
        worst, tolerance = [], MARGIN_MIN
        for row, (name, before, tokens, count) in enumerate(rows):
            if name is not None and count:
                expected, margin = self._expected(tuple(tokens))
                tolerance = max(tolerance, margin)
                worst.append(_worst(name, before, expected[before : before + count], found[row][-count:]))
        return worst, tolerance

    def _expected(self, tokens: tuple[int, ...]) -> tuple[Any, float]:
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


def new_cache(
    model: Model, kind: str, length: int, *, recording: bool, own: bool, offloading: bool = False
) -> Callable[[], Any]:
    """Return what makes a cache for up to `length` columns.

    `own`: None may stand for the cache that the model makes in its first forward.
    """
    from transformers import DynamicCache, StaticCache

    def make() -> Any:
        if kind == "static":
            return StaticCache(config=model.config, max_cache_len=length, offloading=offloading)
        if own and not recording and not offloading:
            return None
        if not model.family.conv:
            from transformers.models.minimax.modeling_minimax import MiniMaxCache

            return MiniMaxCache()
        cache = DynamicCache(config=model.config, offloading=offloading)
        if recording:
            cache.activate_past_recording()
        return cache

    return make


def mask_after_first(feed: do.Feed) -> Any:
    """Return the mask of a forward behind the first, for a model that takes it as it is: None, as
    `prepare_inputs_for_generation` passes, or the mask of the input's own columns if there is padding in them."""
    own = [row[feed.start :] for row in feed.mask]
    return None if all(map(all, own)) else torch.tensor(own)


def _worst(name: str, before: int, expected: Any, found: Any) -> RealRow:
    """Return the position of a row whose log-probabilities differ most from the expected ones."""
    distance = np.nan_to_num(np.abs(found - expected).max(axis=1), nan=np.inf)
    worst = int(distance.argmax())
    return RealRow(name, before + worst, found[worst], expected[worst], True)


def _logprobs(logits: torch.Tensor) -> Any:
    return logits.float().log_softmax(-1).numpy()
