"""The vLLM target's capabilities. Importable without vLLM: the rest is imported when an engine is opened."""

from __future__ import annotations

from collections import Counter

from ..base.protocol import Capabilities, Target, TargetFactory, open_supported
from ..base.releases import cannot_import
from ..base.trace import Config, Group
from .options import PLAIN, drafts_on_device, has_peer, is_v2, options_of, ring_entries, varies_sampling
from .release import Release, installed

_DEFAULTS = {"runner": PLAIN.runner, "mixer": PLAIN.mixer}
"""Options whose default a release may lack; the others fall back to the first of its values."""
_EVENTS = frozenset({"arrive", "step", "preempt", "abort", "dummy_run", "reset_prefix_cache", "evict"})
_CONNECTORS = ("none", "none", "store", "transfer")
_LIMITED_CONNECTORS = ("none", "none", "none", "store", "transfer", "sync")
_DOCUMENTS = {"images": ("a", "image.b", "image.c"), "adapters": ("a", "adapter.b", "adapter.c", "salt.d")}
_SERVING = {
    "reports": ("none", "all"),
    "reset": ("direct", "direct", "paused"),
    "prefills": ("eager", "eager", "spaced"),
    "pipeline": ("none", "none", "sync", "async"),
}
_LOADS = frozenset({"stores", "async-loads", "failing-loads"})
_CONNECTED = {"store": _LOADS, "transfer": _LOADS | {"held-for-transfer"}, "sync": _LOADS | {"sync-loads"}}
"""Connector -> features that only some connectors have."""
_PARTIAL_HITS = {"prefix_match_unit": {unit: frozenset({"partial-hits"}) for unit in ("2", "4")}}
_OBSERVES = frozenset({"pool", "labels", "tables", "accesses", "content", "device_order", "estimates", "leftovers"})


