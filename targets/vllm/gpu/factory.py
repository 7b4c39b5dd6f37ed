"""What the vLLM target can do with a real model on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ...base.protocol import Capabilities, Target
from ...base.trace import Config
from ..options import UNSCRIPTED, Options, changed, options_of
from .models import KEY_VALUE, NO_DRAFTS, STATE_KIND, has_layers, layer_kinds

_EVENTS = frozenset({"arrive", "step", "preempt", "abort", "dummy_run", "reset_prefix_cache", "evict"})
_OBSERVES = frozenset(
    {"pool", "labels", "tables", "accesses", "content", "device_order", "estimates", "leftovers", "real_model"}
)
_SHADOW_ONLY = ("admission", "connector", "data_parallel", "metadata", "prefix_match_unit", *UNSCRIPTED)
"""Options of the shadow layers' engine, which a real model has at their defaults."""
FILLS: tuple[Literal["zero", "random", "nan"], ...] = ("random", "nan")
"""What unused memory holds in the engines of one target."""


class GpuFactory:
    """Opens engines with real models. `stood_in`: what is not vLLM's own here, one clause each."""

    def __init__(self, name: str, device: str, stood_in: Sequence[str], fills: Sequence[str] = FILLS) -> None:
        self.name = name
        self.device = device
        self.stood_in = tuple(stood_in)
        self.fills = fills
        self.capabilities = Capabilities(
            events=_EVENTS,
            modes=("align", "none"),
            observes=_OBSERVES,
            # The attention kernel takes multiples of 16.
            block_sizes=((16, 16), (32, 32)),
            group_counts=((1, 1), (2, 1), (3, 1), (1, 2)),
            layers_per_group=(1, 2),
            max_speculative_tokens=4,
            speculative_modes=("align", "none"),
            variable_drafts=True,
            max_async_depth=1,
            policies=("fcfs", "priority"),
            conv_widths=(4,),
            max_model_len=160,
            options={
                "runner": ("v2", "v1"),
                "retention": ("dense", "default"),
                "graphs": ("decode", "none"),
                "mixer": ("gdn", "mamba2"),
                "dtype": ("float32",),
            },
            accepts={
                "dtype": ("bfloat16",),
                "graphs": ("piecewise",),
                "mixer": ("nemotron_h", "short_conv", "mamba1"),
            },
            traces_per_second=1.0,
            traces_per_configuration=24,
            features=frozenset({"block-tables", "padding"}),
            engine=("vllm",),
        )

    def supports(self, config: Config) -> str:
        """Return "", or the reason why a configuration is not supported; the workload then draws another one."""
        if {group.kind for group in config.groups} != {"mamba", "attention"}:
            return "its models have layers of both kinds"
        if any(group.block_size % 16 for group in config.groups):
            return "its attention kernel takes block sizes that are multiples of 16"
        if config.conv_width not in self.capabilities.conv_widths:
            return f"its convolution has {self.capabilities.conv_widths[0]} taps"
        if config.mamba_cache_mode not in self.capabilities.modes:
            return f"its models have no mamba_cache_mode={config.mamba_cache_mode}"
        if config.eagle_block_drop:
            return "its models have no EAGLE head"
        options = options_of(config)
        if self.device != "cuda" and options.graphs == "piecewise":
            return "piecewise graphs need a GPU"
        if option := changed(options, _SHADOW_ONLY):
            return f"{option} is driven on the shadow layers only"
        if any(group.window or group.chunk or group.draft for group in config.groups):
            return "its models have full attention only, and the drafter has no layer"
        return self._model_supports(config, options)

    @staticmethod
    def _model_supports(config: Config, options: Options) -> str:
        mixer = options.mixer
        if mixer not in KEY_VALUE:
            return f"there is no real model with mixer={mixer}"
        if not has_layers(mixer, layer_kinds(config)):
            return "Jamba's layers have a period: as many state layers before each attention layer"
        if mixer in NO_DRAFTS and config.num_speculative_tokens:
            return f"mixer={mixer} is not driven with speculation on real models"
        if STATE_KIND.get(mixer, mixer) == "mamba2":
            spare = sum(group.kind == "mamba" for group in config.groups)
            if config.num_blocks < config.smallest_pool() + spare:
                return "a chunk of a Mamba 2 layer may keep one state more: raise num_blocks"
        is_large = mixer not in ("gdn", "short_conv") and options.dtype == "bfloat16"
        if is_large and config.groups[0].block_size < 32:
            return "a page of 16 bfloat16 keys and values is smaller than a state"
        return ""

    def open(self, config: Config) -> Target:
        """Build the engines for one trace."""
        from .comparison import Comparison, tolerance
        from .same_steps import has_exact_reference, same_steps
        from .same_tokens import same_tokens
        from .target import RealTarget

        exact = same_steps(config, self.device) if has_exact_reference(config) else None
        comparison = Comparison(same_tokens(config, self.device), tolerance(config, self.device))
        return RealTarget(config, self.device, self.fills, comparison, exact)  # type: ignore[arg-type]


def make_factory(name: str, device: str) -> GpuFactory:
    """The factory, for a process that runs in the engine's environment. Imports vLLM."""
    from .devices import prepare

    stood_in = prepare(device)
    from .engine import prepare_process

    prepare_process(device)
    return GpuFactory(name, device, stood_in)
