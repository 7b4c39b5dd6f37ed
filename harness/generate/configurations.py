"""Draws the configuration of a trace.

Each trace has its own, with whole features switched off (swarm testing). Pools are tight: they barely hold the largest
request, so that blocks are reused within some twenty steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from ...targets.base.protocol import Capabilities
from ...targets.base.trace import Config, Group, TraceError, check_config
from .choices import Choices
from .overrides import apply_overrides

CONFIG_TRIES_MAX = 200


def draw_config(choices: Choices, capabilities: Capabilities) -> Config:
    """Return a configuration that the capabilities allow, with a tight pool."""
    mode = choices.pick(capabilities.modes)
    mamba_size, attention_size = choices.pick(capabilities.block_sizes)
    mamba_groups, attention_groups = choices.pick(capabilities.group_counts)
    layers = choices.pick(capabilities.layers_per_group)
    groups = tuple(
        [Group("mamba", mamba_size, layers)] * mamba_groups
        + [Group("attention", attention_size, layers)] * attention_groups
    )
    k = 0
    if mode in capabilities.speculative_modes and choices.chance(60):
        k = choices.integer(0, min(capabilities.max_speculative_tokens, mamba_size - 1))
    groups += _extra_attention(choices, capabilities, attention_size, layers, k > 0)
    depth = choices.integer(0, capabilities.max_async_depth) if choices.chance(40) else 0
    unit = max(mamba_size, attention_size)
    config = Config(
        num_blocks=4096,
        groups=groups,
        mamba_cache_mode=mode,
        enable_prefix_caching=mode != "none",
        num_speculative_tokens=k,
        eagle_block_drop=bool(k) and capabilities.eagle_block_drop and choices.chance(30),
        conv_width=choices.pick(capabilities.conv_widths),
        max_model_len=min(choices.integer(3, 8) * unit, capabilities.max_model_len),
        max_num_seqs=choices.pick((3, 4, 4, 2, 6, 1)),
        max_num_batched_tokens=max(choices.pick((unit * 2, unit * 3, unit + 3, unit - 1, unit * 6)), k + 1),
        long_prefill_token_threshold=choices.integer(1, 2 * unit) if choices.chance(15) else 0,
        async_depth=depth,
        graph_sizes=choices.pick(((1, 2, 4, 8), (2, 4), (4,), ())),
        policy=choices.pick(capabilities.policies),
        options={name: choices.pick(values) for name, values in capabilities.options.items()},
    )
    if not capabilities.has_pool:
        return msgspec.structs.replace(config, num_blocks=config.smallest_pool())
    spare = choices.integer(0, 4) if choices.chance(40) else choices.integer(4, 12 + config.smallest_pool() * 2)
    return msgspec.structs.replace(config, num_blocks=config.smallest_pool() + spare)


def _extra_attention(
    choices: Choices, capabilities: Capabilities, size: int, layers: int, speculative: bool
) -> tuple[Group, ...]:
    """Return additional attention groups, for a window, for chunks and for a drafter, each in some traces only."""
    extra: list[Group] = []
    if capabilities.windows and choices.chance(20):
        window = choices.pick(capabilities.windows)
        extra.append(Group("attention", choices.pick((size, size, min(size, 4))), layers, window=window))
    if capabilities.attention_chunks and choices.chance(12):
        extra.append(Group("attention", size, layers, chunk=size * choices.pick(capabilities.attention_chunks)))
    if capabilities.draft_block_sizes and choices.chance(40 if speculative else 10):
        extra.append(Group("attention", choices.pick(capabilities.draft_block_sizes), draft=True))
    return tuple(extra)


def draw_valid_config(choices: Choices, factory_supports: Callable[[Config], str], capabilities: Capabilities,
                      overrides: Mapping[str, object]) -> Config:  # fmt: skip
    """Return a configuration that fits the overrides and that the target supports. TraceError if none is found."""
    reason = ""
    for _ in range(CONFIG_TRIES_MAX):
        config = apply_overrides(draw_config(choices, capabilities), overrides)
        if "num_blocks" not in overrides and config.num_blocks < config.smallest_pool():
            config = msgspec.structs.replace(config, num_blocks=config.smallest_pool() + choices.integer(0, 12))
        try:
            check_config(config)
        except TraceError as error:
            reason = str(error)
            continue
        reason = factory_supports(config)
        if not reason:
            return config
    raise TraceError(f"no configuration fits the target and the overrides: {reason}")
