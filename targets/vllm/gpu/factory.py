"""What the vLLM target can do with a real model on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from ...base.protocol import Capabilities, Target
from ...base.trace import Config
from ..capabilities import ALL_CONNECTORS, CONNECTED, CONV_LAYOUTS, DOCUMENTS, OFFLOADING, REPLAYS, SAMPLING
from ..kit_limits import CONV_WIDTHS, REAL_MODES, Case, refusal
from ..models import WINDOWED
from ..options import SERVING, options_of

_EVENTS = frozenset(
    {"arrive", "step", "preempt", "abort", "dummy_run", "reset_prefix_cache", "evict", "resume", "external_load"}
)
_OBSERVES = frozenset(
    {"pool", "labels", "tables", "accesses", "content", "device_order", "estimates", "leftovers", "real_model"}
)
_FEATURES = frozenset(
    {
        "block-tables", "padding", "partial-hits", "stop-tokens", "prompt-logprobs", "samples", "structured-output",
        "failing-grammars", "min-tokens", "images", "adapters", "lookahead-hashes",
    }
)  # fmt: skip
_HEAD = frozenset({"draft-group"})
FILLS: tuple[Literal["zero", "random", "nan"], ...] = ("random", "nan")
"""What unused memory holds in the engines of one target."""


class GpuFactory:
    """Opens engines with real models. `stood_in`: what is not vLLM's own here, one clause each. `gpus`: how many there
    are for data-parallel ranks."""

    def __init__(
        self, name: str, device: str, stood_in: Sequence[str], fills: Sequence[str] = FILLS, gpus: int = 1
    ) -> None:
        self.name = name
        self.device = device
        self.stood_in = tuple(stood_in)
        self.fills = fills
        self.gpus = gpus
        self.say: Callable[[str], None] = lambda what: None
        self.waited: dict[str, float] = {}
        connected = {name: has for name, has in CONNECTED.items() if name in ALL_CONNECTORS}
        self.capabilities = Capabilities(
            events=_EVENTS,
            modes=REAL_MODES,
            observes=_OBSERVES,
            # The attention kernel takes multiples of 16.
            block_sizes=((16, 16), (32, 32), (16, 32)),
            group_counts=((1, 1), (2, 1), (3, 1), (1, 2)),
            # One layer of a group is the usual case: each layer costs time in every memory, and alone.
            layers_per_group=(1, 1, 2),
            max_speculative_tokens=4,
            speculative_modes=("align", "none"),
            variable_drafts=True,
            max_async_depth=1,
            policies=("fcfs", "priority"),
            eagle_block_drop=True,
            draft_block_sizes=(0,),
            windows=(5, 20, 40),
            conv_widths=CONV_WIDTHS,
            max_model_len=160,
            options={
                "runner": ("v2", "v1"),
                "retention": ("dense", "default"),
                "graphs": ("decode", "none"),
                "mixer": ("gdn", "mamba2"),
                "dtype": ("float32",),
                "data_parallel": ("1", "2"),
                "metadata": ("each", "each", "shared"),
                "prefix_match_unit": ("0", "0", "0", "8"),
                "admission": ("prompt", "chunk"),
                "hashing": ("lookahead", "lookahead", "plain"),
                "connector": ALL_CONNECTORS,
                "load_failure": ("recompute", "fail"),
                **OFFLOADING,
                "replay": REPLAYS,
                "conv_layout": CONV_LAYOUTS,
                "sampling": SAMPLING,
                "inputs": ("tokens", "tokens", "tokens", "tokens", "images", "adapters"),
                **SERVING,
                **({"jitter": ("no", "no", "no", "yes")} if device == "cuda" else {}),
                "ranks": ("1",),
            },
            accepts={
                "attention": ("flash", "triton"),
                "dtype": ("bfloat16",),
                "graphs": ("piecewise",),
                "mixer": ("nemotron_h", "short_conv", "mamba1"),
                "prefix_match_unit": ("4",),
                "ranks": ("2", "3", "4", "8"),
            },
            documents={"inputs": DOCUMENTS},
            traces_per_second=1.0,
            traces_per_configuration=24,
            features=_FEATURES.union(*connected.values()),
            features_with={
                "runner": {"v2": _HEAD},
                "mixer": {"gdn": _HEAD} | dict.fromkeys(WINDOWED, _HEAD | {"sliding-window"}),
                "inputs": {"tokens": _HEAD, "images": _HEAD | {"images"}, "adapters": frozenset({"adapters"})},
                "prefix_match_unit": {"8": frozenset({"partial-hits"})},
                "connector": connected | {"none": frozenset({"lookahead-hashes"}) | _HEAD},
                "hashing": {"lookahead": frozenset({"lookahead-hashes"})},
                "load_failure": {"fail": frozenset({"failing-loads"})},
            },
            engine=("vllm",),
        )

    def supports(self, config: Config) -> str:
        """Return "", or the reason why a configuration is not supported; the workload then draws another one."""
        return refusal("real", Case(config, options_of(config), device=self.device, gpus=self.gpus))

    def open(self, config: Config) -> Target:
        """Build the engines for one trace."""
        from .target import RealTarget

        return RealTarget(config, self.device, self.fills, self.say)  # type: ignore[arg-type]


def make_factory(name: str, device: str) -> GpuFactory:
    """The factory, for a process that runs in the engine's environment. Imports vLLM."""
    from .placement import device_count
    from .stand_ins import prepare

    stood_in = prepare(device)
    from .real_kit import prepare_process

    prepare_process(device)
    factory = GpuFactory(name, device, stood_in, gpus=device_count() if device == "cuda" else 0)
    if device == "cuda":
        from triton import knobs
        from triton.runtime.autotuner import Autotuner

        from .autotuning import choose_in_registers
        from .compiler import watch_compiler

        choose_in_registers(Autotuner)
        say = lambda what: factory.say(what)  # noqa: E731, PLW0108 - the worker sets `say` later
        watch_compiler(knobs.runtime, say, factory.waited)
    return factory
