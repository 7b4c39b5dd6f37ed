"""Inputs of requests beyond token ids: images, LoRA adapters and cache salts, with stand-ins for the encoder and,
beside shadow layers, for adapters.

A document with a kind (`reference.tokens.KINDS`) becomes what a client of vLLM would send: an image with its hash and
its placeholder tokens, a LoRA request, a cache salt. vLLM schedules the encoder, manages the encoder cache, limits the
adapters of a step and maps rows to adapters. Here an encoder output is a name, and an adapter is a number that is added
to the content of a token. The layers follow the worker's own metadata: a token of an image whose output the worker does
not hold, or that is computed with another row's adapter, gets different content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from ....reference.tokens import IMAGE_TOKENS, PLACEHOLDER, Truth, key_of
from ...base.trace import Config
from ..options import has_adapters, has_images, is_v2
from ..versions.wrapping import replaced

MISSING = 1
"""Offset of a token's content if the worker does not hold the encoder output of its image."""
ENCODER_TOKENS = 2 * IMAGE_TOKENS - 2
"""Encoder budget of a step, and size of the encoder cache, in tokens: any image fits, two of full size do not."""
MAX_ADAPTERS = 1
"""Value of `max_loras`: fewer adapters than requests use, so that vLLM's limit takes effect."""


def _image(name: str, offset: int, length: int, data: Any) -> Any:
    """Return an image of a request, at a position among its tokens. `data` is what an encoder gets."""
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    place = PlaceholderRange(offset=offset, length=length)
    return MultiModalFeatureSpec(data=data, modality="image", identifier=name, mm_position=place)


