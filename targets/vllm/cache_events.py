"""A subscriber to vLLM's KV cache events, which knows the cache from them alone, as a router of requests does.

An event is one key of one block: stored, removed, or all of them removed. The keys that the subscriber believes to be
cached must be those of vLLM's own map, each as often as blocks have it; otherwise requests are routed to a server
that has not cached their prefix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from vllm.config import KVEventsConfig
from vllm.distributed.kv_events import MEDIUM_GPU, AllBlocksCleared, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from .pool_reader import pool_of, split


def switch_on(vllm_config: Any) -> None:
    """Make the scheduler publish events. A `Subscriber` replaces its publisher once it is built."""
    vllm_config.kv_events_config = KVEventsConfig(enable_kv_cache_events=True, publisher="null")


class Subscriber:
    """A publisher, in place of vLLM's sockets, that counts the keys that events report."""

    def __init__(self, scheduler: Any) -> None:
        self.stored: Counter[tuple[int, Any]] = Counter()
        """(group, hash) -> blocks that are believed to be cached under it."""
        self._pool = pool_of(scheduler)
        self._keys: dict[Any, tuple[int, Any]] = {}
        scheduler.kv_event_publisher = self

    def publish(self, batch: Any) -> None:
        """Take over the events of one step."""
        _take_over(self.stored, batch.events)

    def get_publisher_config(self) -> None:
        """Return None: only a socket has a configuration."""

    def shutdown(self) -> None:
        """Do nothing: there is no socket."""

    def contradictions(self) -> int:
        """Return the number of keys that are not reported as often as blocks have them, once the events that wait for
        the end of the step are counted."""
        believed = self.stored.copy()
        _take_over(believed, self._pool.unpublished_events())
        for label, blocks in self._pool.cached():
            believed[self._key(label)] -= len(blocks)
        return sum(1 for count in believed.values() if count)

    def _key(self, label: Any) -> tuple[int, Any]:
        key = self._keys.get(label)
        if key is None:
            group, block_hash = split(label)
            key = self._keys[label] = group, maybe_convert_block_hash(block_hash)
        return key


def _take_over(stored: Counter[tuple[int, Any]], events: Iterable[Any]) -> None:
    for event in events:
        if getattr(event, "medium", MEDIUM_GPU) != MEDIUM_GPU:
            continue  # of the host's tier
        if isinstance(event, AllBlocksCleared):
            stored.clear()
        elif isinstance(event, BlockStored):
            stored.update((event.group_idx, one) for one in event.block_hashes)
        elif isinstance(event, BlockRemoved):
            stored.subtract((event.group_idx, one) for one in event.block_hashes)
