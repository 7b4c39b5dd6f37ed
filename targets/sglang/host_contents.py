"""What the host tier of HiCache holds: contents by key, nodes locked by copies, places of the pools that are astray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from ...reference.prefix_cache import Key
from ..base.observe import Content, SlotContent, StateContent
from .compat import tree_api
from .compat.engine import ATTENTION, STATES, WINDOW
from .host_tier import HostTier
from .trees import nodes

POOLS = {STATES: "states", ATTENTION: "tokens", WINDOW: "tokens of windows"}
"""The host's pools."""


def stored(tier: HostTier) -> dict[Key, list[Content]]:
    """Return what nodes of the tree have on the host, except where the copy is under way."""
    found: dict[Key, list[Content]] = {}
    page, states = tier.engine.sizes.page, tier.places[STATES]
    for node, depth, tags in nodes(tier.engine):
        if node.write_through_pending_id is not None:
            continue
        for group, held in tree_api.host_values_of(node).items():
            if group == STATES:
                found[Key(STATES, depth + len(tags), tags[-1])] = [
                    StateContent(states.read(0, layer, held)[0], tuple(states.read(1, layer, held)[0]))
                    for layer in range(states.layers)
                ]
                continue
            tokens = tier.places[group]
            for index in range(0, len(held), page):
                places, end = held[index : index + page], index + page
                key = Key(group, depth + end, tags[end - 1])
                found[key] = [SlotContent(tokens.read(0, layer, places)) for layer in range(tokens.layers)]
    return found


def locked_by_copies(tier: HostTier) -> Iterator[dict[int, set[Any]]]:
    """Yield, for each copy under way, the nodes that it has locked by group: only the first one's state."""
    copies = *tier.cache.ongoing_write_through.values(), *tier.cache.ongoing_load_back.values()
    locks = [lock for _, lock, *_ in copies]
    pipeline = tier.cache.buffer_pipeline
    if pipeline is not None:
        locks += [entry.lock_params for entry in pipeline.ongoing_write_through.values()]
        for anchor in pipeline.anchor_locks.values():
            yield {STATES: set(), ATTENTION: _path(tier, anchor.node_id), WINDOW: set()}
    for lock in locks:
        if lock is not None:
            windows = tree_api.locked_windows(tier.cache, lock) if tier.engine.sizes.sliding else set()
            yield {STATES: {lock.node_id}, ATTENTION: _path(tier, lock.node_id), WINDOW: windows}


def is_copying(tier: HostTier) -> bool:
    """Return True if a copy is under way that holds blocks of the device."""
    return any(True for _ in locked_by_copies(tier)) or bool(slots_of_duplicate_loads(tier))


def slots_of_duplicate_loads(tier: HostTier) -> list[int]:
    """Return the slots that loads fill with states that the tree already has: they are freed after the load."""
    pipeline = tier.cache.buffer_pipeline
    loads = pipeline.ongoing_buffer_load_back.values() if pipeline is not None else ()
    freed = [one for load in loads for one in load.aux_device_releases]
    return [slot for name, slots in freed if tier.group_of(name) == STATES for slot in slots.tolist()]


def _path(tier: HostTier, name: Any) -> set[Any]:
    return {node.id for node in tree_api.path_of(tier.cache, name)}


def astray(tier: HostTier) -> dict[str, int]:
    """Return, for each pool of the host, how many places are neither free nor of exactly one node."""
    held = {group: Counter[int]() for group in tier.pools}
    for node, _, _ in nodes(tier.engine):
        for group, places in tree_api.host_values_of(node).items():
            held[group].update(places.tolist())
    for group, places in prefetched(tier):
        held[group].update(places)
    return {
        f"host {name}": sum(held[group].values())
        - len(held[group])
        + abs(tier.pools[group].size - tier.pools[group].available_size() - len(held[group]))
        for group, name in POOLS.items()
        if group in held
    }


def stuck(tier: HostTier) -> dict[str, int]:
    """Return how many locks of places in the host's pools are left while nothing is under way that needs them, and how
    many states and windows the host holds alone and never evicts although nothing locks them."""
    locks = stranded = 0
    for node, _, _ in nodes(tier.engine):
        locks += tree_api.host_locks_of(node)
        stranded += tree_api.stranded_on_host(tier.cache, node)
    return {"host locks": locks * tier.is_done(), "host contents that cannot be evicted": stranded}


def unsaved(tier: HostTier) -> int:
    """Return how many pages the host holds, and the storage behind it does not; 0 while something is under way, and
    where a storage loses pages by itself, or a client has cleared or detached it."""
    storage = tier.storage
    if storage is None or tier.engine.sizes.storage_limits != "no" or storage.has_gaps or not tier.is_done():
        return 0
    settled = [node for node, _, _ in nodes(tier.engine) if node.write_through_pending_id is None]
    held = [node for node in settled if ATTENTION in tree_api.host_values_of(node)]
    return sum(not storage.has(page) for node in held for page in node.hash_value or ())


def prefetched(tier: HostTier) -> Iterator[tuple[int, set[int]]]:
    """Yield, by pool, the places of prefetches under way and of those that wait to be released."""
    found: dict[int, set[int]] = {group: set() for group in tier.pools}
    if tier.storage is not None:
        for name, places in tier.storage.places():
            found[ATTENTION if name is None else tier.group_of(name)].update(places.tolist())
        for info in tier.cache.ongoing_prefetch.values():
            found[ATTENTION].update([] if info.host_indices is None else info.host_indices.tolist())
            _add(tier, found, [one for transfers in info.comp_xfers.values() for one in transfers])
    pipeline = tier.cache.buffer_pipeline
    if pipeline is not None:
        held = pipeline.ongoing_write_through, pipeline.ongoing_backup, pipeline.staged_prefetches
        for entry in (one for ones in (*held, pipeline.ongoing_buffer_load_back) for one in ones.values()):
            found[ATTENTION].update(entry.host_indices.tolist())
            _add(tier, found, entry.aux_xfers)
    yield from found.items()


def _add(tier: HostTier, found: dict[int, set[int]], transfers: Iterable[Any]) -> None:
    for transfer in transfers:
        if transfer.host_indices is not None:
            found[tier.group_of(transfer.name)].update(transfer.host_indices.tolist())
