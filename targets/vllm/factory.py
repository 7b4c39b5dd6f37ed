"""The vLLM target's capabilities. Importable without vLLM: the rest is imported when an engine is opened."""

from __future__ import annotations

from collections import Counter

from ...reference.layout import Mode
from ..base.protocol import Capabilities, Target, TargetError, TargetFactory
from ..base.releases import cannot_import
from ..base.trace import Config, Group
from .options import drafts_on_device, has_adapters, has_peer, is_v2

_DEFAULTS = {"runner": "v2", "mixer": "gdn"}
_EVENTS = frozenset({"arrive", "step", "preempt", "abort", "dummy_run", "reset_prefix_cache", "evict"})
_CONNECTOR = {"connector": ("none", "none", "store", "transfer"), "load_failure": ("recompute", "fail")}
_DOCUMENTS = {"images": ("a", "image.b", "image.c"), "adapters": ("a", "adapter.b", "adapter.c", "salt.d")}
_SERVING = {
    "reports": ("none", "all"),
    "reset": ("direct", "direct", "paused"),
    "prefills": ("eager", "eager", "spaced"),
    "pipeline": ("none", "none", "sync", "async"),
}
_TRANSFERS = {"stores", "async-loads", "failing-loads", "held-for-transfer"}
_OBSERVES = frozenset({"pool", "labels", "tables", "accesses", "content", "device_order", "estimates", "leftovers"})


