"""The host's metadata: vLLM's block pool, tables (`pool_reader`) and queues as a `View`.

Block hashes become keys: the wrapped hasher knows the request, hence the depth and the tokens, of every hash.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain as chained
from typing import Any

from ...reference.prefix_cache import Key
from ...reference.tokens import EMPTY, Truth, mix
from ..base.observe import Content, View
from ..base.renamed import old_name
from .pool_reader import blocks_to_free, hash_count, pool_of, split
from .versions import compat

_UNKNOWN_DEPTH = -1
HANDED_ON = {
    "requests", "finished_req_ids", "finished_req_ids_dict", "prev_step_scheduled_req_ids", "reset_preempted_req_ids",
}  # fmt: skip
"""Collections of the scheduler that are counted elsewhere, or that the next plan takes over and replaces."""


class KeyBook:
    """Maps every block hash to its prefix. `truths` give the content of the requests' tokens; a hash names `lookahead`
    tokens behind its block, too."""

    def __init__(self, hash_block_size: int, truths: Mapping[str, Truth], lookahead: int = 0) -> None:
        self._size = hash_block_size
        self._lookahead = lookahead
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
            first = hash_count(request)
            hashes = hasher(request)
            if hashes:
                tags = self._tags_of(request, (first + len(hashes)) * self._size + self._lookahead)
                for index, one in enumerate(hashes, first + 1):
                    depth = index * self._size
                    self._prefixes.setdefault(one, (depth, tags[depth + self._lookahead]))
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
        self.scheduler = scheduler
        self.worker = worker
        self.pool = pool_of(scheduler)
        self._keys = keys
        self._known: dict[Any, Key] = {}
        self._queues = compat.waiting_queues(scheduler)
        owners = (
            (scheduler, "the scheduler"),
            (getattr(scheduler, "encoder_cache_manager", None), "the encoder cache"),
        )
        self._collections = [
            (f"requests in {name} of {title}", owner, name)
            for owner, title in owners
            for name, value in (vars(owner) if owner else {}).items()
            if isinstance(value, dict | set | list | deque) and old_name(owner, name) not in HANDED_ON
        ]
        """Further collections that may keep a request which has ended: title, owner, attribute."""
        self.stored: Callable[[], Mapping[Key, Sequence[Content]]] = dict
        """Returns the content outside the pool."""
        self.loading: Callable[[], Iterable[int]] = tuple
        self.saving: Callable[[], Iterable[int]] = tuple
        """Return the blocks that a connector has references to, since it loads or stores them."""
        self.idle: Mapping[str, int] = {}
        """Sessions between two turns."""
        self.subscriber: Any = None
        """Of KV events, if there are any."""
        self.tier: Any = None
        """The engine's own tier in host memory, if it has one."""
        self.images: Any = None
        """The `Inputs`, which check the counts of the encoder cache; None without images."""

    def _learn(self, label: Any) -> Key:
        """Return the key of a label that was not seen before."""
        key = self._known[label] = self._keys.key(*split(label))
        return key

    def published(self, aliases: dict[int, list[Key]]) -> dict[int, Key]:
        """Return the blocks that lookups can reach, and fill `aliases`.

        A block may also have keys of partial depths; the deepest one covers all of its content.
        """
        found: dict[int, Key] = {}
        known = self._known.get
        for label, blocks in self.pool.cached():
            key = known(label) or self._learn(label)
            for block in blocks:
                other = found.get(block)
                if other is None or other.depth < key.depth:
                    found[block] = key
                if other is not None:
                    aliases.setdefault(block, []).append(min(other, key))
        return found

    def view(self) -> View:
        """Return all of the host's metadata."""
        scheduler, pool, known = self.scheduler, self.pool, self._known.get
        aliases: dict[int, list[Key]] = {}
        tables, references = pool.tables(), pool.references()
        pins = Counter(chained(blocks_to_free(scheduler), self.loading()))
        # A block in a table that waits to be freed once, or is loaded, stays with its owner, who may write to it.
        for block in pins.keys() & set(chained.from_iterable(chained.from_iterable(tables.values()))) if pins else ():
            references[block] -= pins.pop(block)
        pins.update(self.saving())
        return View(
            free=pool.free(),
            references=references,
            published=self.published(aliases),
            aliases=aliases,
            labels={block: known(label) or self._learn(label) for block, label in pool.labels()},
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
            stored=dict(self.stored()),
            copying=self.tier is not None and self.tier.is_copying,
        )

    def _drained(self) -> dict[str, int]:
        lists = {"blocks to zero": self.pool.to_zero()}
        if self.subscriber:
            lists["keys that KV events misreport"] = self.subscriber.contradictions()
        if self.tier:
            lists["chunks that the tier in host memory miscounts"] = self.tier.miscounted()
        if self.images:
            lists["tokens that the encoder cache miscounts"] = self.images.miscounted()
        return lists

    def leftovers(self) -> Mapping[str, int]:
        """Return the sizes of per-request state, by holder; of requests alone while there are any: counting the rest
        after each event would take long."""
        sizes = {"requests": len(self.scheduler.requests)}
        if sizes["requests"]:
            return sizes
        sizes |= self.worker.leftovers()
        sizes |= self.pool.per_request()
        for title, owner, name in self._collections:
            sizes[title] = self._keys.names_in(getattr(owner, name) or ())
        return sizes | (self.tier.leftovers() if self.tier else {})
