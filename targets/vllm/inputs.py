"""What a request's token ids stand for: images, LoRA adapters, and stand-ins for the encoder and for LoRA.

A document with a kind (`reference.tokens.KINDS`) becomes what a client of vLLM would send: an image with its hash and
its placeholder tokens, a LoRA request, a cache salt. vLLM schedules the encoder, keeps its own account of encoder
outputs, limits the adapters of a step and moves their rows; here an encoder output is a name, and an adapter a number
that is added to the content of a token. The layers compute with what the worker's own metadata says: a token of an
image whose output the worker does not hold, or computed with the adapter of another row, has another content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from ...reference.tokens import IMAGE_TOKENS, PLACEHOLDER, Truth, key_of
from ..base.trace import Config
from . import compat
from .options import has_adapters

MISSING = 1
"""Added to the content of a token of an image whose encoder output the worker does not hold."""
ENCODER_TOKENS = 2 * IMAGE_TOKENS - 2
"""Tokens whose encoder outputs are computed in one step, and kept: those of at least one image."""
MAX_ADAPTERS = 1
"""Adapters that may be in one step: fewer than requests have, so that vLLM's limit matters."""


class Inputs:
    """The inputs of the requests of one engine, by their truths.

    encoded  names of the images whose encoder outputs the worker holds
    """

    def __init__(self, config: Config, truths: Mapping[str, Truth]) -> None:
        self.truths = truths
        self.encoded: set[str] = set()
        self._is_adapting = has_adapters(config)
        self._adapters: dict[int, str] = {}
        """Number of an adapter -> its name."""
        self._active: Sequence[int] | None = None
        """Numbers of the adapters of a step's tokens, None for a step that has set none."""

    def arguments(self, truth: Truth, first: int) -> dict[str, Any]:
        """Return the arguments of a `Request` whose tokens are those of `truth` from position `first` on."""
        found: dict[str, Any] = {}
        if images := [image for image in truth.images if image.start >= first]:
            found["mm_features"] = [compat.image(one.name, one.start - first, one.stop - one.start) for one in images]
        if truth.adapter:
            found["lora_request"] = compat.adapter(truth.adapter, self._number(truth.adapter))
        if truth.salt:
            found["cache_salt"] = truth.salt
        return found

    def _number(self, adapter: str) -> int:
        names = list(self._adapters.values())
        if adapter not in names:
            self._adapters[len(names) + 1] = adapter
            return len(names) + 1
        return names.index(adapter) + 1

    def prepare(self, scheduler: Any, runner: Any) -> None:
        """Give the scheduler small budgets of encoder outputs and adapters, and the runner a manager of adapters."""
        scheduler.max_num_encoder_input_tokens = ENCODER_TOKENS
        scheduler.encoder_cache_manager = type(scheduler.encoder_cache_manager)(cache_size=ENCODER_TOKENS)
        if self._is_adapting:
            scheduler.lora_config = SimpleNamespace(max_loras=MAX_ADAPTERS)
            runner.lora_manager = self

    @contextmanager
    def running(self, runner: Any, plan: Any) -> Iterator[None]:
        """Run one step of the worker: the encoder first, adapters as the runner sets them."""
        self.encoded.difference_update(plan.free_encoder_mm_hashes)
        for name, indices in plan.scheduled_encoder_inputs.items():
            self.encoded.update(self.truths[name].images[index].name for index in indices)
        self._active = None
        if not self._is_adapting:
            yield
            return
        # Only here: a dummy run would load adapters.
        with compat.replaced((runner, "lora_config", SimpleNamespace(max_loras=MAX_ADAPTERS))):
            yield

    def set_active_adapters(self, requests: Any, mapping: Any) -> None:
        """Take over the adapters of a step's tokens, as vLLM's manager does."""
        loaded = {request.lora_int_id for request in requests}
        self._active = [number if number in loaded else 0 for number in mapping.index_mapping]

    def contents(
        self, names: Sequence[str | None], starts: Sequence[int], positions: Sequence[int], ids: Sequence[int]
    ) -> Sequence[int]:
        """Return the content of a batch's tokens: those of row i, from `starts[i]` on, are at `positions[i]` and the
        following of request `names[i]`."""
        found: list[int] | None = None
        for row, name in enumerate(names):
            truth = self.truths.get(name or "")
            if truth is None or (truth.is_plain and not self._active):
                continue
            span = slice(starts[row], starts[row + 1])
            tokens = ids[span]
            if not tokens:
                continue
            own = truth.contents(positions[row], tokens, self._key(truth, span.start))
            for image in truth.images:
                if image.name not in self.encoded:
                    for index in range(image.start - positions[row], image.stop - positions[row]):
                        if 0 <= index < len(own) and tokens[index] == PLACEHOLDER:
                            own[index] += MISSING
            found = list(ids) if found is None else found
            found[span] = own
        return ids if found is None else found

    def _key(self, truth: Truth, token: int) -> int:
        """Return the key of a row whose first token is at `token` in the batch: that of the adapter that the worker has
        set for it."""
        if self._active is None:
            return key_of(truth.salt) if self._is_adapting else truth.key
        number = self._active[token] if token < len(self._active) else 0
        return key_of(self._adapters.get(number, "")) or key_of(truth.salt)
