"""Inputs beyond token ids: images, LoRA adapters and cache salts, as SGLang's requests have them.

An image is a `MultimodalDataItem` with a hash: SGLang writes numbers that follow from the hash in place of its
placeholders, and so into the keys of the radix tree. An adapter and a salt are part of a key's namespace. The layers
see what the batch has: SGLang embeds its tokens, with a stand-in as vision encoder; the adapter is that of the row's
request.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from ...reference.tokens import IMAGE_TOKENS, PLACEHOLDER, VOCABULARY, Image, Truth, key_of
from ..base.protocol import EngineError

TENANT = "tenant."
"""A key that all requests of a trace bring, so that it tells no two of them apart."""
NUMBERS = 4
"""Numbers that stand for an image, one position after the other (`_compute_pad_values`)."""


CACHE_BYTES = 3 * IMAGE_TOKENS * 8
"""Size of the cache of what was encoded (`SGLANG_VLM_CACHE_SIZE_MB`): three images, so that some are encoded again."""
NONE = 0
"""A token that is not part of an image."""


class TokenContents:
    """In the place of the table of embeddings: a token's content is its id."""

    num_embeddings = VOCABULARY

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return contents [tokens, 1]."""
        return tokens[:, None]


def encode(items: Sequence[Any]) -> torch.Tensor:
    """Return the contents [tokens, 1] of images one after the other, in the place of a model's vision encoder."""
    contents = []
    for item in items:
        if item.feature is None:
            raise EngineError("an image is encoded whose pixels are no longer there")
        contents += item.feature.contents(0)
    return torch.tensor(contents)[:, None]


class Inputs:
    """The images that requests of one engine have had."""

    def __init__(self) -> None:
        self._images: dict[int, tuple[int, Image]] = {}
        """By the numbers that stand for them, with the place of each in the numbers of its image."""

    def attach(self, request: Any, truth: Truth, tokens: Sequence[int]) -> None:
        """Give a request that sent `tokens` the images among them, as `Scheduler.handle_generate_request` does."""
        first = truth.prompt_length - len(tokens)
        shown = [image._replace(start=image.start - first, stop=image.stop - first) for image in truth.images]
        images = [image for image in shown if image.start >= 0]
        if not images:
            return
        from sglang.srt.managers.mm_schedule import init_mm_embedding_cache
        from sglang.srt.managers.schedule_batch import (
            Modality,
            MultimodalDataItem,
            MultimodalInputs,
            MultimodalProcessorOutput,
        )
        from sglang.srt.managers.scheduler import Scheduler
        from sglang.srt.session.session_controller import SessionController

        if not self._images:
            init_mm_embedding_cache(CACHE_BYTES)
        items = []
        for image in images:
            whole = Image(0, image.stop - image.start, image.name)
            place = (image.start, image.stop - 1)
            item = MultimodalDataItem(modality=Modality.IMAGE, offsets=[place], feature=whole)
            item.set_hash(zlib.crc32(image.name.encode()))
            items.append(item)
            self.name(whole, item.padding_values())
        padded = MultimodalProcessorOutput.build_padded_input_ids(list(tokens), items)
        media = MultimodalInputs(mm_items=items, padded_input_ids=padded)
        received = SimpleNamespace(input_ids=list(tokens))
        SessionController.adjust_mm_offsets(received, request, media)
        Scheduler._try_apply_padded_mm_input_ids(received, request, media)
        request.extend_image_inputs(media)

    def name(self, image: Image, numbers: Sequence[int]) -> None:
        """Note the numbers that stand for an image, one position after the other, again and again."""
        self._images |= {number: (place, image) for place, number in enumerate(numbers)}

    def tokens(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """Return tokens as the client sent them."""
        return tuple([PLACEHOLDER if token in self._images else token for token in tokens])

    def embedded(self, batch: Any, tokens: Sequence[int]) -> list[int]:
        """Return the content of the prompt tokens of an extend batch, without keys, as SGLang's own embedding makes it.

        It chooses the images to encode, keeps what is encoded in a cache, and takes the part that a chunk shows
        (`prepare_mm_inputs`). Tokens of decoding rows are unknown at launch and never part of an image.
        """
        from sglang.srt.managers import mm_utils
        from sglang.srt.managers.schedule_batch import Modality

        shown = [index for index, media in enumerate(batch.multimodal_inputs) if media is not None]
        whole = [*tokens, *[NONE] * (sum(batch.extend_lens) - len(tokens))]
        embeds, _ = mm_utils.embed_mm_inputs(
            mm_inputs_list=[batch.multimodal_inputs[index] for index in shown],
            extend_prefix_lens=[int(batch.prefix_lens[index]) for index in shown],
            extend_seq_lens=[batch.extend_lens[index] for index in shown],
            input_ids=torch.tensor(whole),
            input_embedding=TokenContents(),
            data_embedding_func_mapping={Modality.IMAGE: encode},
        )
        contents: list[int] = embeds.flatten().tolist()
        return contents

    def walk(self, tokens: Sequence[int], key: int, passed: int) -> tuple[tuple[int, ...], int]:
        """Return the content of the tokens of a tree's node, and how much of an image they end with.

        `passed` positions of an image come right before them.
        """
        if not self._images and not key:
            return tuple(tokens), 0
        found = []
        for token in tokens:
            if token not in self._images:
                passed = 0
                found.append(token + key)
                continue
            place, image = self._images[token]
            if passed >= image.stop or passed % NUMBERS != place:
                passed = 0
            found.append(image.contents(key)[passed])
            passed += 1
        return tuple(found), passed


def keys_of(truth: Truth, has_tenant: bool) -> dict[str, str]:
    """Return the adapter and the salt of a request, and the key of its tenant if it brings one; "" for none."""
    return {"lora_id": truth.adapter, "cache_salt": truth.salt, "extra_key": TENANT * has_tenant}


def namespace(key: Any) -> int:
    """Return what the namespace of a tree's key adds to the content of its tokens. A tenant's key adds nothing."""
    extra = (getattr(key, "extra_key", None) or "").removeprefix(TENANT)
    return key_of(extra) or key_of(getattr(key, "cache_salt", None) or "")


def applied(request: Any) -> int:
    """Return what a request's own adapter and salt add, whatever its key says: a forward applies these."""
    return key_of(getattr(request, "lora_id", None) or "") or key_of(getattr(request, "cache_salt", None) or "")
