"""A trace's options for vLLM, parsed, and combinations of them. Importable without vLLM."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import Struct

from ..base.trace import Config, TraceError

DRAFT_LAYER = "draft.layers.100.mixer"
"""Name of the drafter's own layer. vLLM orders caches by the number in it."""
HEAD = "mtp."
"""How the names of a real MTP head's layers begin."""

DROPPED_TOKENS = 1
"""Tokens at the end of a session's turn that vLLM drops when the next one begins: the one that was sampled last."""

SYNC_LOAD_TOKENS = 24
"""Tokens that connector=sync loads before the forward of one step, at least: a few blocks, for loads of both kinds."""
SYNC_LOAD_BLOCKS = 2
"""The same in blocks of the smallest group: at least these."""

DEEPEST = 2
"""Most steps in flight: of two pipeline stages with asynchronous scheduling, three batches with the one that is
planned (`VllmConfig.max_concurrent_batches`)."""

PREFILL_INTERVAL = 3
"""Steps from one with prefills to the next, with prefills=spaced."""


class Options(Struct, frozen=True):
    """The options of a trace. `capabilities` lists their values; the defaults are those of a trace that
    leaves them out.

    dtype   of weights and activations: of real models only
    jitter  delays on the streams of a GPU: of real models only
    ranks   data-parallel ranks in processes of their own: of real models only; elsewhere the other one is a stand-in
    """

    runner: str = "v2"
    retention: str = "dense"
    hashing: str = "plain"
    graphs: str = "none"
    mixer: str = "gdn"
    dtype: str = "float32"
    attention: str = "flash"
    metadata: str = "each"
    data_parallel: int = 1
    prefix_match_unit: int = 0
    connector: str = "none"
    load_failure: str = "recompute"
    eviction: str = "lru"
    offload: str = "prompts"
    tier: str = "none"
    lazy_offload: str = "no"
    kv_offload_backend: str = "cpu"
    reports: str = "none"
    reset: str = "direct"
    prefills: str = "eager"
    pipeline: str = "none"
    admission: str = "prompt"
    replay: int = 0
    conv_layout: str = "SD"
    sampling: str = "greedy"
    inputs: str = "tokens"
    jitter: str = "no"
    ranks: int = 1


PLAIN = Options()


def options_of(config: Config) -> Options:
    """Return the options of a configuration. Raises TraceError for a word where a number belongs."""
    try:
        return msgspec.convert(config.options, Options, strict=False)
    except msgspec.ValidationError as error:
        raise TraceError(f"configuration: options: {error}") from error


SERVING = {
    "reports": ("none", "all"),
    "reset": ("direct", "direct", "paused"),
    "prefills": ("eager", "eager", "spaced"),
    "pipeline": ("none", "none", "sync", "async"),
}
"""How requests are served, as options with their values, each as often as it is drawn."""


class StateParts(NamedTuple):
    """The parts of a state layer's state.

    recurrent  a recurrent (temporal) state
    conv       the window of a convolution
    """

    recurrent: bool = True
    conv: bool = True


def parts_of(mixer: str) -> StateParts:
    """Return the parts of the state of a kind of layer: a short convolution has no recurrent state, plain linear
    attention has no convolution."""
    return StateParts(mixer != "short_conv", mixer != "linear")


def state_parts(config: Config) -> StateParts:
    """Return the parts of the state of a trace's state layers."""
    return parts_of(options_of(config).mixer)


def is_v2(config: Config) -> bool:
    """Return True if the V2 model runner runs, vLLM's default."""
    return options_of(config).runner == "v2"


def ring_entries(config: Config) -> int:
    """Return the inputs that the ring of ReplaySSM holds, 0 without it.

    The option has an effect only where vLLM takes it: Mamba 2 on the V1 runner, without drafts and KV connectors. In
    mode all, which vLLM does not refuse, the kernel would write to the first of the two columns.
    """
    options = options_of(config)
    takes = options.runner != "v2" and options.mixer in ("mamba2", "nemotron_h") and options.connector == "none"
    if not takes or config.num_speculative_tokens or config.mamba_cache_mode == "all":
        return 0
    return options.replay


