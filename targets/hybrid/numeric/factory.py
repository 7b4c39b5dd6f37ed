"""The door of the numeric run: a factory whose targets repeat the work of symbolic ones on bytes."""

from __future__ import annotations

from msgspec import structs

from ...base.protocol import TargetFactory
from ...base.trace import Config
from ..layout import build_layout
from ..target import HybridTarget
from .backend import Device, missing
from .paging import Paging

OPTIONS = {
    "kv_dtype": ("fp8", "fp8", "fp16", "bf16"),
    "state_dtype": ("fp32", "fp32", "bf16"),
    "mixer": ("mamba2", "mamba2", "gated_delta_net"),
    "page_layout": ("padded", "padded", "scaled"),
    "kernel_block": ("0", "0", "2", "4", "8"),
}
LONG_BLOCKS = ((8, 24), (8, 32), (16, 32))
"""(mamba, attention) block sizes where one attention block is large enough for a state of any kind."""


class NumericFactory:
    """Factory for one class of built-in target with a numeric run. Raises TargetError if the device is missing.

    With `bytes_alone` the oracles see only the bytes, neither block tables nor tags.
    """

    def __init__(
        self, name: str, symbolic: TargetFactory, target_class: type[HybridTarget], device: str, *, bytes_alone: bool
    ) -> None:
        used = Device(device)
        from .target import numeric  # needs torch

        self.name = name
        self._symbolic = symbolic
        self._target_class = numeric(target_class, used)
        tags = symbolic.capabilities
        self.capabilities = structs.replace(
            tags,
            observes=frozenset({"numeric"}) | (frozenset() if bytes_alone else tags.observes),
            options={**tags.options, **OPTIONS},
            block_sizes=(*tags.block_sizes, *LONG_BLOCKS),
        )

    def supports(self, config: Config) -> str:
        """Return why a configuration is not supported, "" if it is. Options and page layout must exist."""
        from .device_state import build_model

        for option, values in OPTIONS.items():
            if config.options.get(option, values[0]) not in values:
                return f"{option} must be one of {', '.join(dict.fromkeys(values))}"
        reason = Paging.of(config.options).unsupported(build_layout(config), build_model(config))
        return reason or self._symbolic.supports(config)

    def open(self, config: Config) -> HybridTarget:
        """Return a new engine for one trace."""
        return self._target_class(config)


__all__ = ["NumericFactory", "missing"]
