"""What a trace's options mean together. Needs no vLLM: scripts and refusals ask, too."""

from __future__ import annotations

from ..base.trace import Config


def is_v2(config: Config) -> bool:
    """Whether the V2 model runner runs, vLLM's default."""
    return config.options.get("runner", "v2") == "v2"


def has_graphs(config: Config) -> bool:
    """Whether decode batches are padded to captured sizes and replayed."""
    return config.options.get("graphs", "none") == "decode" and bool(config.graph_sizes)


def drafts_on_device(config: Config) -> bool:
    """Whether the V1 runner plans ahead of its drafts, which its drafter therefore keeps on the device."""
    return not is_v2(config) and config.async_depth > 0 and config.num_speculative_tokens > 0
