"""The cache that vLLM built, in the reference's terms."""

from __future__ import annotations

from typing import Any, Literal

from ...reference.layout import Group, Layout
from ..base.protocol import TargetError
from ..base.trace import Config
from . import compat


def layout_of(config: Config, vllm_config: Any, cache_config: Any) -> Layout:
    """Return the layout that vLLM built, in the reference's terms and with vLLM's order of groups.

    Raises TargetError if vLLM formed other groups than the trace asks for.
    """
    groups = []
    for one in cache_config.kv_cache_groups:
        spec = one.kv_cache_spec
        kind: Literal["mamba", "attention"] = "mamba" if type(spec).__name__ == "MambaSpec" else "attention"
        inner = kind == "mamba" and getattr(spec, "num_prefill_checkpoint_blocks", 0) > 0
        groups.append(Group(kind, spec.block_size, len(one.layer_names), inner_states=inner))
    asked = sorted((group.kind, group.layers) for group in config.groups)
    if asked != sorted((group.kind, group.layers) for group in groups):
        raise TargetError(
            f"vllm forms groups {[(one.kind, one.layers) for one in groups]} out of the layers of {asked}; "
            "use the group counts that the target lists"
        )
    speculation = vllm_config.speculative_config
    return Layout(
        groups=tuple(groups),
        num_blocks=cache_config.num_blocks,
        conv_width=config.conv_width,
        mode=config.mamba_cache_mode,
        prefix_caching=config.enable_prefix_caching,
        num_speculative_tokens=config.num_speculative_tokens,
        zeroing=bool(cache_config.needs_kv_cache_zeroing),
        eagle_drop=bool(speculation and compat.drops_eagle_block(speculation)),
        keeps_every_state=config.options.get("retention", "dense") == "dense",
    )