def _adapter(name: str, number: int) -> Any:
    """Return the LoRA adapter of a request."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(lora_name=name, lora_int_id=number, lora_path=f"/{name}")


def capture_with_adapters(vllm_config: Any, runner: Any) -> None:
    """Let vLLM choose graphs for batches with and without adapters, before it allocates the caches."""
    from vllm.config import LoRAConfig

    vllm_config.lora_config = LoRAConfig(max_loras=MAX_ADAPTERS)
    if hasattr(runner, "lora_capture_cases"):  # V2; V1 reads the configuration
        from vllm.v1.worker.gpu.lora_utils import get_lora_capture_cases

        runner.lora_capture_cases = get_lora_capture_cases(vllm_config.lora_config, vllm_config.compilation_config)


def _no_pixels(name: str, tokens: int) -> Any:
    """Return what a worker without an encoder gets of an image: a payload that holds nothing."""
    from vllm.multimodal.inputs import MultiModalKwargsItem

    del name, tokens
    return MultiModalKwargsItem({})


def _keep_images(runner: Any) -> None:
    """Let V2 keep the images of its requests although its model has no encoder, if vLLM keeps them up to date."""
    from vllm.v1.core.sched.output import SchedulerOutput

    if runner.encoder_cache is None and "encoder_input_updates" in SchedulerOutput.__dataclass_fields__:
        from vllm.v1.worker.gpu.mm.encoder_cache import EncoderCache

        runner.encoder_cache = EncoderCache()


class Inputs:
    """Inputs of one engine's requests.

    truths   request -> its tokens and contents
    encoded  names of the images whose encoder outputs the worker holds
    """

    def __init__(self, config: Config, truths: Mapping[str, Truth]) -> None:
        self.truths = truths
        self.encoded: set[str] = set()
        self.picture: Callable[[str, int], Any] = _no_pixels
        """Returns what an encoder gets of an image with so many tokens."""
        self._runner: Any = None
        self._encoder_cache: Any = None
        """The scheduler's manager of encoder outputs."""
        self._scheduled: Mapping[str, Sequence[int]] = {}
        """Images that the worker encodes in the step, once it has the step's requests: request -> their numbers."""
        self._is_v2 = is_v2(config)
        self._has_images = has_images(config)
        self._is_adapting = has_adapters(config)
        self._adapters: dict[int, str] = {}
        """Adapter number -> name."""
        self._active: Sequence[int] | None = None
        """Adapter number of each token of the step, None if the step has set no adapters."""

    def arguments(self, truth: Truth, first: int) -> dict[str, Any]:
        """Return keyword arguments of the `Request` that sends the tokens of `truth` from position `first` on."""
        found: dict[str, Any] = {}
        if images := [image for image in truth.images if image.start >= first]:
            found["mm_features"] = [
                _image(one.name, one.start - first, one.stop - one.start, self.picture(one.name, one.stop - one.start))
                for one in images
            ]
        if truth.adapter:
            found["lora_request"] = self.adapter(truth.adapter)
        if truth.salt:
            found["cache_salt"] = truth.salt
        return found

    def adapter(self, name: str) -> Any:
        """Return the LoRA adapter with a name."""
        names = list(self._adapters.values())
        if name not in names:
            names.append(name)
            self._adapters[len(names)] = name
        return _adapter(name, names.index(name) + 1)

    def prepare(self, scheduler: Any, runner: Any) -> None:
        """Limit the scheduler's encoder budget and adapters, and become the runner's LoRA manager, or see what the one
        sets that the runner has."""
        scheduler.max_num_encoder_input_tokens = ENCODER_TOKENS
        scheduler.encoder_cache_manager = type(scheduler.encoder_cache_manager)(cache_size=ENCODER_TOKENS)
        self._encoder_cache = scheduler.encoder_cache_manager
        self._runner = runner
        if self._has_images and self._is_v2:
            _keep_images(runner)
        if self._is_adapting and runner.lora_config:
            manager = runner.lora_manager
            apply = manager.set_active_adapters

            def set_active_adapters(requests: Any, mapping: Any) -> None:
                self.set_active_adapters(requests, mapping)
                apply(requests, mapping)

            manager.set_active_adapters = set_active_adapters
        elif self._is_adapting:
            scheduler.lora_config = SimpleNamespace(max_loras=MAX_ADAPTERS)
            runner.lora_manager = self

    @contextmanager
    def running(self, runner: Any, plan: Any) -> Iterator[None]:
        """Surround one step of the worker: update the encoder outputs it holds, and let the runner set adapters."""
        self.encoded.difference_update(plan.free_encoder_mm_hashes)
        self._scheduled = plan.scheduled_encoder_inputs
        self._active = None
        if not self._is_adapting or runner.lora_config:
            yield
            return
        # For this step only: a dummy run would load adapters.
        with replaced((runner, "lora_config", SimpleNamespace(max_loras=MAX_ADAPTERS))):
            yield

    def _note_encoded(self) -> None:
        """Take note of what the worker encodes in this step: it skips an image of which it has no pixels."""
        for name, indices in self._scheduled.items():
            images, features = self.truths[name].images, self._features(name)
            has_pixels = [index for index in indices if features is None or features[index].data is not None]
            self.encoded.update(images[index].name for index in has_pixels)
        self._scheduled = {}

    def _features(self, name: str) -> Any:
        """Return the worker's own images of a request, None if this V2 keeps none beside stand-in layers."""
        if not self._is_v2:
            return self._runner.requests[name].mm_features
        cache = self._runner.encoder_cache
        return None if cache is None else cache.mm_features[name]

    def miscounted(self) -> int:
        """Return by how many tokens the scheduler's counts differ from the encoder outputs that it has a place for: of
        those that are free, and of those that it could free, since no request needs them."""
        manager, sizes = self._encoder_cache, self._encoder_cache.num_embeds_by_hash
        needed = sum(sizes[name] for name, requests in manager.cached.items() if requests)
        held = sum(sizes.values())
        free, freeable = manager.cache_size - held, manager.cache_size - needed
        return int(abs(manager.num_free_slots - free) + abs(manager.num_freeable_slots - freeable))

    def drop_adapters(self) -> None:
        """Apply no adapter in this step: it replays a graph without the kernels of adapters."""
        self._active = None

    def set_active_adapters(self, requests: Any, mapping: Any) -> None:
        """Note the adapter of each token of the step. The runner calls it in place of its LoRA manager's method."""
        loaded = {request.lora_int_id for request in requests}
        self._active = [number if number in loaded else 0 for number in mapping.index_mapping]

    def contents(
        self, names: Sequence[str | None], starts: Sequence[int], positions: Sequence[int], ids: Sequence[int]
    ) -> Sequence[int]:
        """Return the content of each token in `ids`.

        Row i is `ids[starts[i] : starts[i + 1]]`: tokens of request `names[i]` from position `positions[i]` on.
        """
        self._note_encoded()
        found: list[int] | None = None
        for row, name in enumerate(names):
            truth = self.truths.get(name or "")
            if truth is None or (truth.is_plain and not self._active):
                continue
            span = slice(starts[row], starts[row + 1])
            tokens = ids[span]
            if not tokens:
                continue
            own = self._shown(truth, positions[row], tokens, self._key(truth, span.start))
            found = list(ids) if found is None else found
            found[span] = own
        return ids if found is None else found

    def drafted(self, name: str | None, position: int, ids: Sequence[int]) -> Sequence[int]:
        """Return the content of a request's tokens from a position on for the drafter's own layer, to which no adapter
        is applied: that of the request's is in the hidden states that it gets.

        A chunk may end before an image that is not encoded yet: the drafter, one token ahead, then uses the
        placeholder's embedding (`gather_mm_embeddings`, `draft_lookahead`). That costs acceptance, not output.
        """
        truth = self.truths.get(name or "")
        return ids if truth is None or truth.is_plain else self._shown(truth, position, ids, truth.key, 1)

    def _shown(self, truth: Truth, first: int, tokens: Sequence[int], key: int, ahead: int = 0) -> list[int]:
        """Return the content of tokens from position `first` on as the worker computes it: with its encoder outputs. It
        may lack that of an image which begins with the last `ahead` tokens."""
        own = truth.contents(first, tokens, key)
        for image in truth.images:
            if image.name not in self.encoded and image.start + ahead < first + len(tokens):
                for index in range(image.start - first, image.stop - first):
                    if 0 <= index < len(own) and tokens[index] == PLACEHOLDER:
                        own[index] += MISSING
        return own

    def _key(self, truth: Truth, token: int) -> int:
        """Return the key of the row that begins at index `token` of the batch: that of the adapter which the worker has
        set there, else that of the request's salt."""
        if self._active is None:
            return key_of(truth.salt) if self._is_adapting else truth.key
        number = self._active[token] if token < len(self._active) else 0
        return key_of(self._adapters.get(number, "")) or key_of(truth.salt)
