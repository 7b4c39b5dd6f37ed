"""Differences between SGLang's releases in the tree, and in what a request holds of it and of the pools."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from . import old_releases


def tree_cores() -> tuple[str, ...]:
    """Return the trees that the server can build for hybrid models, the default first.

    These are the cores of the unified cache, or up to 0.5.15 `MambaRadixCache` ("legacy") and, selected by an
    environment variable, the unified cache.
    """
    cache = "sglang.srt.mem_cache"
    if find_spec(f"{cache}.unified_cache"):
        # Without the compiled module (a checkout that was not built) SGLang falls back to the Python core.
        has_rust = find_spec(f"{cache}.rust_tree_core") and find_spec(f"{cache}.rust_tree_core.mem_cache")
        return ("python", "rust") if has_rust else ("python",)
    return ("legacy", "python") if find_spec(f"{cache}.unified_radix_cache") else ("legacy",)


def has_both() -> bool:
    """Return True if two cores of the unified cache can run side by side (0.5.23)."""
    return "rust" in tree_cores() and bool(find_spec("sglang.srt.mem_cache.unified_cache.tree_core_registry"))


def chunk_cache() -> Any:
    """Return the class that replaces the tree without prefix caching up to 0.5.20; None if it is a disabled tree."""
    place = "sglang.srt.mem_cache.chunk_cache"
    return import_module(place).ChunkCache if find_spec(place) else None


def order_sets() -> None:
    """Let sets of tree nodes and of requests have the same order in each run.

    SGLang orders them by address, and with them the nodes of a tag that is released (`TreeComponent.release_session`,
    0.5.23), and the requests that one of a higher priority preempts (`PrefillAdder.preempt_to_schedule`): which node is
    evicted first, and which request waits first, is left to chance.
    """
    from sglang.srt.managers.schedule_batch import Req

    Req.__hash__ = lambda request: 0
    if find_spec("sglang.srt.mem_cache.unified_cache"):
        from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeNode

        UnifiedTreeNode.__hash__ = lambda node: 0


@cache
def component_types() -> Any:
    """Return the enumeration of the unified cache's components; FULL and MAMBA are used here."""
    place = "unified_cache" if find_spec("sglang.srt.mem_cache.unified_cache") else "unified_cache_components"
    kind = "component_type" if place == "unified_cache" else "tree_component"
    return import_module(f"sglang.srt.mem_cache.{place}.{kind}").ComponentType


def root_of(cache: Any) -> Any:
    """Return the root node of the tree."""
    return getattr(cache, "tree_core", cache).root_node


def tokens_of(node: Any) -> tuple[int, ...]:
    """Return a node's own tokens."""
    key = node.key
    return tuple(key.raw_token_ids() if hasattr(key, "raw_token_ids") else key.token_ids)


def values_of(node: Any) -> tuple[Any, int, Any, int]:
    """Return a node's KV locations, their lock count, its state slot and the slot's lock count."""
    if not hasattr(node, "component_data"):
        return node.value, node.full_lock_ref, node.mamba_value, node.mamba_lock_ref
    ComponentType = component_types()
    full, state = node.component_data[ComponentType.FULL], node.component_data[ComponentType.MAMBA]
    return full.value, full.lock_ref, state.value, state.lock_ref


def window_values_of(node: Any) -> tuple[Any, int]:
    """Return a node's locations in the pool of layers with a sliding window, and their lock count."""
    window = node.component_data[component_types().SWA]
    return window.value, window.lock_ref


def window_locks_of(cache: Any, owner: Any) -> set[Any]:
    """Return the ids of the nodes whose window a request has locked."""
    lock = owner.lock
    return set() if not lock or lock.swa_released else locked_windows(cache, lock.receipt)


def locked_windows(cache: Any, receipt: Any) -> set[Any]:
    """Return the ids of the nodes whose window a lock has locked: from that of the lock to the marked one."""
    kind = component_types().SWA
    if kind in receipt.skipped_lock_components:
        return set()
    locked, last = set(), receipt.component_lock_uuids.get(kind)
    for node in path_of(cache, receipt.node_id):
        locked.add(node.id)
        if last is not None and node.component_data[kind].metadata.get("uuid") == last:
            break
    return locked