def asks_for_lookahead(config: Config) -> bool:
    """Return True if the keys of blocks may name the token behind them: vLLM's default, but not with KV connectors. It
    has an effect with EAGLE's rules and a prefix cache."""
    options = options_of(config)
    return options.hashing == "lookahead" and options.connector == "none" and config.enable_prefix_caching


def has_adapters(config: Config) -> bool:
    """Return True if requests may have LoRA adapters."""
    return options_of(config).inputs == "adapters"


def has_images(config: Config) -> bool:
    """Return True if prompts may have images."""
    return options_of(config).inputs == "images"


def varies_sampling(config: Config) -> bool:
    """Return True if requests have sampling parameters of their own."""
    return options_of(config).sampling == "varied"


def windows_are_last(config: Config) -> bool:
    """Return True if the inputs of a convolution lie next to each other for each channel (vLLM's layout DS), False if
    the channels of each input do (SD)."""
    return options_of(config).conv_layout == "DS"


def reports_all(config: Config) -> bool:
    """Return True if the engine reports statistics and KV events."""
    return options_of(config).reports == "all"


def sync_load_tokens(config: Config) -> int:
    """Return the tokens that connector=sync loads before the forward of one step."""
    return max(SYNC_LOAD_TOKENS, SYNC_LOAD_BLOCKS * min(group.block_size for group in config.groups))


def host_chunks(config: Config) -> int:
    """Return the chunks of the tier of vLLM's own connector: so few that some are evicted, most if files are behind
    it."""
    return len(config.groups) + config.num_blocks // (8 if has_files(config) else 2)


def offloads(config: Config) -> bool:
    """Return True if the connector is vLLM's own OffloadingConnector."""
    return options_of(config).connector == "offloading"


def offloads_simply(config: Config) -> bool:
    """Return True if the connector is vLLM's own SimpleCPUOffloadConnector."""
    return options_of(config).connector == "simple_cpu"


def has_disk(config: Config) -> bool:
    """Return True if that connector keeps its blocks in a file instead of the host's memory."""
    return offloads_simply(config) and options_of(config).kv_offload_backend == "disk"


def has_files(config: Config) -> bool:
    """Return True if files stand behind the host's tier of vLLM's own connector."""
    return offloads(config) and options_of(config).tier != "none"


def stages(config: Config) -> int:
    """Return the number of pipeline stages that the scheduler plans for."""
    return 1 if options_of(config).pipeline == "none" else 2


def schedules_asynchronously(config: Config) -> bool:
    """Return True if a request's next step is planned before its last one has run. Pipeline stages can also be filled
    with the steps of other requests."""
    return config.async_depth > 0 and options_of(config).pipeline != "sync"


def is_jittered(config: Config) -> bool:
    """Return True if the streams of a GPU are delayed at random."""
    return options_of(config).jitter == "yes"


def has_graphs(config: Config) -> bool:
    """Return True if decode batches are padded to captured sizes and replayed."""
    return options_of(config).graphs in ("decode", "piecewise") and bool(config.graph_sizes)


def has_peer(config: Config) -> bool:
    """Return True if the engine is one of two or more data-parallel ranks that vLLM's own code coordinates."""
    return options_of(config).data_parallel == 2 or rank_count(config) > 1


def rank_count(config: Config) -> int:
    """Return the number of data-parallel ranks in processes of their own: 1 for one alone, or beside a stand-in."""
    return options_of(config).ranks


def drafts_on_device(config: Config) -> bool:
    """Return True if the V1 runner schedules ahead of its drafts, which therefore stay on the device."""
    return not is_v2(config) and config.async_depth > 0 and config.num_speculative_tokens > 0


def multiplies_masked(config: Config) -> bool:
    """Return True if attention multiplies masked values by 0, so that a NaN in a slot that no token uses spreads.

    FlashAttention and FlashInfer do: they load pages whole. vLLM's Triton kernel loads only slots below the context's
    length (`tl.load(..., mask=tile_mask, other=0.0)`).
    """
    return options_of(config).attention == "flash"
