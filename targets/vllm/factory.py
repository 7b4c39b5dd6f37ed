"""The vLLM target's capabilities. Importable without vLLM: the rest is imported when an engine is opened."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from msgspec import structs

from ..base.protocol import Capabilities, Target, TargetFactory, open_supported
from ..base.releases import cannot_import
from ..base.renamed import Renamed, aliased
from ..base.trace import Config, Group
from .kit_limits import CONV_WIDTHS, Case, refusal
from .options import SERVING, options_of
from .release import Release, installed

_EVENTS = frozenset({"arrive", "step", "preempt", "abort", "dummy_run", "reset_prefix_cache", "evict"})
_CONNECTORS = ("none", "none", "store", "transfer")
_LIMITED_CONNECTORS = ("none", "none", "none", "store", "transfer", "sync")
_DOCUMENTS = {"images": ("a", "image.b", "image.c"), "adapters": ("a", "adapter.b", "adapter.c", "salt.d")}
_LOADS = frozenset({"stores", "async-loads", "failing-loads"})
_CONNECTED = {"store": _LOADS, "transfer": _LOADS | {"held-for-transfer"}, "sync": _LOADS | {"sync-loads"}}
"""Connector -> features that only some connectors have."""
_PARTIAL_HITS = {"prefix_match_unit": {unit: frozenset({"partial-hits"}) for unit in ("2", "4")}}
_OBSERVES = frozenset({"pool", "labels", "tables", "accesses", "content", "device_order", "estimates", "leftovers"})


def capabilities_of(release: Release) -> Capabilities:
    """Return what the target can do with a release."""
    connectors, inputs = release.connectors, release.inputs
    names = _LIMITED_CONNECTORS if release.sync_loads else _CONNECTORS
    # `kit_limits`: neither a drafter's own graphs nor any with chunked-local attention.
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
        conv_widths=CONV_WIDTHS,
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
            **(SERVING if release.serving_options else {}),
            **({"admission": ("prompt", "chunk")} if release.admits_chunks else {}),
            **({"replay": ("0", "0", "3", "6")} if release.replays else {}),
            **({"conv_layout": ("SD", "SD", "DS")} if release.conv_layouts else {}),
            **({"sampling": ("greedy", "greedy", "varied")} if release.sampling else {}),
            **({"inputs": ("tokens", "tokens", "tokens", "tokens", "images", "adapters")} if inputs else {}),
        },
        features=frozenset(
            {"block-tables", "padding"}
            | ({"stop-tokens"} if release.stop_tokens else set())
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

    def __init__(self, name: str, release: Release, notes: Sequence[str] = ()) -> None:
        self.name = name
        self.release = release
        self.capabilities = structs.replace(capabilities_of(release), notes=tuple(notes))

    def supports(self, config: Config) -> str:
        """Return "", or the reason why a configuration is not supported; the workload then draws another one."""
        case = Case(config, options_of(config), self.release, self.capabilities.options)
        return refusal("shadow", case)

    def open(self, config: Config) -> Target:
        """Build an engine for one trace."""
        from .target import VllmTarget

        return VllmTarget(config)


def _renamed() -> list[Renamed]:
    """Give what this vLLM has renamed its old names."""
    import vllm

    [folder, *_] = vllm.__path__
    try:
        number = version("vllm")
    except PackageNotFoundError:
        number = ""
    return aliased(Path(__file__).parent, Path(folder).parent, number)


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
        renamed = _renamed()
        from .shadow_kit import prepare_process
    except ImportError as error:
        raise cannot_import("vLLM", "vllm@0.33.0", error) from error
    prepare_process()
    release = installed()
    factory = VllmFactory(variant or "vllm", release, [str(one) for one in renamed])
    trial = Config(
        num_blocks=40,
        groups=(Group("mamba", 8), Group("attention", 8)),
        mamba_cache_mode=release.modes[0],
        enable_prefix_caching=release.modes[0] != "none",
        options={"runner": release.runners[0]},
    )
    open_supported(factory, trial).close()
    return factory