def capabilities_of(release: Release) -> Capabilities:
    """Return what the target can do with a release."""
    connectors, inputs = release.connectors, release.inputs
    names = _LIMITED_CONNECTORS if release.sync_loads else _CONNECTORS
    # `supports`: neither a drafter's own graphs nor any with chunked-local attention.
    groups_without_graphs = frozenset(
        ({"draft-group"} if release.draft_groups else set()) | ({"attention-chunks"} if release.local_groups else set())
    )
    connected = {name: _CONNECTED[name] for name in names if name != "none" and connectors}
    return Capabilities(
        events=_EVENTS | ({"external_load"} if connectors else set()) | ({"resume"} if release.sessions else set()),
        modes=release.modes,
        observes=_OBSERVES,
        # The platform gives both kinds the same block size in align mode; the planner then enlarges attention
        # blocks where another group has larger pages.
        block_sizes=((4, 4), (8, 8), (16, 16), *(((8, 16), (4, 8)) if release.partial_hits else ())),
        # Groups are as large as the smaller bucket of equal layers: these divide evenly.
        group_counts=((1, 1), (2, 1), (3, 1), (1, 2)),
        layers_per_group=(1, 2),
        max_speculative_tokens=4,
        speculative_modes=release.speculative_modes,
        variable_drafts=True,
        max_async_depth=1,
        eagle_block_drop=True,
        windows=(5, 8, 13) if release.local_groups else (),
        attention_chunks=(1, 2, 3) if release.local_groups else (),
        draft_block_sizes=(4, 8, 16) if release.draft_groups else (),
        policies=("fcfs", "priority"),
        conv_widths=(4,),
        # retention: the state of every boundary is published, or of those that vLLM chooses by default, or also
        # those where prompts fork.
        # graphs: decode batches are padded to the trace's graph sizes and replayed, or everything is eager.
        # connector, load_failure: `kv_connector`; vLLM's policy for loads that fail.
        # reports: statistics and KV events, of which a subscriber must learn what is cached (`cache_events`).
        # reset: between two steps, or once the scheduler was paused and the steps in flight have run.
        # prefills: as the budget allows, or every third step only, while others decode.
        # admission: a prompt starts if the pool has room for all of it, or for its first chunk.
        # pipeline: the steps in flight are those of two pipeline stages, with or without asynchronous scheduling.
        # data_parallel: rows of other ranks pad a batch by our rule, or by vLLM's coordination of two ranks.
        # inputs: prompts are token ids alone, or have images or LoRA adapters and salts (`inputs`).
        # sampling: greedy without parameters, or with parameters of each request's own (`sampling`).
        # replay: entries of the ring with which Mamba 2 decodes replay inputs (ReplaySSM) where vLLM takes it.
        # conv_layout: of a window the channels of each input lie together (SD), or the inputs of each channel (DS).
        # attention: kernels that load pages whole and multiply masked values by 0, or those that do not load them.
        options={
            "runner": release.runners,
            "retention": ("dense", "default", *(("junctions",) if release.junctions else ())),
            "graphs": ("decode", "none") if release.graphs else ("none",),
            "mixer": release.mixers,
            "attention": ("flash", "triton"),
            **({"metadata": ("each", "each", "shared", "shared")} if release.shared_metadata else {}),
            **({"data_parallel": ("1", "2")} if release.coordinates else {}),
            **({"prefix_match_unit": ("0", "0", "0", "2", "4")} if release.partial_hits else {}),
            **({"connector": names} if connectors else {}),
            **({"load_failure": ("recompute", "fail")} if connectors else {}),
            **(_SERVING if release.serving_options else {}),
            **({"admission": ("prompt", "chunk")} if release.admits_chunks else {}),
            **({"replay": ("0", "0", "3", "6")} if release.replays else {}),
            **({"conv_layout": ("SD", "SD", "DS")} if release.conv_layouts else {}),
            **({"sampling": ("greedy", "greedy", "varied")} if release.sampling else {}),
            **({"inputs": ("tokens", "tokens", "tokens", "tokens", "images", "adapters")} if inputs else {}),
        },
        features=frozenset(
            {"block-tables", "padding"}
            | ({"partial-hits"} if release.partial_hits else set())
            | frozenset().union(*connected.values())
            | ({"images", "adapters"} if inputs else set())
        ),
        documents={"inputs": _DOCUMENTS} if inputs else {},
        features_with={
            **({"connector": connected, "load_failure": {"fail": frozenset({"failing-loads"})}} if connectors else {}),
            **(_PARTIAL_HITS if release.partial_hits else {}),
            **({"runner": {"v2": frozenset({"draft-group"})}} if release.draft_groups else {}),
            "graphs": {"none": groups_without_graphs},
        },
        engine=("vllm",),
        lacks=frozenset() if release.zeroes else frozenset({"zeroing"}),
    )