class VllmFactory:
    """Opens engines of the vLLM that can be imported in this process.

    runners, modes, mixers  what this release has and the target drives
    zeroes         this release zeroes blocks
    device_drafts  the V1 runner can schedule ahead of its drafts
    graphs         decode graphs can be captured
    caches_asynchronously  asynchronous scheduling and a prefix cache do not exclude each other
    limits_of_a_block  settings that must hold a block in mode align
    plain_mixers   state layers that do not speculate
    connectors     a KV connector can serve hybrid models
    aligns_tables  block tables are as wide as a multiple of 128 tokens
    local_groups   groups of local attention may stand beside full attention and states
    partial_hits   a hit may end inside a block
    shared_metadata  groups of GDN layers can share metadata, as on a GPU
    serving_options  options of `_SERVING` exist
    sessions       requests may be streaming input sessions
    v2_drafts_ahead  the V2 runner can schedule ahead of drafts without EAGLE's rules
    coordinates    data-parallel ranks are coordinated by vLLM's own code
    draft_groups   the V2 runner drafts with vLLM's own MTP speculator, whose layer has a group of its own
    replays        Mamba 2 can replay inputs (ReplaySSM)
    conv_layouts   the layout of convolution windows can be chosen
    junctions      states can be published where prompts fork, beside EAGLE
    inputs         requests may have images, adapters and salts
    sampling       requests on the V1 runner may have sampling parameters
    """

    def __init__(
        self,
        name: str,
        runners: tuple[str, ...] = ("v2", "v1"),
        modes: tuple[Mode, ...] = ("align", "none"),
        mixers: tuple[str, ...] = ("gdn", "mamba2", "short_conv", "linear"),
        speculative_modes: tuple[Mode, ...] = ("align", "none"),
        zeroes: bool = True,
        device_drafts: bool = True,
        graphs: bool = True,
        caches_asynchronously: bool = True,
        limits_of_a_block: frozenset[str] = frozenset(),
        plain_mixers: frozenset[str] = frozenset({"mamba1"}),
        aligns_tables: bool = False,
        local_groups: bool = False,
        partial_hits: bool = False,
        connectors: bool = True,
        draft_groups: bool = False,
        shared_metadata: bool = False,
        sessions: bool = False,
        serving_options: bool = False,
        coordinates: bool = False,
        v2_drafts_ahead: bool = True,
        replays: bool = False,
        conv_layouts: bool = False,
        junctions: bool = False,
        inputs: bool = False,
        sampling: bool = False,
    ) -> None:
        self.name = name
        self._device_drafts = device_drafts
        self._v2_drafts_ahead = v2_drafts_ahead
        self._caches_asynchronously = caches_asynchronously
        self._limits_of_a_block = limits_of_a_block
        self._plain_mixers = plain_mixers
        self._aligns_tables = aligns_tables
        self.capabilities = Capabilities(
            events=_EVENTS | ({"external_load"} if connectors else set()) | ({"resume"} if sessions else set()),
            modes=modes,
            observes=_OBSERVES,
            # The platform gives both kinds the same block size in align mode; the planner then enlarges attention
            # blocks where another group has larger pages.
            block_sizes=((4, 4), (8, 8), (16, 16), *(((8, 16), (4, 8)) if partial_hits else ())),
            # Groups are as large as the smaller bucket of equal layers: these divide evenly.
            group_counts=((1, 1), (2, 1), (3, 1), (1, 2)),
            layers_per_group=(1, 2),
            max_speculative_tokens=4,
            speculative_modes=speculative_modes,
            variable_drafts=True,
            max_async_depth=1,
            eagle_block_drop=True,
            windows=(5, 8, 13) if local_groups else (),
            attention_chunks=(1, 2, 3) if local_groups else (),
            draft_block_sizes=(4, 8, 16) if draft_groups else (),
            policies=("fcfs", "priority"),
            conv_widths=(4,),
            # retention: the state of every boundary is published, or of those that vLLM chooses by default, or also
            # those where prompts fork.
            # graphs: decode batches are padded to the trace's graph sizes and replayed, or everything is eager.
            # connector, load_failure: `kv_connector`; vLLM's policy for loads that fail.
            # reports: statistics and KV events, of which a subscriber must learn what is cached (`cache_events`).
            # reset: between two steps, or once the scheduler was paused and the steps in flight have run.
            # prefills: as the budget allows, or every third step only, while others decode.
            # pipeline: the steps in flight are those of two pipeline stages, with or without asynchronous scheduling.
            # data_parallel: rows of other ranks pad a batch by our rule, or by vLLM's coordination of two ranks.
            # inputs: prompts are token ids alone, or have images or LoRA adapters and salts (`inputs`).
            # sampling: greedy without parameters, or with parameters of each request's own (`sampling`).
            # replay: entries of the ring with which Mamba 2 decodes replay inputs (ReplaySSM) where vLLM takes it.
            # conv_layout: of a window the channels of each input lie together (SD), or the inputs of each channel (DS).
            # attention: kernels that load pages whole and multiply masked values by 0, or those that do not load them.
            options={
                "runner": runners,
                "retention": ("dense", "default", *(("junctions",) if junctions else ())),
                "graphs": ("decode", "none") if graphs else ("none",),
                "mixer": mixers,
                "attention": ("flash", "triton"),
                **({"metadata": ("each", "each", "shared", "shared")} if shared_metadata else {}),
                **({"data_parallel": ("1", "2")} if coordinates else {}),
                **({"prefix_match_unit": ("0", "0", "0", "2", "4")} if partial_hits else {}),
                **(_CONNECTOR if connectors else {}),
                **(_SERVING if serving_options else {}),
                **({"replay": ("0", "3", "6")} if replays else {}),
                **({"conv_layout": ("SD", "SD", "DS")} if conv_layouts else {}),
                **({"sampling": ("greedy", "varied")} if sampling else {}),
                **({"inputs": ("tokens", "tokens", "tokens", "tokens", "images", "adapters")} if inputs else {}),
            },
            features=frozenset(
                {"block-tables", "padding"}
                | ({"partial-hits"} if partial_hits else set())
                | (_TRANSFERS if connectors else set())
                | ({"images", "adapters"} if inputs else set())
            ),
            documents={"inputs": _DOCUMENTS} if inputs else {},
            engine=("vllm",),
            lacks=frozenset() if zeroes else frozenset({"zeroing"}),
        )

    def supports(self, config: Config) -> str:
        """Return "", or the reason why a configuration is not supported; the workload then draws another one."""
        if {group.kind for group in config.groups} != {"mamba", "attention"}:
            return "it needs groups of both kinds, mamba and attention"
        if reason := self._local(config) or self._sizes(config) or self._draft(config):
            return reason
        if config.conv_width not in self.capabilities.conv_widths:
            return f"conv_width must be {self.capabilities.conv_widths[0]}"
        if config.num_speculative_tokens and config.mamba_cache_mode not in self.capabilities.speculative_modes:
            return f"this release does not speculate with mamba_cache_mode={config.mamba_cache_mode}"
        if config.mamba_cache_mode not in self.capabilities.modes:
            return f"mamba_cache_mode={config.mamba_cache_mode} is not supported"
        for name, drivable in self.capabilities.options.items():
            value = config.options.get(name, drivable[0] if name not in _DEFAULTS else _DEFAULTS[name])
            if value not in drivable:
                return f"{name}={value} is not driven on this release"
        if config.mamba_cache_mode == "align":
            size = max(group.block_size for group in config.groups)
            for name in sorted(self._limits_of_a_block):
                if 0 < getattr(config, name) < size:
                    return f"this release wants {name} to be at least a block in mode align"
        if has_peer(config) and "data_parallel" not in self.capabilities.options:
            return "this release's coordination of data-parallel ranks is not driven"
        if config.async_depth and config.enable_prefix_caching and not self._caches_asynchronously:
            return "this release does not schedule ahead with a prefix cache"
        if drafts_on_device(config) and not self._device_drafts:
            return "the V1 runner of this release does not schedule ahead of its drafts"
        is_plain = not config.eagle_block_drop and not any(group.draft for group in config.groups)
        ahead = config.async_depth > 0 and config.num_speculative_tokens > 0 and is_v2(config)
        if ahead and is_plain and not self._v2_drafts_ahead:
            return "the V2 runner of this release does not schedule ahead of drafts without EAGLE's rules"
        if config.eagle_block_drop and config.options.get("runner") == "v1":
            return "the V1 runner would load a real drafter for eagle_block_drop"
        if reason := self._inputs(config):
            return reason
        staged = config.options.get("pipeline", "none") != "none"
        if staged and (not config.async_depth or config.num_speculative_tokens):
            return "pipeline stages are driven with steps in flight and without drafts"
        mixer = config.options.get("mixer", "gdn")
        if config.options.get("metadata") == "shared" and not (mixer == "gdn" and is_v2(config)):
            return "only GDN layers on the V2 runner share metadata"
        if mixer in self._plain_mixers and config.num_speculative_tokens:
            return f"mixer={mixer} does not speculate in this release"
        if config.mamba_cache_mode == "all":
            if mixer not in ("mamba1", "mamba2"):
                return "mode all needs mixer=mamba1 or mamba2"
            if config.num_speculative_tokens and is_v2(config):
                return "in mode all the mixer asserts columns of verifications, which the V2 runner does not pass"
            if self._aligns_tables and config.options.get("graphs", "none") != "none":
                return "graphs in mode all need blocks of 128 tokens in this release"
            if any(group.kind == "mamba" and group.block_size % 8 for group in config.groups):
                return "the convolution's kernel needs blocks of a multiple of 8 tokens in mode all"
        if mixer == "mamba2":
            spare = sum(group.kind == "mamba" for group in config.groups)
            if config.num_blocks < config.smallest_pool() + spare:
                return "a chunk of a Mamba 2 layer may need one more block for a state: raise num_blocks"
        return ""

    def _sizes(self, config: Config) -> str:
        """Return "", or the reason why block sizes and the unit of keys are not supported."""
        unit = int(config.options.get("prefix_match_unit", "0"))
        if unit and config.hash_block_size % unit:
            return "every block size must be a multiple of prefix_match_unit"
        if 0 < unit < config.conv_width - 1 and config.options.get("mixer") == "mamba2":
            return (
                "a chunk of a Mamba 2 layer may leave a state after prefix_match_unit tokens, whose window it must hold"
            )
        inner = sum(group.kind == "mamba" for group in config.groups) * (config.options.get("mixer") == "mamba2")
        if unit and config.num_blocks < config.smallest_pool() + inner + len(config.groups):
            return "a hit inside a block may need one more block for each group: raise num_blocks"
        if len({group.block_size for group in config.groups}) > 1 and "partial-hits" not in self.capabilities.features:
            return "this release gives all groups blocks of one size"
        states = max(group.block_size for group in config.groups if group.kind == "mamba")
        if any(group.block_size % states for group in config.groups):
            return "the planner makes attention blocks as large as the blocks of states, or a multiple"
        return ""

    def _inputs(self, config: Config) -> str:
        """Return "", or the reason why images or adapters are not supported."""
        if config.options.get("inputs", "tokens") == "tokens":
            return ""
        if config.options.get("connector", "none") != "none":
            return "images and adapters are not driven beside a KV connector yet"
        if any(group.draft for group in config.groups):
            return "the drafter's own layer is not driven with images or adapters"
        if has_adapters(config) and config.options.get("graphs", "none") != "none":
            return "graphs of batches with adapters are not driven"
        return ""

    def _draft(self, config: Config) -> str:
        """Return "", or the reason why a group of the drafter is not supported."""
        drafting = [group for group in config.groups if group.draft]
        if not drafting:
            return ""
        if not self.capabilities.draft_block_sizes:
            return "the drafter of this release has no group of its own here"
        if len(drafting) > 1 or not config.num_speculative_tokens or config.options.get("runner", "v2") != "v2":
            return "the V2 runner has one drafter with a group, if there are drafts"
        if config.options.get("graphs", "none") != "none":
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
        if not self.capabilities.windows:
            return "this release has no groups of local attention beside full attention and states"
        if not any(group.kind == "attention" and group not in local for group in config.groups):
            return "local attention needs a group of full attention beside it"
        largest = max(group.block_size for group in config.groups if group.kind == "attention")
        if any(largest % group.block_size for group in local):
            return "the largest attention block must be a multiple of the others"
        if config.num_blocks < config.smallest_pool() + len(local):
            return "a window that begins inside a block needs one more block: raise num_blocks"
        if any(group.chunk for group in local):
            if config.options.get("graphs", "none") != "none":
                return "vLLM captures no graphs with chunked-local attention"
            if config.num_speculative_tokens and (config.eagle_block_drop or config.options.get("runner") != "v1"):
                return "vLLM refuses chunked-local attention with EAGLE's rules"
            if len({group.block_size for group in config.groups}) > 1:
                return "vLLM refuses chunked-local attention with unequal block sizes"
        return ""

    def open(self, config: Config) -> Target:
        """Build an engine for one trace."""
        reason = self.supports(config)
        if reason:
            raise TargetError(f"{self.name}: {reason}; change the configuration")
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
        from .old_releases import prepare_import

        prepare_import()
        from .bringup import prepare_process
    except ImportError as error:
        raise cannot_import("vLLM", "vllm@0.33.0", error) from error
    prepare_process()
    from . import compat

    runners = ("v2", "v1") if compat.has_v2() else ("v1",)
    tested = compat.coordinates_ranks()  # 0.33: older releases have some of this, too, but were not run with it
    factory = VllmFactory(
        variant or "vllm",
        runners,
        compat.cache_modes(),
        compat.mixers(),
        speculative_modes=compat.speculative_modes(),
        zeroes=compat.zeroes_blocks(),
        device_drafts=compat.has_device_drafter(),
        graphs=compat.has_graph_choice(),
        caches_asynchronously=compat.caches_asynchronously(),
        limits_of_a_block=compat.limits_of_a_block(),
        plain_mixers=compat.plain_mixers(),
        aligns_tables=compat.aligns_tables(),
        local_groups=compat.has_local_groups(),
        partial_hits=compat.has_partial_hits(),
        coordinates=compat.coordinates_ranks(),
        v2_drafts_ahead=compat.v2_drafts_ahead(),
        shared_metadata=compat.has_v2() and compat.shares_state_indices(),
        connectors=compat.has_connectors(),
        draft_groups=compat.has_v2() and compat.has_draft_layers(),
        sessions=compat.has_sessions(),
        serving_options=compat.has_serving_options(),
        replays=tested and compat.has_replay(),
        conv_layouts=tested and compat.has_conv_layouts(),
        junctions=tested and compat.has_junctions(),
        inputs=tested and compat.has_inputs(),
        sampling=tested and compat.has_movable_parameters(),
    )
    trial = Config(
        num_blocks=40,
        groups=(Group("mamba", 8), Group("attention", 8)),
        mamba_cache_mode=compat.cache_modes()[0],
        enable_prefix_caching=compat.cache_modes()[0] != "none",
        options={"runner": runners[0]},
    )
    factory.open(trial).close()
    return factory
