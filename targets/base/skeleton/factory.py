"""What the target can do, and how it is opened. Importable without the engine, which only `open` may import."""

from __future__ import annotations

from hybridfuzz.targets.base.protocol import Capabilities, Target, TargetFactory
from hybridfuzz.targets.base.trace import Config

# TODO 7: start with little; add one event, observation or size at a time, and run after each.
CAPABILITIES = Capabilities(
    events=frozenset({"arrive", "step", "abort"}),
    modes=("none",),
    observes=frozenset({"accesses", "caches", "leftovers"}),
    block_sizes=((8, 8),),
    features=frozenset(),
    lacks=frozenset({"preemption", "zeroing"}),
    engine=(f"{__package__}.engine",),
)


class SkeletonFactory:
    """Opens one engine for each trace."""

    name = "skeleton"
    capabilities = CAPABILITIES

    def supports(self, config: Config) -> str:
        """Return "", or the reason why a configuration is not supported; the workload then draws another one."""
        # Refuse what `open` would not build: reduction leaves groups out, and the trace would describe another engine.
        if [group.kind for group in config.groups] != ["mamba", "attention"]:
            return "the engine has one group of states and one of attention"
        return ""

    def open(self, config: Config) -> Target:
        """Return a fresh engine."""
        from .target import SkeletonTarget

        return SkeletonTarget(config)


def make_factory(variant: str) -> TargetFactory:
    """Return the factory, also for a folder under `targets/`."""
    return SkeletonFactory()


FACTORY = SkeletonFactory()
