"""The host's metadata: vLLM's block pool, tables and queues as a `View`.

Block hashes become keys: the wrapped hasher knows the request, hence the depth and the tokens, of every hash.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from ...reference.prefix_cache import Key
from ...reference.tokens import EMPTY, Truth, mix
from ..base.observe import Content, Table, View
from .versions import compat

_UNKNOWN_DEPTH = -1
HANDED_ON = {
    "requests", "finished_req_ids", "finished_req_ids_dict", "prev_step_scheduled_req_ids", "reset_preempted_req_ids",
}  # fmt: skip
"""Collections of the scheduler that are counted elsewhere, or that the next plan takes over and replaces."""


class KeyBook:
    """Maps every block hash to its prefix. `truths` give the content of the requests' tokens."""

    def __init__(self, hash_block_size: int, truths: Mapping[str, Truth]) -> None:
        self._size = hash_block_size
        self._truths = truths
        self._prefixes: dict[bytes, tuple[int, int]] = {}
        self._tags: dict[str, list[int]] = {}

    def names_in(self, collection: Iterable[Any]) -> int:
        """Return how many entries are requests that ever arrived, or their names."""
        names = [getattr(entry, "request_id", entry) for entry in collection]
        return sum([isinstance(name, str) and name in self._truths for name in names])

    def recording(self, hasher: Callable[[Any], list[Any]]) -> Callable[[Any], list[Any]]:
        """Wrap the hasher to record every hash that it makes."""

        def hash_blocks(request: Any) -> list[Any]:
            first = len(request.block_hashes)
            hashes = hasher(request)
            if hashes:
                tags = self._tags_of(request, (first + len(hashes)) * self._size)
                for index, one in enumerate(hashes, first + 1):
                    self._prefixes[one] = index * self._size, tags[index * self._size]
            return hashes

        return hash_blocks

    def forget(self, name: str, length: int) -> None:
        """Forget the tokens of a request from `length` on."""
        del self._tags.get(name, [])[length + 1 :]

    def _tags_of(self, request: Any, length: int) -> list[int]:
        tags = self._tags.setdefault(request.request_id, [EMPTY])
        first = len(tags) - 1
        tokens, truth = request.all_token_ids[first:length], self._truths.get(request.request_id)
        for token in tokens if truth is None or truth.is_plain else truth.contents(first, tokens):
            tags.append(mix(tags[-1], token))
        return tags

    def key(self, group: int, block_hash: bytes) -> Key:
        """Return the key that a hash stands for in a group."""
        depth, tag = self._prefixes.get(block_hash, (_UNKNOWN_DEPTH, 0))
        return Key(group, depth, tag)


