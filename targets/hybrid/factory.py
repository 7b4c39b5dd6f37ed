"""Factories for the built-in target and its mutants, symbolic or with a numeric run."""

from __future__ import annotations

import msgspec

from ..base.protocol import Capabilities, TargetError
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
            "external_load",
            "move_tier",
            "park",
            "resume",
            "truncate",
            "fork",
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
    draft_block_sizes=(4, 4, 2),
    windows=(6, 9, 17),
    max_speculative_tokens=4,
    variable_drafts=True,
    max_async_depth=2,
    eagle_block_drop=True,
    policies=("fcfs", "priority"),
    conv_widths=(4, 2, 3),
    max_model_len=96,
    traces_per_second=25.0,
    options={"connector_saves": ("no", "no", "yes"), "prefix_match_unit": ("0", "0", "2", "4")},
    features=frozenset({"block-tables", "padding", "chunks", "stores", "partial-hits"}),
    engine=("hybridfuzz.targets.hybrid",),
)


class HybridFactory:
    """Factory for one class of built-in target."""

    capabilities = CAPABILITIES

    def __init__(self, name: str, target_class: type[HybridTarget]) -> None:
        self.name = name
        self._target_class = target_class

    def supports(self, config: Config) -> str:
        """Return why a configuration is not supported, "" if it is.

        Drafts must fit into a mamba block, and there is one grid of states, on which chunks end.
        """
        sizes = {group.block_size for group in config.groups if group.kind == "mamba"}
        if len(sizes) > 1:
            return f"all mamba groups must have one block size, not {', '.join(map(str, sorted(sizes)))}"
        if config.num_speculative_tokens >= min(sizes, default=99):
            return f"num_speculative_tokens must be less than the mamba block size {min(sizes)}"
        return ""

    def open(self, config: Config) -> HybridTarget:
        """Return a new engine for one trace."""
        return self._target_class(config)


def variants() -> dict[str, str]:
    """Return the title of each mutant, by slug."""
    from .mutants import titles

    return titles()


DEVICES = ("cpu", "cuda", "interpreter")
BYTES_ALONE = "-bytes"
"""Suffix of a device name: the oracles see only the bytes, neither block tables nor tags."""
NUMERIC_OPTIONS = {
    "kv_dtype": ("fp8", "fp8", "fp16", "bf16"),
    "state_dtype": ("fp32", "fp32", "bf16"),
    "mixer": ("mamba2", "mamba2", "gated_delta_net"),
    "page_layout": ("padded", "padded", "scaled"),
    "kernel_block": ("0", "0", "2", "4", "8"),
}
LONG_BLOCKS = ((8, 24), (8, 32), (16, 32))
"""(mamba, attention) block sizes where one attention block is large enough for a state of any kind."""


def missing_devices() -> dict[str, str]:
    """Return why each device cannot be used here, "" if it can."""
    from .numeric.backend import missing

    return {device: missing(device) for device in DEVICES}


class NumericFactory(HybridFactory):
    """Factory for targets with a numeric run beside the symbolic one. Raises TargetError if the device is missing."""

    def __init__(self, name: str, target_class: type[HybridTarget], device: str) -> None:
        from .numeric.backend import Device
        from .numeric.target import numeric

        super().__init__(name, numeric(target_class, Device(device.removesuffix(BYTES_ALONE))))
        observes = frozenset({"numeric"})
        if not device.endswith(BYTES_ALONE):
            observes |= CAPABILITIES.observes
        self.capabilities = msgspec.structs.replace(
            CAPABILITIES,
            observes=observes,
            options={**CAPABILITIES.options, **NUMERIC_OPTIONS},
            block_sizes=CAPABILITIES.block_sizes + LONG_BLOCKS,
        )

    def supports(self, config: Config) -> str:
        """Return why a configuration is not supported, "" if it is. Options and page layout must exist."""
        from .layout import build_layout
        from .numeric.device_state import build_model
        from .numeric.paging import Paging

        for option, values in NUMERIC_OPTIONS.items():
            if config.options.get(option, values[0]) not in values:
                return f"{option} must be one of {', '.join(dict.fromkeys(values))}"
        reason = Paging.of(config.options).unsupported(build_layout(config), build_model(config))
        return reason or super().supports(config)


def make_factory(slug: str = "", device: str = "") -> HybridFactory:
    """Return the factory of the clean target ("") or of the mutant `slug`. Raises KeyError for an unknown slug.

    `device` adds a numeric run: one of DEVICES, optionally with the suffix BYTES_ALONE. Raises TargetError for others.
    """
    target_class, name = HybridTarget, "hybrid"
    if slug:
        from .mutants import MUTANTS

        target_class, name = MUTANTS[slug], f"hybrid:{slug}"
    if not device:
        return HybridFactory(name, target_class)
    if device.removesuffix(BYTES_ALONE) not in DEVICES:
        raise TargetError(f"target {name}@{device}: no such device: known: symbolic, {', '.join(DEVICES)}")
    return NumericFactory(f"{name}@{device}", target_class, device)
