"""The vLLM target's capabilities. Importable without vLLM: the rest is imported when an engine is opened."""

from __future__ import annotations

from ..base.protocol import Capabilities, Target, TargetError, TargetFactory
from ..base.releases import cannot_import
from ..base.trace import Config, Group

_EVENTS = frozenset({"arrive", "step", "preempt", "abort", "dummy_run", "reset_prefix_cache", "evict"})
_OBSERVES = frozenset({"pool", "labels", "tables", "accesses", "content", "device_order", "estimates", "leftovers"})


class VllmFactory:
    """Opens engines of the vLLM that can be imported in this process."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.capabilities = Capabilities(
            events=_EVENTS,
            modes=("align", "none"),
            observes=_OBSERVES,
            # The platform gives both kinds the same block size in align mode.
            block_sizes=((4, 4), (8, 8), (16, 16)),
            # Groups are as large as the smaller bucket of equal layers: these divide evenly.
            group_counts=((1, 1), (2, 1), (3, 1), (1, 2)),
            layers_per_group=(1, 2),
            max_speculative_tokens=4,
            speculative_modes=("align", "none"),
            variable_drafts=True,
            max_async_depth=1,
            eagle_block_drop=True,
            policies=("fcfs", "priority"),
            conv_widths=(4,),
            # retention: the state of every boundary is published, or of those that vLLM chooses by default.
            # graphs: decode batches are padded to the trace's graph sizes and replayed, or everything is eager.
            options={
                "runner": ("v2", "v1"),
                "retention": ("dense", "default"),
                "graphs": ("decode", "none"),
                "mixer": ("gdn", "mamba2"),
            },
            features=frozenset({"block-tables", "padding"}),
            engine=("vllm",),
        )

    def supports(self, config: Config) -> str:
        """Return "", or the reason why a configuration is not supported; the workload then draws another one."""
        if {group.kind for group in config.groups} != {"mamba", "attention"}:
            return "it needs groups of both kinds, mamba and attention"
        if config.conv_width not in self.capabilities.conv_widths:
            return f"conv_width must be {self.capabilities.conv_widths[0]}"
        if config.mamba_cache_mode not in self.capabilities.modes:
            return f"mamba_cache_mode={config.mamba_cache_mode} is not supported"
        if config.eagle_block_drop and config.options.get("runner") == "v1":
            return "the V1 runner would load a real drafter for eagle_block_drop"
        if config.options.get("mixer") == "mamba2":
            spare = sum(group.kind == "mamba" for group in config.groups)
            if config.num_blocks < config.smallest_pool() + spare:
                return "a chunk of a Mamba 2 layer may need one more block for a state: raise num_blocks"
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
        from .bringup import prepare_process
    except ImportError as error:
        raise cannot_import("vLLM", "vllm@0.33.0", error) from error
    prepare_process()
    factory = VllmFactory(variant or "vllm")
    factory.open(Config(num_blocks=40, groups=(Group("mamba", 8), Group("attention", 8)))).close()
    return factory
