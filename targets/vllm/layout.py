"""The cache that vLLM built, in the reference's terms.

Sizes, groups and their order are facts, read from vLLM. What is correct follows from the trace's configuration and from
which bytes are shared, never from a property by which vLLM decides what to do (docs/explanation/vllm-releases.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm
from typing import Any, Literal, NamedTuple

from ...reference.layout import Group, Layout
from ..base.protocol import TargetError
from ..base.trace import Config
from .options import DRAFT_LAYER, DROPPED_TOKENS, HEAD, asks_for_lookahead, multiplies_masked, options_of, state_parts
from .shadow_config import drafts_as_eagle
from .sizes import hash_unit


def _shape(group: Group) -> tuple[str, int, int, bool, int, int]:
    """Return what identifies a group; without the block size of states, which vLLM chooses."""
    size = group.block_size if group.kind == "attention" else 0
    return group.kind, size, group.layers, group.draft, group.window, group.chunk


class _Units(NamedTuple):
    """Units in tokens, as in `Layout`: 0 for a block."""

    hashed: int = 0
    eagle: int = 0
    published: int = 0


def _units(config: Config, groups: Sequence[Group]) -> _Units:
    """Return the units of keys, of EAGLE's drop and of publication, if they are not blocks.

    Keys are as fine as the smallest unit that divides all blocks, or as the trace asks for. A hit may end inside a
    block if that is finer than the blocks of states, and if local attention has blocks of just that size.
    """
    if config.mamba_cache_mode != "align":
        return _Units()
    unit, largest = hash_unit(config), max(group.block_size for group in groups)
    if unit == largest:
        return _Units()
    local = all(group.block_size == unit for group in groups if group.is_local)
    if local and any(group.kind == "mamba" and group.block_size > unit for group in groups):
        return _Units(unit, unit)
    return _Units(unit, published=lcm(*(group.block_size for group in groups)))


def _eagle_groups(groups: Sequence[Group]) -> frozenset[int]:
    """Return the groups whose hits lose their last unit, by EAGLE's rule.

    vLLM looks up groups of one shape together, and drops the last unit of all that have the drafter's.
    """
    drafting = [group.block_size for group in groups if group.draft]
    return frozenset(
        index
        for index, group in enumerate(groups)
        if group.kind == "attention" and (not drafting or (group.block_size in drafting and not group.is_local))
    )


def layout_of(config: Config, is_v2: bool, cache_config: Any) -> Layout:
    """Return the layout that vLLM built, in the reference's terms and with vLLM's order of groups.

    Raises TargetError if vLLM formed other groups than the trace asks for.
    """
    groups, parts, options = [], state_parts(config), options_of(config)
    for one in cache_config.kv_cache_groups:
        spec = one.kv_cache_spec
        kind: Literal["mamba", "attention"] = "mamba" if type(spec).__name__ == "MambaSpec" else "attention"
        inner = kind == "mamba" and getattr(spec, "num_prefill_checkpoint_blocks", 0) > 0
        draft = any(name == DRAFT_LAYER or name.startswith(HEAD) for name in one.layer_names)
        window, chunk = getattr(spec, "sliding_window", 0) or 0, getattr(spec, "attention_chunk_size", 0) or 0
        groups.append(
            Group(
                kind,
                spec.block_size,
                len(one.layer_names),
                draft,
                window,
                inner_states=inner,
                chunk=chunk,
                shift=draft,
                recurrent=parts.recurrent or kind != "mamba",
                conv=parts.conv or kind != "mamba",
            )
        )
    asked = sorted(_shape(group) for group in config.layout_groups())
    if asked != sorted(map(_shape, groups)):
        raise TargetError(
            f"vllm forms groups {sorted(map(_shape, groups))} out of the layers of {asked}; "
            "use the group counts that the target lists"
        )
    kinds = {group.kind for group in groups}
    units = _units(config, groups)
    as_eagle = config.num_speculative_tokens > 0 and drafts_as_eagle(config, is_v2)
    has_lookahead = as_eagle and asks_for_lookahead(config)
    drops = as_eagle and not has_lookahead
    return Layout(
        groups=tuple(groups),
        num_blocks=cache_config.num_blocks,
        conv_width=config.conv_width,
        mode=config.mamba_cache_mode,
        prefix_caching=config.enable_prefix_caching,
        num_speculative_tokens=config.num_speculative_tokens,
        # All groups draw from one pool: the bytes of a block that passes to attention may be those of a state.
        zeroing=kinds == {"mamba", "attention"} and multiplies_masked(config),
        eagle_drop=drops,
        eagle=_eagle_groups(groups) if drops else None,
        lookahead=int(has_lookahead),
        hash_unit=units.hashed,
        eagle_unit=units.eagle,
        publish_unit=units.published,
        keeps_every_state=options.retention == "dense",
        resume_drops=DROPPED_TOKENS,
        loads_complete_hits=options.connector == "transfer",
    )