class Host:
    """Reads the metadata of the scheduler and of its cache managers."""

    def __init__(self, scheduler: Any, worker: Any, keys: KeyBook) -> None:
        from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id

        self.scheduler = scheduler
        self.worker = worker
        self.manager = scheduler.kv_cache_manager
        self.pool = self.manager.block_pool
        self.groups = self.manager.coordinator.single_type_managers
        self._keys = keys
        self._split = get_block_hash, get_group_id
        self._known: dict[Any, Key] = {}
        self._queues = compat.waiting_queues(scheduler)
        self._zero_lists = [group for group in self.groups if hasattr(group, "new_block_ids")]
        self._per_request = [
            (f"{name} of group {index}", group, name)
            for index, group in enumerate(self.groups)
            for name, value in vars(group).items()
            if isinstance(value, dict) and name != "cached_blocks_this_step"
        ]
        """What a group keeps per request: title, group, attribute."""
        owners = (
            (scheduler, "the scheduler"),
            (getattr(scheduler, "encoder_cache_manager", None), "the encoder cache"),
        )
        self._collections = [
            (f"requests in {name} of {title}", owner, name)
            for owner, title in owners
            for name, value in (vars(owner) if owner else {}).items()
            if isinstance(value, dict | set | list | deque) and name not in HANDED_ON
        ]
        """Further collections that may keep a request which has ended: title, owner, attribute."""
        self.stored: Mapping[Key, Sequence[Content]] = {}
        """Content outside the pool."""
        self.idle: Mapping[str, int] = {}
        """Sessions between two turns."""
        self.subscriber: Any = None
        """Of KV events, if there are any."""
        worker.manager = self

    def tables(self) -> dict[str, Table]:
        """Return the block ids of every request that holds blocks."""
        tables = [group.req_to_blocks for group in self.groups]
        return {
            name: tuple([tuple([block.block_id for block in table.get(name, ())]) for table in tables])
            for name in dict.fromkeys(chain.from_iterable(tables))
        }

    def _learn(self, label: Any) -> Key:
        """Return the key of a label that was not seen before."""
        block_hash, group_id = self._split
        key = self._known[label] = self._keys.key(group_id(label), block_hash(label))
        return key

    def published(self, aliases: dict[int, list[Key]]) -> dict[int, Key]:
        """Return the blocks that lookups can reach, and fill `aliases`.

        A block may also have keys of partial depths; the deepest one covers all of its content.
        """
        found: dict[int, Key] = {}
        known = self._known.get
        for label, blocks in self.pool.cached_block_hash_to_block._cache.items():
            key = known(label) or self._learn(label)
            for block in blocks if isinstance(blocks, dict) else (blocks.block_id,):
                other = found.get(block)
                if other is None or other.depth < key.depth:
                    found[block] = key
                if other is not None:
                    aliases.setdefault(block, []).append(min(other, key))
        return found

    def view(self) -> View:
        """Return all of the host's metadata."""
        scheduler, blocks, known = self.scheduler, self.pool.blocks, self._known.get
        aliases: dict[int, list[Key]] = {}
        labels = [(block.block_id, label) for block in blocks if (label := block.block_hash) is not None]
        tables, references = self.tables(), [0 if block.is_null else block.ref_cnt for block in blocks]
        pins = Counter(compat.blocks_to_free(scheduler))
        # A block that waits to be freed once and is in a table stays with its owner, who may write to it.
        for block in pins.keys() & set(chain.from_iterable(chain.from_iterable(tables.values()))) if pins else ():
            references[block] -= pins.pop(block)
        return View(
            free=[block.block_id for block in self.pool.free_block_queue.get_all_free_blocks()],
            references=references,
            published=self.published(aliases),
            aliases=aliases,
            labels={block: known(label) or self._learn(label) for block, label in labels},
            tables=tables,
            waiting=[
                one.request_id
                for queue in self._queues
                for one in getattr(scheduler, queue)
                if one.request_id not in self.idle
            ],
            parked=list(self.idle),
            running=[one.request_id for one in scheduler.running],
            pins=pins,
            leftovers=self.leftovers(),
            drained=self._drained(),
            stored=dict(self.stored),
        )

    def _drained(self) -> dict[str, int]:
        lists = {"blocks to zero": sum([len(group.new_block_ids) for group in self._zero_lists])}
        if self.subscriber:
            lists["keys that KV events misreport"] = self.subscriber.contradictions()
        return lists

    def leftovers(self) -> Mapping[str, int]:
        """Return the sizes of per-request state, by holder; of requests alone while there are any: counting the rest
        after each event would take long."""
        sizes = {"requests": len(self.scheduler.requests)}
        if sizes["requests"]:
            return sizes
        sizes |= self.worker.leftovers()
        for title, group, name in self._per_request:
            sizes[title] = len(getattr(group, name))
        for title, owner, name in self._collections:
            sizes[title] = self._keys.names_in(getattr(owner, name) or ())
        return sizes


class Admissions:
    """Records, by request, the blocks that the admission check estimates and those taken from the free queue."""

    def __init__(self, manager: Any) -> None:
        self.counts: dict[str, tuple[int, int]] = {}
        self._manager = manager
        self._foreseen: list[tuple[int, int]] = []
        """(estimate, free blocks at that moment) of the checks of the allocation under way."""
        self._estimate = manager.coordinator.get_num_blocks_to_allocate
        self._allocate = manager.allocate_slots
        manager.coordinator.get_num_blocks_to_allocate = self._estimating
        manager.allocate_slots = self._allocating

    def _estimating(self, *arguments: Any, **keywords: Any) -> int:
        estimate: int = self._estimate(*arguments, **keywords)
        self._foreseen.append((estimate, self._manager.block_pool.get_num_free_blocks()))
        return estimate

    def _allocating(self, request: Any, *arguments: Any, **keywords: Any) -> Any:
        self._foreseen.clear()
        blocks = self._allocate(request, *arguments, **keywords)
        if blocks is not None and self._foreseen:
            # The last check counts; an earlier one is for the whole sequence.
            estimate, free = self._foreseen[-1]
            self.counts[request.request_id] = estimate, free - self._manager.block_pool.get_num_free_blocks()
        return blocks


def free_labelled(pool: Any, count: int) -> set[int]:
    """Return up to `count` free blocks that have keys, oldest first."""
    blocks: Iterable[Any] = pool.free_block_queue.get_all_free_blocks()
    return {block.block_id for block in [one for one in blocks if one.block_hash is not None][:count]}
