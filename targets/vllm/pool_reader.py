"""The adapter's only reader of vLLM's block pool, hash map, free queue and block tables.

A field that another release has under another name mostly needs no change: `base.renamed` finds it by its structure and
gives it its old name back. What that does not find is changed here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain as chained
from types import SimpleNamespace
from typing import Any

from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id

from ..base.observe import Table
from ..base.renamed import old_name


class Pool:
    """The blocks of one cache manager. A *label* is vLLM's key of a block: a hash with the index of a group."""

    def __init__(self, manager: Any) -> None:
        self._pool = manager.block_pool
        self._groups = manager.coordinator.single_type_managers
        self._zero_lists = [group for group in self._groups if hasattr(group, "new_block_ids")]
        self._per_request = [
            (f"{name} of group {index}", group, name)
            for index, group in enumerate(self._groups)
            for name, value in vars(group).items()
            if isinstance(value, dict) and old_name(group, name) != "cached_blocks_this_step"
        ]
        """What a group keeps per request: title, group, attribute."""

    def cached(self) -> Iterator[tuple[Any, Collection[int]]]:
        """Yield each label that lookups can find, with its blocks."""
        for label, blocks in self._pool.cached_block_hash_to_block._cache.items():
            yield label, blocks if isinstance(blocks, dict) else (blocks.block_id,)

    def labels(self) -> list[tuple[int, Any]]:
        """Return (block, label) of each block that has a label, whether lookups can find it or not."""
        return [(block.block_id, label) for block in self._pool.blocks if (label := block.block_hash) is not None]

    def references(self) -> list[int]:
        """Return the number of references to each block; the null block has none."""
        return [0 if block.is_null else block.ref_cnt for block in self._pool.blocks]

    def free(self) -> list[int]:
        """Return the free queue, the block that is taken next first."""
        return [block.block_id for block in self._free_blocks()]

    def free_unlabelled(self) -> set[int]:
        """Return the free blocks without a label."""
        return {block.block_id for block in self._free_blocks() if block.block_hash is None}

    def evict_oldest(self, count: int) -> None:
        """Evict up to `count` free blocks that have labels, in the order of the free queue."""
        labelled = [block.block_id for block in self._free_blocks() if block.block_hash is not None]
        self._pool.evict_blocks(set(labelled[:count]))

    def _free_blocks(self) -> Sequence[Any]:
        blocks: Sequence[Any] = self._pool.free_block_queue.get_all_free_blocks()
        return blocks

    def tables(self) -> dict[str, Table]:
        """Return the block ids of every request that holds blocks, by group."""
        tables = [group.req_to_blocks for group in self._groups]
        return {
            name: tuple([tuple([block.block_id for block in table.get(name, ())]) for table in tables])
            for name in dict.fromkeys(chained.from_iterable(tables))
        }

    def labelled(self, group: int, name: str) -> Iterator[tuple[int, int, int]]:
        """Yield (column, block, tokens that its label covers) of each block with a label in a request's table."""
        for column, block in enumerate(self._groups[group].req_to_blocks[name]):
            if block.block_hash_num_tokens is not None and not block.is_null:
                yield column, block.block_id, block.block_hash_num_tokens

    def to_zero(self) -> int:
        """Return the number of new blocks whose zeroing the next plan orders."""
        return sum([len(group.new_block_ids) for group in self._zero_lists])

    def per_request(self) -> Iterator[tuple[str, int]]:
        """Yield (title, size) of everything that the groups keep for requests."""
        for title, group, name in self._per_request:
            yield title, len(getattr(group, name))

    def unpublished_events(self) -> Iterable[Any]:
        """Return the KV cache events that wait for the end of the step."""
        events: Iterable[Any] = self._pool.kv_event_queue
        return events


def pool_of(scheduler: Any) -> Pool:
    """Return the pool of a scheduler."""
    return Pool(scheduler.kv_cache_manager)


def host_pool_of(coordinator: Any) -> Pool:
    """Return the pool of host blocks that a connector keeps with a coordinator of its own."""
    return Pool(SimpleNamespace(block_pool=coordinator.block_pool, coordinator=coordinator))


def ids_of(blocks: Iterable[Any]) -> Iterator[int]:
    """Yield the ids of blocks, but of the null block."""
    yield from (block.block_id for block in blocks if not block.is_null)


def split(label: Any) -> tuple[int, Any]:
    """Return the group and the hash of a label."""
    return get_group_id(label), get_block_hash(label)


def hash_count(request: Any) -> int:
    """Return how many of a request's blocks are hashed."""
    return len(request.block_hashes)


def is_unlabelled(allocated: Any, group: int, column: int) -> bool:
    """Return True if a block of those that the manager allocated to a request has no label."""
    return allocated.blocks[group][column].block_hash is None


def blocks_to_free(scheduler: Any) -> Iterator[int]:
    """Yield the blocks that are freed once the steps in flight have run, each once for each reference; a table's null
    entries are none."""
    for _, blocks in getattr(scheduler, "deferred_frees", ()):
        yield from (block.block_id for block in blocks if not block.is_null)


class Admissions:
    """Records, by request, the blocks that the admission check estimates and those taken from the free queue."""

    def __init__(self, scheduler: Any) -> None:
        manager = scheduler.kv_cache_manager
        self.counts: dict[str, tuple[int, int]] = {}
        self._pool = manager.block_pool
        self._foreseen: list[tuple[int, int]] = []
        """(estimate, free blocks at that moment) of the checks of the allocation under way."""
        self._estimate = manager.coordinator.get_num_blocks_to_allocate
        self._allocate = manager.allocate_slots
        manager.coordinator.get_num_blocks_to_allocate = self._estimating
        manager.allocate_slots = self._allocating

    def _estimating(self, *arguments: Any, **keywords: Any) -> int:
        estimate: int = self._estimate(*arguments, **keywords)
        self._foreseen.append((estimate, self._pool.get_num_free_blocks()))
        return estimate

    def _allocating(self, request: Any, *arguments: Any, **keywords: Any) -> Any:
        self._foreseen.clear()
        blocks = self._allocate(request, *arguments, **keywords)
        if blocks is not None and self._foreseen:
            # The last check counts; an earlier one is for the whole sequence.
            estimate, free = self._foreseen[-1]
            self.counts[request.request_id] = estimate, free - self._pool.get_num_free_blocks()
        return blocks
