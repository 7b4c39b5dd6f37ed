"""The host's metadata: SGLang's rows, free lists and tree as a `View`.

A node's lock counts are the reference counts of what it owns. Their expected values follow from the tables that borrow
its pages and from the lock receipts of live requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ..base.observe import Table, View
from . import host_contents
from .compat import tree_api
from .compat.engine import STATES, WINDOW
from .serving import Server
from .trees import HIDDEN, SOME, Owned, tree_of

UNSAVED = "pages of the host that the storage lacks"
ANY = object()
"""Of a page that the tree does not own."""


class Host:
    """Reads the metadata of one engine."""

    def __init__(self, server: Server) -> None:
        self.engine, self.scheduler, self.sessions = server.engine, server.scheduler, server.sessions
        self.tree = tree_of(server.engine)
        self.tier = server.tier
        self.requests = server.requests
        """Every request that may hold anything: one that holds nothing any more is removed."""

    def _table(self, request: Any, windows: Mapping[int, Any]) -> Table:
        """Return slots by role and pages by column.

        A finished request that has freed its row owns nothing, even if it still names slots: its working slot may
        belong to the tree.
        """
        owner = self.owner(request)
        if request.finished() and tree_api.row_of(owner) is None:
            return ((), (), ()) if self.engine.sizes.sliding else ((), ())
        return self._held(owner, windows)

    def _held(self, owner: Any, windows: Mapping[int, Any]) -> Table:
        sizes, row = self.engine.sizes, tree_api.row_of(owner)
        locations: list[int] = []
        if row is not None:
            locations = self.engine.rows.req_to_token[row, : tree_api.allocated(owner) : sizes.page].tolist()
        pages = tuple([sizes.first_page + location // sizes.page for location in locations])
        slots = tree_api.slots_of(owner)
        return (slots, pages, self._window(owner, locations, windows)) if sizes.sliding else (slots, pages)

    def _window(self, owner: Any, locations: list[int], windows: Mapping[int, Any]) -> tuple[int, ...]:
        """Return the pages of layers with a sliding window: of those that the tree owns, what the owner has locked."""
        sizes, held = self.engine.sizes, {ANY, *tree_api.window_locks_of(self.engine.cache, owner)}
        mapped = self.engine.memory.windows_of(locations)
        pages = [sizes.first_window_page + location // sizes.page if location > 0 else 0 for location in mapped]
        return tuple([page if windows.get(page, ANY) in held else 0 for page in pages])

    def owner(self, request: Any) -> Any:
        """Return the owner of a request's KV record and lock: itself, or its session."""
        return request if self.sessions is None else self.sessions.owner(request)

    def _tables(self, owned: list[Owned]) -> dict[str, Table]:
        tables: dict[str, Table] = {}
        windows = {one.block: one.node for one in owned if one.key.group == WINDOW}
        for name, request in list(self.requests.items()):
            table = self._table(request, windows)
            if any(table):
                tables[name] = table
            elif request.finished():
                del self.requests[name]
        if self.sessions is not None:
            apart = self.sessions.apart(self.requests)
            tables |= {name: self._held(record, windows) for name, record in apart.items()}
        return tables

    def tables(self) -> dict[str, Table]:
        """Return what requests hold."""
        return self._tables(list(self.tree.owned()))

    def view(self) -> View:
        """Return the host's metadata."""
        engine, sizes = self.engine, self.engine.sizes
        owned = list(self.tree.owned())
        tables = self._tables(owned)
        free = engine.memory.free_slots() + [sizes.first_page + page for page in engine.memory.free_pages()]
        free += [sizes.first_window_page + page for page in engine.memory.free_window_pages()]
        free += engine.checkpoints.free() if engine.checkpoints is not None else []
        pins = self._pins(owned)
        return View(
            free=free,
            references=self._references(tables, owned, pins),
            published={one.block: one.key for one in owned},
            labels=None,
            tables=tables,
            waiting=tuple([one.client_name for one in self.scheduler.queued()]),
            running=tuple([one.client_name for one in self.scheduler.live()]),
            parked=tuple(self.sessions.parked()) if self.sessions is not None else (),
            pins=pins,
            leftovers={
                "request rows": sizes.request_rows - engine.rows.available_size(),
                "sessions": self.sessions.open() if self.sessions is not None else 0,
                "prefetches": len(engine.cache.ongoing_prefetch) if self.tier is not None else 0,
                "tokens of prefetches": self.tier.prefetched() if self.tier is not None else 0,
                "miscounted pages": engine.memory.miscounted(),
                "miscounted bytes": self.tier.miscounted() if self.tier is not None else 0,
            }
            | self.scheduler.leftovers(),
            drained=self._drained(self.tier) if self.tier is not None else {},
            stored=host_contents.stored(self.tier) if self.tier is not None else {},
            sent=self.scheduler.sent(),
            copying=(self.tier is not None and host_contents.is_copying(self.tier)) or self.scheduler.is_sending,
        )

    def _drained(self, tier: Any) -> dict[str, int]:
        unsaved = 0 if self.scheduler.busy else host_contents.unsaved(tier)
        return host_contents.astray(tier) | host_contents.stuck(tier) | {UNSAVED: unsaved}

    def _references(self, tables: dict[str, Table], owned: list[Owned], pins: Counter[int]) -> list[int]:
        """Return lock counts; a block of one request, or of a load alone, has one reference.

        A tree without lock counts shows at most whether a block is locked, which is compared instead.
        """
        size = self.engine.sizes.num_blocks
        owners = Counter(block for table in tables.values() for blocks in table for block in blocks)
        references = [min(owners[block] + pins[block], 1) for block in range(size)]
        for one in [one for one in owned if 0 <= one.block < size]:
            wanted = owners[one.block] + pins[one.block]
            shown = {SOME: max(wanted, 1), HIDDEN: wanted}.get(one.locks, one.locks)
            references[one.block] = shown
        references[0] = 0
        return references

    def _pins(self, owned: list[Owned]) -> Counter[int]:
        """Return locks that are not from tables.

        A request locks the state of the node at which its prefix ends; a copy to or from the host that is under way
        locks the path to its node, and a read into a buffer that to the node behind which it continues. A load may
        also have a slot to itself.
        """
        states = {one.node: one.block for one in owned if one.key.group == STATES}
        pins: Counter[int] = Counter()
        owners = [self.owner(request) for request in self.requests.values()]
        if self.sessions is not None:
            owners += self.sessions.apart(self.requests).values()
        for owner in owners:
            node = tree_api.state_lock_of(owner)
            if node in states:
                pins[states[node]] += 1
        for locked in host_contents.locked_by_copies(self.tier) if self.tier is not None else ():
            pins.update(one.block for one in owned if one.node in locked[one.key.group])
        pins.update(host_contents.slots_of_duplicate_loads(self.tier) if self.tier is not None else ())
        return pins
