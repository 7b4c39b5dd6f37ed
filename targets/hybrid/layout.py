"""The layout that a configuration describes, in the reference's terms."""

from __future__ import annotations

from math import gcd

from ...reference.layout import Layout
from ..base.trace import Config

NULL_BLOCK = 0
"""Placeholder in block tables: never allocated, never written by a request."""


def build_layout(config: Config) -> Layout:
    """Return groups, pool size and features of one trace. Only mode align has keys inside blocks. Lookahead hashes take
    the place of EAGLE's drop."""
    groups = config.layout_groups()
    unit = int(config.options.get("prefix_match_unit", "0"))
    has_lookahead = (
        config.eagle_block_drop and config.enable_prefix_caching and config.options.get("hashing") == "lookahead"
    )
    return Layout(
        groups=groups,
        num_blocks=config.num_blocks,
        conv_width=config.conv_width,
        mode=config.mamba_cache_mode,
        prefix_caching=config.enable_prefix_caching,
        num_speculative_tokens=config.num_speculative_tokens,
        zeroing=any(group.kind == "mamba" for group in groups),
        eagle_drop=config.eagle_block_drop and not has_lookahead,
        lookahead=int(has_lookahead),
        hash_unit=gcd(config.hash_block_size, unit) if unit and config.mamba_cache_mode == "align" else 0,
    )
