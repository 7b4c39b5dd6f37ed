"""What the host tier of HiCache holds: contents by key, nodes locked by copies, places of the pools that are astray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from ...reference.prefix_cache import Key
from ..base.observe import Content, SlotContent, StateContent
from .compat import tree_api
from .compat.engine import ATTENTION, STATES
from .host_tier import HostTier
from .trees import nodes


def stored(tier: HostTier) -> dict[Key, list[Content]]:
    """Return what nodes of the tree have on the host, except where the copy is under way."""
    found: dict[Key, list[Content]] = {}
    for node, depth, tags in nodes(tier.engine):
        if node.write_through_pending_id is not None:
            continue
        kv, state = tree_api.host_values_of(node)
        page = tier.engine.sizes.page
        for index in range(0, 0 if kv is None else len(kv), page):
            places, end = kv[index : index + page].tolist(), index + page
            key = Key(ATTENTION, depth + end, tags[end - 1])
            found[key] = [SlotContent(layer[places].tolist()) for layer in tier.keys]
        if state is not None:
            (slot,) = state.tolist()
            found[Key(STATES, depth + len(tags), tags[-1])] = [
                StateContent(int(temporal[slot]), tuple(window[slot].tolist()))
                for temporal, window in zip(tier.temporal, tier.window, strict=True)
            ]
    return found


def locked_paths(tier: HostTier) -> Iterator[list[Any]]:
    """Yield the nodes that a copy under way has locked: keys and values of all, the state of the first."""
    for name, lock, *_ in (*tier.cache.ongoing_write_through.values(), *tier.cache.ongoing_load_back.values()):
        if lock is not None:
            yield tree_api.path_of(tier.cache, name)


def astray(tier: HostTier) -> dict[str, int]:
    """Return, for each pool of the host, how many places are neither free nor of exactly one node."""
    held = {STATES: Counter[int](), ATTENTION: Counter[int]()}
    for node, _, _ in nodes(tier.engine):
        for group, places in zip((ATTENTION, STATES), tree_api.host_values_of(node), strict=True):
            held[group].update([] if places is None else places.tolist())
    return {
        f"host {name}": sum(held[group].values())
        - len(held[group])
        + abs(tier.pools[group].size - tier.pools[group].available_size() - len(held[group]))
        for group, name in ((STATES, "states"), (ATTENTION, "tokens"))
    }
