"""Factories for the built-in target and its mutants. A numeric run comes through one door: `with_bytes`."""

from __future__ import annotations

from ..base.protocol import Capabilities, TargetError, TargetFactory
from ..base.stock import Setting
from ..base.trace import Config
from .target import HybridTarget

STOCK = (
    Setting("sessions", events=frozenset({"resume"}), is_rare=True),
    Setting("prefix_match_unit", {"prefix_match_unit": "0"}, is_rare=True),
    Setting("connector_saves", {"connector_saves": "no"}, is_rare=True),
    Setting("eagle_block_drop", {"eagle_block_drop": "false"}),
    Setting("a reset of the prefix cache", events=frozenset({"reset_prefix_cache"})),
    Setting("graphs captured again", events=frozenset({"capture_graphs"})),
    Setting("sleep", events=frozenset({"sleep", "wake"})),
    Setting("a KV connector", events=frozenset({"external_load", "move_tier"})),
    Setting("data parallelism", {"dp": "1"}, events=frozenset({"dummy_run"})),
    Setting("long_prefill_token_threshold", {"long_prefill_token_threshold": "0"}),
    Setting("policy=priority", {"policy": "fcfs"}),
    Setting("asynchronous scheduling", {"async_depth": "0"}),
    Setting("mamba_cache_mode", {"mamba_cache_mode": "align", "enable_prefix_caching": "true"}),
    Setting("speculation", {"num_speculative_tokens": "0", "eagle_block_drop": "false"}),
)
"""It has no server: these are the defaults of `Config`."""

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
    options={
        "connector_saves": ("no", "no", "yes"),
        "prefix_match_unit": ("0", "0", "2", "4"),
        "hashing": ("plain", "lookahead"),
    },
    features=frozenset(
        {
            "block-tables",
            "padding",
            "chunks",
            "stores",
            "partial-hits",
            "stop-tokens",
            "min-tokens",
            "lookahead-hashes",
            "prompt-logprobs",
            "structured-output",
            "failing-grammars",
            "aborted-turns",
        }
    ),
    lacks=frozenset({"cut-drafts"}),
    features_with={"hashing": {"lookahead": frozenset({"lookahead-hashes"})}},
    engine=("hybridfuzz.targets.hybrid",),
    stock=STOCK,
)


class HybridFactory:
    """Factory for one class of built-in target."""

    capabilities = CAPABILITIES

    def __init__(self, name: str, target_class: type[HybridTarget]) -> None:
        self.name = name
        self.target_class = target_class

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
        return self.target_class(config)


def variants() -> dict[str, str]:
    """Return the title of each mutant, by slug."""
    from .mutants import titles

    return titles()


DEVICES = ("cpu", "cuda", "interpreter")
"""Where a numeric run can repeat a trace on bytes (`numeric.factory`)."""
BYTES_ALONE = "-bytes"
"""Suffix of a device name: the oracles see only the bytes, neither block tables nor tags."""


def missing_devices() -> dict[str, str]:
    """Return why each device cannot be used here, "" if it can."""
    from .numeric.factory import missing

    return {device: missing(device) for device in DEVICES}


def with_bytes(symbolic: HybridFactory, device: str) -> TargetFactory:
    """Return a factory that adds a numeric run: on one of DEVICES, optionally with the suffix BYTES_ALONE.

    Raises TargetError for other devices, and for one that cannot be used here.
    """
    name = f"{symbolic.name}@{device}"
    if device.removesuffix(BYTES_ALONE) not in DEVICES:
        raise TargetError(f"target {name}: no such device: known: symbolic, {', '.join(DEVICES)}")
    from .numeric.factory import NumericFactory

    alone = device.endswith(BYTES_ALONE)
    return NumericFactory(name, symbolic, symbolic.target_class, device.removesuffix(BYTES_ALONE), bytes_alone=alone)


def make_factory(slug: str = "", device: str = "") -> TargetFactory:
    """Return the factory of the clean target ("") or of the mutant `slug`, on a device with a numeric run.

    Raises KeyError for an unknown slug, and like `with_bytes`.
    """
    symbolic = HybridFactory("hybrid", HybridTarget)
    if slug:
        from .mutants import MUTANTS

        symbolic = HybridFactory(f"hybrid:{slug}", MUTANTS[slug])
    return with_bytes(symbolic, device) if device else symbolic
