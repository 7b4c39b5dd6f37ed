"""Combinations of a trace's options. Importable without vLLM: reproducers and refusals use it too."""

from __future__ import annotations

from typing import NamedTuple

from ..base.trace import Config

DRAFT_LAYER = "draft.layers.100.mixer"
"""Name of the drafter's own layer. vLLM orders caches by the number in it."""

DROPPED_TOKENS = 1
"""Tokens at the end of a session's turn that vLLM drops when the next one begins: the one that was sampled last."""

PREFILL_INTERVAL = 3
"""Steps from one with prefills to the next, with prefills=spaced."""
PLAIN_OPTIONS = {
    "reports": "none",
    "reset": "direct",
    "prefills": "eager",
    "pipeline": "none",
    "inputs": "tokens",
    "sampling": "greedy",
    "replay": "0",
    "conv_layout": "SD",
}


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


def ring_entries(config: Config) -> int:
    """Return the inputs that the ring of ReplaySSM holds, 0 without it.

    The option has an effect only where vLLM takes it: Mamba 2 on the V1 runner, without drafts and KV connectors. In
    mode all, which vLLM does not refuse, the kernel would write to the first of the two columns.
    """
    option = config.options.get
    takes = not is_v2(config) and option("mixer") == "mamba2" and option("connector", "none") == "none"
    if not takes or config.num_speculative_tokens or config.mamba_cache_mode == "all":
        return 0
    return int(option("replay", "0"))


def has_adapters(config: Config) -> bool:
    """Return True if requests may have LoRA adapters."""
    return config.options.get("inputs", "tokens") == "adapters"


def varies_sampling(config: Config) -> bool:
    """Return True if requests have sampling parameters of their own: on the V1 runner without drafts, whose acceptance
    depends on them."""
    return config.options.get("sampling", "greedy") == "varied" and not (is_v2(config) or config.num_speculative_tokens)


def windows_are_last(config: Config) -> bool:
    """Return True if the inputs of a convolution lie next to each other for each channel (vLLM's layout DS), False if
    the channels of each input do (SD)."""
    return config.options.get("conv_layout", "SD") == "DS"


def reports_all(config: Config) -> bool:
    """Return True if the engine reports statistics and KV events."""
    return config.options.get("reports", "none") == "all"


def stages(config: Config) -> int:
    """Return the number of pipeline stages that the scheduler plans for."""
    return 1 if config.options.get("pipeline", "none") == "none" else 2


def unscripted_option(config: Config) -> str:
    """Return "", or the first option that reproducers lack and that is not at its first value, with this value."""
    for name, plain in PLAIN_OPTIONS.items():
        value = config.options.get(name, plain)
        if value != plain:
            return f"{name}={value}"
    return ""


def schedules_asynchronously(config: Config) -> bool:
    """Return True if a request's next step is planned before its last one has run. Pipeline stages can also be filled
    with the steps of other requests."""
    return config.async_depth > 0 and config.options.get("pipeline", "none") != "sync"


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
