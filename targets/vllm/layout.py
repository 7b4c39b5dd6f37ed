"""The cache that vLLM built, in the reference's terms.

Sizes, groups and their order are facts, read from vLLM. What is correct follows from the trace's configuration and from
which bytes are shared, never from a property by which vLLM decides what to do (docs/explanation/vllm-releases.md).
"""

from __future__ import annotations

from typing import Any, Literal

from ...reference.layout import Group, Layout
from ..base.protocol import TargetError
from ..base.trace import Config
from .configuration import drafts_as_eagle
from .options import multiplies_masked


def layout_of(config: Config, is_v2: bool, cache_config: Any) -> Layout:
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
    # All groups draw from one pool: the bytes of a block that passes to attention may be those of a state.
    kinds = {group.kind for group in groups}
    return Layout(
        groups=tuple(groups),
        num_blocks=cache_config.num_blocks,
        conv_width=config.conv_width,
        mode=config.mamba_cache_mode,
        prefix_caching=config.enable_prefix_caching,
        num_speculative_tokens=config.num_speculative_tokens,
        zeroing=kinds == {"mamba", "attention"} and multiplies_masked(config),
        eagle_drop=config.num_speculative_tokens > 0 and drafts_as_eagle(config, is_v2),
        keeps_every_state=config.options.get("retention", "dense") == "dense",
    )
