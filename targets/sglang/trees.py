"""Reads the radix tree: every KV page and state slot that it owns, with key and lock count.

A node's path of tokens has a tag for every depth: each KV page is published at the depth where it ends, the state
slot at the end of its node. The Python core shows its nodes. The Rust core shows which slots it owns and whether they
are locked, but no tokens: `OpaqueTree` records the key under which each slot was inserted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ...reference.prefix_cache import Key
from ...reference.tokens import EMPTY, chain
from .compat import tree_api
from .compat.engine import ATTENTION, STATES, WINDOW, SglangEngine
from .inputs import namespace

SOME = -1
"""Lock count: more than none, how many is not shown."""
HIDDEN = -2
"""Lock count: not shown at all."""


class Owned(NamedTuple):
    """A block of the tree: number, key, lock count, and the id of its node."""

    block: int
    key: Key
    locks: int
    node: Any


def tree_of(engine: SglangEngine) -> NodeTree | OpaqueTree | NoTree:
    """Return the reader for an engine's tree."""
    if not engine.sizes.caching:
        return NoTree()
    return OpaqueTree(engine) if engine.sizes.tree_core == "rust" else NodeTree(engine)


def nodes(engine: SglangEngine) -> Iterator[tuple[Any, int, tuple[int, ...]]]:
    """Yield every node of a tree of Python nodes, the depth at which it begins, and the tags of its tokens."""
    children = tree_api.root_of(engine.cache).children.values()
    pending: list[tuple[Any, int, int, int]] = [(child, 0, EMPTY, 0) for child in children]
    while pending:
        node, depth, tag, passed = pending.pop()
        contents, passed = engine.inputs.walk(tree_api.tokens_of(node), namespace(node.key), passed)
        tags = chain(tag, contents)
        yield node, depth, tags
        pending += [(child, depth + len(tags), tags[-1], passed) for child in node.children.values()]


class NodeTree:
    """A tree of Python nodes."""

    def __init__(self, engine: SglangEngine) -> None:
        self.engine, sizes = engine, engine.sizes
        self.page, self.first_page = sizes.page, sizes.first_page
        self.first_window_page = sizes.first_window_page if sizes.sliding else 0

    def owned(self) -> Iterator[Owned]:
        """Everything that the tree owns."""
        for found in nodes(self.engine):
            yield from self._blocks(*found)

    def _blocks(self, node: Any, depth: int, tags: tuple[int, ...]) -> Iterator[Owned]:
        kv, kv_locks, state, state_locks = tree_api.values_of(node)
        parts = [(ATTENTION, self.first_page, kv, kv_locks)]
        if self.first_window_page:
            windows, window_locks = tree_api.window_values_of(node)
            here = self.engine.memory.windows_of_node(kv, windows)
            parts.append((WINDOW, self.first_window_page, here, window_locks))
        for group, first, locations, locks in parts:
            for index, location in enumerate([] if locations is None else locations.tolist()[:: self.page]):
                end = (index + 1) * self.page
                yield Owned(first + location // self.page, Key(group, depth + end, tags[end - 1]), locks, node.id)
        if state is not None:
            for slot in state.tolist():
                yield Owned(
                    self.engine.cached_state(slot), Key(STATES, depth + len(tags), tags[-1]), state_locks, node.id
                )


class NoTree:
    """No prefix caching: every block belongs to a request or to a free list."""

    def owned(self) -> Iterator[Owned]:
        """Return nothing."""
        return iter(())


class OpaqueTree:
    """A tree that shows only which slots it owns."""

    def __init__(self, engine: SglangEngine) -> None:
        self.core, self.inputs, self.cached_state = engine.cache.tree_core, engine.inputs, engine.cached_state
        self.page, self.first_page = engine.sizes.page, engine.sizes.first_page
        self._pages: dict[int, Key] = {}
        self._states: dict[int, tuple[Key, Any]] = {}
        engine.cache.insert = self._watching(engine.cache.insert)

    def _watching(self, insert: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def watched(parameters: Any) -> Any:
            contents, _ = self.inputs.walk(parameters.key.raw_token_ids(), namespace(parameters.key), 0)
            tags = chain(EMPTY, contents)
            here = set(self._located())
            for index, location in enumerate(parameters.value.tolist()[:: self.page]):
                page, end = self.first_page + location // self.page, (index + 1) * self.page
                if page not in here:
                    self._pages[page] = Key(ATTENTION, end, tags[end - 1])
            result = insert(parameters)
            if parameters.mamba_value is not None and not result.mamba_exist:
                depth = len(parameters.key)
                key = Key(STATES, depth, tags[depth - 1])
                self._states[int(parameters.mamba_value)] = key, result.last_device_node
            return result

        return watched

    def _located(self, unlocked_only: bool = False) -> Iterator[int]:
        locations = self.core.walk_for_kv_canary(unlocked_only, False).slot_indices.tolist()
        return iter([self.first_page + location // self.page for location in locations if location % self.page == 0])

    def owned(self) -> Iterator[Owned]:
        """Everything that the tree owns."""
        unlocked = set(self._located(unlocked_only=True))
        for page in self._located():
            yield Owned(page, self._pages.get(page, Key(ATTENTION, -1, 0)), 0 if page in unlocked else SOME, None)
        for slot in self.core.all_mamba_values_flatten().tolist():
            key, node = self._states.get(slot, (Key(STATES, -1, 0), None))
            yield Owned(self.cached_state(slot), key, HIDDEN, node)