class VllmFactory:
    """Opens engines of the vLLM that can be imported in this process: of `release`."""

    def __init__(self, name: str, release: Release) -> None:
        self.name = name
        self.release = release
        self.capabilities = capabilities_of(release)

    def supports(self, config: Config) -> str:
        """Return "", or the reason why a configuration is not supported; the workload then draws another one."""
        options = options_of(config)
        if {group.kind for group in config.groups} != {"mamba", "attention"}:
            return "it needs groups of both kinds, mamba and attention"
        if reason := self._local(config) or self._sizes(config) or self._draft(config):
            return reason
        if config.conv_width not in self.capabilities.conv_widths:
            return f"conv_width must be {self.capabilities.conv_widths[0]}"
        if config.num_speculative_tokens and config.mamba_cache_mode not in self.release.speculative_modes:
            return f"this release does not speculate with mamba_cache_mode={config.mamba_cache_mode}"
        if config.mamba_cache_mode not in self.release.modes:
            return f"mamba_cache_mode={config.mamba_cache_mode} is not supported"
        for name, drivable in self.capabilities.options.items():
            value = config.options.get(name, _DEFAULTS.get(name, drivable[0]))
            if value not in drivable:
                return f"{name}={value} is not driven on this release"
        if config.mamba_cache_mode == "align":
            size = max(group.block_size for group in config.groups)
            for name in sorted(self.release.limits_of_a_block):
                if 0 < getattr(config, name) < size:
                    return f"this release wants {name} to be at least a block in mode align"
        if has_peer(config) and not self.release.coordinates:
            return "this release's coordination of data-parallel ranks is not driven"
        if config.async_depth and config.enable_prefix_caching and not self.release.caches_asynchronously:
            return "this release does not schedule ahead with a prefix cache"
        if drafts_on_device(config) and not self.release.device_drafts:
            return "the V1 runner of this release does not schedule ahead of its drafts"
        is_plain = not config.eagle_block_drop and not any(group.draft for group in config.groups)
        ahead = config.async_depth > 0 and config.num_speculative_tokens > 0 and is_v2(config)
        if ahead and is_plain and not self.release.v2_drafts_ahead:
            return "the V2 runner of this release does not schedule ahead of drafts without EAGLE's rules"
        if config.eagle_block_drop and options.runner == "v1":
            return "the V1 runner would load a real drafter for eagle_block_drop"
        if options.pipeline != "none" and (not config.async_depth or config.num_speculative_tokens):
            return "pipeline stages are driven with steps in flight and without drafts"
        mixer = options.mixer
        if options.metadata == "shared" and not (mixer == "gdn" and is_v2(config)):
            return "only GDN layers on the V2 runner share metadata"
        if options.replay and not ring_entries(config):
            return "ReplaySSM needs mixer=mamba2 on the V1 runner, without drafts, connectors and mode all"
        if options.sampling == "varied" and not varies_sampling(config):
            return "sampling parameters move with rows on the V1 runner without drafts: use sampling=greedy"
        if mixer in self.release.plain_mixers and config.num_speculative_tokens:
            return f"mixer={mixer} does not speculate in this release"
        if config.mamba_cache_mode == "all":
            if mixer not in ("mamba1", "mamba2"):
                return "mode all needs mixer=mamba1 or mamba2"
            if config.num_speculative_tokens and is_v2(config):
                return "in mode all the mixer asserts columns of verifications, which the V2 runner does not pass"
            if self.release.aligns_tables and options.graphs != "none":
                return "graphs in mode all need blocks of 128 tokens in this release"
            if any(group.kind == "mamba" and group.block_size % 8 for group in config.groups):
                return "the convolution's kernel needs blocks of a multiple of 8 tokens in mode all"
        if self.release.state_per_seat and options.graphs != "none" and config.max_num_seqs > config.num_blocks:
            return "with graphs the pool needs a block for each request: raise num_blocks or lower max_num_seqs"
        if mixer == "mamba2":
            spare = sum(group.kind == "mamba" for group in config.groups)
            if config.num_blocks < config.smallest_pool() + spare:
                return "a chunk of a Mamba 2 layer may need one more block for a state: raise num_blocks"
        return ""

    def _sizes(self, config: Config) -> str:
        """Return "", or the reason why block sizes and the unit of keys are not supported."""
        options = options_of(config)
        unit, is_mamba2 = options.prefix_match_unit, options.mixer == "mamba2"
        if unit and config.hash_block_size % unit:
            return "every block size must be a multiple of prefix_match_unit"
        if 0 < unit < config.conv_width - 1 and is_mamba2:
            return (
                "a chunk of a Mamba 2 layer may leave a state after prefix_match_unit tokens, whose window it must hold"
            )
        inner = sum(group.kind == "mamba" for group in config.groups) * is_mamba2
        if unit and config.num_blocks < config.smallest_pool() + inner + len(config.groups):
            return "a hit inside a block may need one more block for each group: raise num_blocks"
        if len({group.block_size for group in config.groups}) > 1 and not self.release.partial_hits:
            return "this release gives all groups blocks of one size"
        states = max(group.block_size for group in config.groups if group.kind == "mamba")
        if config.mamba_cache_mode != "none" and config.num_speculative_tokens >= states:
            return "a step must not cross two boundaries of states by its drafts: lower num_speculative_tokens"
        if any(group.block_size % states for group in config.groups):
            return "the planner makes attention blocks as large as the blocks of states, or a multiple"
        return ""

    def _draft(self, config: Config) -> str:
        """Return "", or the reason why a group of the drafter is not supported."""
        drafting = [group for group in config.groups if group.draft]
        if not drafting:
            return ""
        if not self.release.draft_groups:
            return "the drafter of this release has no group of its own here"
        if len(drafting) > 1 or not config.num_speculative_tokens or not is_v2(config):
            return "the V2 runner has one drafter with a group, if there are drafts"
        if options_of(config).graphs != "none":
            return "the drafter's own graphs are not driven"
        if any(group.window or group.chunk for group in drafting):
            return "the drafter attends to everything"
        if not any(group.kind == "attention" and not group.draft for group in config.groups):
            return "the model needs attention of its own"
        # Layers of one shape form groups as large as the smallest number of layers of any shape.
        shapes = Counter(
            (group.kind, group.kind == "attention" and group.block_size, group.window, group.chunk)
            for group in config.groups
        )
        if {group.layers for group in config.groups} != {1} or min(shapes.values()) > 1:
            return "vLLM would put the drafter's layer into a group of the model's"
        return ""

    def _local(self, config: Config) -> str:
        """Return "", or the reason why groups of local attention are not supported."""
        local = [group for group in config.groups if group.window or group.chunk]
        if not local:
            return ""
        if not self.release.local_groups:
            return "this release has no groups of local attention beside full attention and states"
        if not any(group.kind == "attention" and group not in local for group in config.groups):
            return "local attention needs a group of full attention beside it"
        largest = max(group.block_size for group in config.groups if group.kind == "attention")
        if any(largest % group.block_size for group in local):
            return "the largest attention block must be a multiple of the others"
        if config.num_blocks < config.smallest_pool() + len(local):
            return "a window that begins inside a block needs one more block: raise num_blocks"
        if any(group.chunk for group in local):
            if options_of(config).graphs != "none":
                return "vLLM captures no graphs with chunked-local attention"
            if config.num_speculative_tokens and (config.eagle_block_drop or options_of(config).runner != "v1"):
                return "vLLM refuses chunked-local attention with EAGLE's rules"
            if len({group.block_size for group in config.groups}) > 1:
                return "vLLM refuses chunked-local attention with unequal block sizes"
        return ""

    def open(self, config: Config) -> Target:
        """Build an engine for one trace."""
        from .target import VllmTarget

        return VllmTarget(config)


def make_factory(variant: str, device: str = "") -> TargetFactory:
    """Return the factory, in a process of the engine's environment; with a device, the one for real models there. There
    are no variants.

    Imports vLLM: half a minute on a busy machine, before a campaign's clock starts. Opens one engine, so that a vLLM
    that the adapter does not fit is refused here once, instead of being reported as a crash by every trace.
    """
    try:
        if device:
            from .gpu.factory import make_factory as make_real

            return make_real(variant or "vllm", device)
        from .versions.old_releases import prepare_import

        prepare_import()
        from .bringup import prepare_process
    except ImportError as error:
        raise cannot_import("vLLM", "vllm@0.33.0", error) from error
    prepare_process()
    release = installed()
    factory = VllmFactory(variant or "vllm", release)
    trial = Config(
        num_blocks=40,
        groups=(Group("mamba", 8), Group("attention", 8)),
        mamba_cache_mode=release.modes[0],
        enable_prefix_caching=release.modes[0] != "none",
        options={"runner": release.runners[0]},
    )
    open_supported(factory, trial).close()
    return factory
