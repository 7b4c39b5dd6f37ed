"""Opens the embedded target or one of its mutants."""

from __future__ import annotations

from ..base.protocol import Capabilities
from ..base.trace import Config
from .target import HybridTarget

CAPABILITIES = Capabilities(
    events=frozenset(
        {
            "arrive",
            "step",
            "preempt",
            "abort",
            "dummy_run",
            "capture_graphs",
            "reset_prefix_cache",
            "evict",
            "sleep",
            "wake",
        }
    ),
    modes=("align", "all", "none"),
    observes=frozenset(
        {
            "pool",
            "labels",
            "tables",
            "accesses",
            "content",
            "device_order",
            "estimates",
            "leftovers",
        }
    ),
    block_sizes=((8, 4), (8, 8), (8, 16), (16, 4), (16, 16), (4, 8)),
    group_counts=((1, 1), (1, 1), (2, 1), (2, 1), (1, 2), (3, 1), (0, 1)),
    layers_per_group=(1, 1, 1, 2),
    draft_block_sizes=(4, 2),
    windows=(6, 9, 17),
    max_speculative_tokens=4,
    variable_drafts=True,
    max_async_depth=2,
    eagle_block_drop=True,
    policies=("fcfs", "fcfs", "priority"),
    conv_widths=(4, 2, 3),
    max_model_len=96,
    traces_per_second=25.0,
    reaches=frozenset({"padding", "chunks"}),
)


class HybridFactory:
    """A factory for one class of embedded target."""

    capabilities = CAPABILITIES

    def __init__(self, name: str, target_class: type[HybridTarget]) -> None:
        self.name = name
        self._target_class = target_class

    def supports(self, config: Config) -> str:
        """Every sound configuration with drafts that fit a state block."""
        smallest = min((group.block_size for group in config.groups if group.kind == "mamba"), default=99)
        if config.num_speculative_tokens >= smallest:
            return f"num_speculative_tokens must be less than the mamba block size {smallest}"
        return ""

    def open(self, config: Config) -> HybridTarget:
        """One engine for one trace."""
        return self._target_class(config)


def variants() -> dict[str, str]:
    """Mutants: slug -> one line."""
    from .mutants import titles

    return titles()


def make_factory(slug: str = "") -> HybridFactory:
    """The clean target for "", else the mutant with this slug. KeyError for an unknown one."""
    if not slug:
        return HybridFactory("hybrid", HybridTarget)
    from .mutants import MUTANTS

    return HybridFactory(f"hybrid:{slug}", MUTANTS[slug])
