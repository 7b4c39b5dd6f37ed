"""Differences between releases of transformers, found by looking, not by version number. What is compared with the tags
is read in `tag_layers`.

Importable without transformers; `find` imports it.

    releases      state layers                                 runs
    5.14 to 5.23  one class, which keeps the convolution's     the tags and the real model
                  inputs and returns them with the new ones
    5.5 to 5.13   one class, but each family cuts, pads and    the real model alone
                  stores the inputs itself
    up to 5.4     a cache class for each family                nothing: `find` raises TargetError
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from msgspec import Struct

from ..base.protocol import TargetError


class Features(Struct, frozen=True):
    """Features of a release.

    tags     all families make the same calls on their state layers, so that shadow layers can make them
    records  a cache can record past states, to be cropped
    """

    tags: bool = True
    records: bool = True


def find() -> Features:
    """Return the features of the transformers that can be imported. TargetError if it is too old."""
    from transformers import DynamicCache, __version__, cache_utils, masking_utils

    layer = getattr(cache_utils, "LinearAttentionLayer", None)
    if layer is None:
        raise TargetError(
            f"transformers {__version__} has a cache class for each family instead of one for state layers: "
            "use 5.5 or later"
        )
    calls = "conv_kernel_size" in signature(layer.update_conv_state).parameters
    return Features(
        tags=calls and hasattr(masking_utils, "create_recurrent_attention_mask"),
        records=hasattr(DynamicCache, "activate_past_recording"),
    )


def states_of(cache: Any, index: int) -> tuple[Any, Any]:
    """Return the convolution inputs and the recurrent states of a layer, each None before its first token.

    Up to 5.19 the cache has no methods for them.
    """
    if hasattr(cache, "get_conv_state"):
        return cache.get_conv_state(index, state_idx=0), cache.get_recurrent_state(index, state_idx=0)
    layer = cache.layers[index]
    parts = (layer.has_previous_state, layer.conv_states, layer.recurrent_states)
    before, windows, states = map(part_of, parts)
    return (windows, states) if before else (None, None)


def part_of(parts: Any) -> Any:
    """Return the only part of a state layer; some releases do not keep it in a dictionary."""
    return parts[0] if isinstance(parts, dict) else parts
