"""Combinations of a trace's options. Importable without vLLM: reproducers and refusals use it too."""

from __future__ import annotations

from typing import NamedTuple

from ..base.trace import Config

DRAFT_LAYER = "draft.layers.100.mixer"
"""Name of the drafter's own layer. vLLM orders caches by the number in it."""


class StateParts(NamedTuple):
    """The parts of a state layer's state.

    recurrent  a recurrent (temporal) state
    conv       the window of a convolution
    """

    recurrent: bool = True
    conv: bool = True


def state_parts(config: Config) -> StateParts:
    """Return the parts of the state of the option `mixer`: a short convolution has no recurrent state, plain linear
    attention has no convolution."""
    mixer = config.options.get("mixer", "gdn")
    return StateParts(mixer != "short_conv", mixer != "linear")


def is_v2(config: Config) -> bool:
    """Return True if the V2 model runner runs, vLLM's default."""
    return config.options.get("runner", "v2") == "v2"


def has_graphs(config: Config) -> bool:
    """Return True if decode batches are padded to captured sizes and replayed."""
    return config.options.get("graphs", "none") in ("decode", "piecewise") and bool(config.graph_sizes)


def has_peer(config: Config) -> bool:
    """Return True if the engine is one of two data-parallel ranks that vLLM's own code coordinates."""
    return config.options.get("data_parallel", "1") == "2"


def drafts_on_device(config: Config) -> bool:
    """Return True if the V1 runner schedules ahead of its drafts, which therefore stay on the device."""
    return not is_v2(config) and config.async_depth > 0 and config.num_speculative_tokens > 0


def multiplies_masked(config: Config) -> bool:
    """Return True if attention multiplies masked values by 0, so that a NaN in a slot that no token uses spreads.

    FlashAttention and FlashInfer do: they load pages whole. vLLM's Triton kernel loads only slots below the context's
    length (`tl.load(..., mask=tile_mask, other=0.0)`).
    """
    return config.options.get("attention", "flash") == "flash"
