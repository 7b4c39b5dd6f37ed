"""The host's metadata: SGLang's rows, free lists and tree as a `View`.

Tree nodes become keys: a node's path of tokens has a tag for every depth; each KV page of the node is published at
the depth where it ends, and the node's state slot at the node's end. A node's lock counts are the references of what
it owns; the receipts of live requests say how many there should be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from ...reference.prefix_cache import Key
from ...reference.tokens import EMPTY, chain
from ..base.observe import Table, View
from . import compat
from .bringup import Engine
from .device import ATTENTION, STATES


class Owned(NamedTuple):
    """A block of the tree: number, key, lock count, and the node that has it."""

    block: int
    key: Key
    locks: int
    node: Any


class Tree:
    """Reads the tree."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.page, self.first_page = engine.sizes.page, engine.sizes.first_page

    def owned(self) -> Iterator[Owned]:
        """Everything that the tree owns."""
        root = compat.root_of(self.engine.cache)
        pending: list[tuple[Any, int, int]] = [(child, 0, EMPTY) for child in root.children.values()]
        while pending:
            node, depth, tag = pending.pop()
            tags = chain(tag, compat.tokens_of(node))
            yield from self._blocks(node, depth, tags)
            pending += [(child, depth + len(tags), tags[-1]) for child in node.children.values()]

    def _blocks(self, node: Any, depth: int, tags: tuple[int, ...]) -> Iterator[Owned]:
        kv, kv_locks, state, state_locks = compat.values_of(node)
        if kv is not None:
            page = self.page
            for index, location in enumerate(kv.tolist()[::page]):
                end = (index + 1) * page
                key = Key(ATTENTION, depth + end, tags[end - 1])
                yield Owned(self.first_page + location // page, key, kv_locks, node.id)
        if state is not None:
            for slot in state.tolist():
                yield Owned(slot, Key(STATES, depth + len(tags), tags[-1]), state_locks, node.id)


class Host:
    """Reads everything."""

    def __init__(self, engine: Engine, scheduler: Any) -> None:
        self.engine = engine
        self.scheduler = scheduler
        self.tree = Tree(engine)
        self.requests: dict[str, Any] = {}
        """Every request that may hold anything."""

    def table(self, request: Any) -> Table:
        """Slots by role, pages by column. A finished request that gave its row back owns nothing, whatever it still
        names: it may have given its working slot to the tree."""
        sizes, kv = self.engine.sizes, request.kv
        if request.finished() and kv.req_pool_idx is None:
            return ((), ())
        pages: Iterable[int] = ()
        if kv.req_pool_idx is not None:
            row = self.engine.rows.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len : sizes.page].tolist()
            pages = [sizes.first_page + location // sizes.page for location in row]
        return (compat.slots_of(kv), tuple(pages))

    def _tables(self) -> dict[str, Table]:
        tables: dict[str, Table] = {}
        for name, request in list(self.requests.items()):
            table = self.table(request)
            if any(table):
                tables[name] = table
            elif request.finished():
                del self.requests[name]
        return tables

    def view(self) -> View:
        """The host's metadata now."""
        engine, sizes = self.engine, self.engine.sizes
        tables = self._tables()
        owned = list(self.tree.owned())
        free = engine.rows.mamba_allocator.free_slots.tolist()
        free += [sizes.first_page + page for page in compat.free_pages(engine.allocator)]
        references = [0] * engine.layout.num_blocks
        for slots, pages in tables.values():
            for block in {*slots, *pages}:
                if 0 <= block < len(references):
                    references[block] = 1
        for one in owned:
            references[one.block] = one.locks
        references[0] = 0
        return View(
            free=free,
            references=references,
            published={one.block: one.key for one in owned},
            labels=None,
            tables=tables,
            waiting=tuple([one.hybridfuzz_name for one in self.scheduler.waiting_queue]),
            running=tuple([one.hybridfuzz_name for one in self.scheduler.live()]),
            pins=self._pins(owned),
            leftovers={"request rows": sizes.rows - engine.rows.available_size()},
        )

    def _pins(self, owned: list[Owned]) -> Counter[int]:
        """Locks on states: a request locks the state of the node that its prefix ends at, and holds no slot of it."""
        states = {one.node: one.block for one in owned if one.key.group == STATES}
        pins: Counter[int] = Counter()
        for request in self.requests.values():
            node = compat.state_lock_of(request)
            if node in states:
                pins[states[node]] += 1
        return pins