def host_values_of(node: Any) -> dict[int, Any]:
    """Return a node's places in the host's pools by group: of its state, its KV locations and its window."""
    kinds = component_types()
    groups = dict(enumerate((kinds.MAMBA, kinds.FULL, kinds.SWA)))
    places = {group: node.component_data[kind].host_value for group, kind in groups.items()}
    return {group: found for group, found in places.items() if found is not None}


def host_locks_of(node: Any) -> int:
    """Return how often a node's places in the host's pools are locked, those of all pools together."""
    locks: int = sum(one.host_lock_ref for one in node.component_data)
    return locks


def stranded_on_host(cache: Any, node: Any) -> int:
    """Return how many of a node's states and windows are on the host alone, unlocked, and not listed for eviction."""
    kinds, lists = component_types(), cache.tree_core.host_lru_lists
    parts = {kind: node.component_data[kind] for kind in (kinds.MAMBA, kinds.SWA) if kind in lists}
    alone = [
        kind
        for kind, part in parts.items()
        if part.host_value is not None and part.value is None and not part.host_lock_ref
    ]
    return sum(not lists[kind].in_list(node) for kind in alone)


def path_of(cache: Any, name: int) -> list[Any]:
    """Return the nodes from one, given by its id, to the root, which is left out."""
    node, path = cache.tree_core.node_by_id(name), []
    while node is not root_of(cache):
        path.append(node)
        node = node.parent
    return path


def state_lock_of(request: Any) -> Any:
    """Return the id of the node whose state a request has locked, None if there is none."""
    lock = getattr(request, "lock", None)
    receipt = lock.receipt if lock else getattr(request, "lock_receipt", None)  # a TreeLock since 0.5.21
    if getattr(lock, "swa_released", False):  # that of the state goes with it
        return None
    if receipt is not None:
        return None if component_types().MAMBA in receipt.skipped_lock_components else receipt.node_id
    # Up to 0.5.19 there is no receipt: the lock exists as long as the row.
    if hasattr(request, "lock") or row_of(request) is None:
        return None
    skipped = getattr(request, "skip_lock_node_ids", None)
    if skipped and component_types().MAMBA in skipped:
        return None
    return getattr(request.last_node, "id", request.last_node)


def evict(cache: Any, tokens: int, states: int, windows: int = 0) -> None:
    """Evict tokens, states, and tokens of layers with a sliding window that no request has locked."""
    from sglang.srt.mem_cache import base_prefix_cache

    if not hasattr(base_prefix_cache, "EvictParams"):
        old_releases.evict_each(cache, tokens, states)
        return
    more = {"swa_num_tokens": windows} if windows else {}
    cache.evict(base_prefix_cache.EvictParams(num_tokens=tokens, mamba_num=states, **more))


def evict_host(cache: Any, tokens: int, states: int, windows: int = 0) -> None:
    """Evict tokens, states, and tokens of layers with a sliding window from the host."""
    kinds = component_types()
    for size, kind in ((tokens, kinds.FULL), (states, kinds.MAMBA), (windows, kinds.SWA)):
        if size:
            cache.evict_host(size, kind)


def states_of(request: Any) -> Any:
    """Return the object that holds a request's state slots: its KV record, up to 0.5.17 the request itself."""
    kv = getattr(request, "kv", None)
    return kv if hasattr(kv, "mamba_pool_idx") else request


def row_of(request: Any) -> int | None:
    """Return the row of a request in the table of KV locations, None if it has none."""
    kv: Any = getattr(request, "kv", None)
    if hasattr(request, "client_row"):
        followed: int | None = request.client_row
        return followed
    row: int | None = (kv if hasattr(kv, "req_pool_idx") else request).req_pool_idx
    return row


def allocated(request: Any) -> int:
    """Return the number of KV locations in a request's row."""
    kv = getattr(request, "kv", None)
    tokens: int = kv.kv_allocated_len if kv is not None else getattr(request, "kv_allocated_len", 0)
    return tokens


def slots_of(request: Any) -> tuple[int, ...]:
    """Return a request's state slots by role: the working one, then those for snapshots; 0 where there is none."""
    kv = states_of(request)
    tracks = getattr(kv, "mamba_ping_pong_track_buffer", None)
    if kv.mamba_pool_idx is None and tracks is None:
        return ()
    working = 0 if kv.mamba_pool_idx is None else int(kv.mamba_pool_idx)
    return (working, *(() if tracks is None else (0 if slot == -1 else slot for slot in tracks.tolist())))
