"""Physical blocks: the free queue, reference counts and the lookup index.

A freed block keeps its key and its place in the index until it is allocated again, so a hit may revive it.
Block 0 is the null block: a placeholder in tables, never allocated.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from mypy_extensions import mypyc_attr

from ....reference.prefix_cache import Key
from ..layout import NULL_BLOCK


@mypyc_attr(allow_interpreted_subclasses=True)
class BlockPool:
    """`num_blocks` blocks with ids 0..num_blocks-1. The least recently freed block is allocated first."""

    def __init__(self, num_blocks: int) -> None:
        self.free: OrderedDict[int, None] = OrderedDict.fromkeys(self.usable(num_blocks))
        self.references = [0] * num_blocks
        self.index: dict[Key, dict[int, None]] = {}
        self.labels: dict[int, Key] = {}
        self.published_this_step: set[int] = set()

    def usable(self, num_blocks: int) -> range:
        """Return the ids that may be allocated: all but the null block."""
        return range(NULL_BLOCK + 1, num_blocks)

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` blocks with reference count 1; their keys are forgotten."""
        assert count <= len(self.free), "allocation was not covered by the admission check"
        blocks = []
        for _ in range(count):
            block, _ = self.free.popitem(last=False)
            assert self.references[block] == 0
            self.unpublish(block)
            self.references[block] = 1
            blocks.append(block)
        return blocks

    def touch(self, block: int) -> None:
        """Add an owner; a free block leaves the free queue."""
        if self.references[block] == 0:
            del self.free[block]
        self.references[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Remove an owner of each block; a block without owners goes to the end of the free queue."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            self.references[block] -= 1
            assert self.references[block] >= 0, f"block {block} released twice"
            if self.references[block] == 0:
                self.free[block] = None

    def publish(self, block: int, key: Key) -> None:
        """Make `block` reachable under `key`. A second block for a key is a duplicate; lookups return the first."""
        assert block != NULL_BLOCK
        assert block not in self.labels, "a block has one key"
        self.labels[block] = key
        self.index.setdefault(key, {})[block] = None
        self.published_this_step.add(block)

    def unpublish(self, block: int) -> None:
        """Forget the key of `block`, if it has one."""
        key = self.labels.pop(block, None)
        if key is None:
            return
        holders = self.index[key]
        del holders[block]
        if not holders:
            del self.index[key]
        self.published_this_step.discard(block)

    def lookup(self, key: Key) -> int | None:
        """Return a block published under `key`, or None."""
        holders = self.index.get(key)
        return next(iter(holders)) if holders else None

    def evict(self, count: int) -> None:
        """Forget the keys of up to `count` free blocks, oldest first."""
        for block in [block for block in self.free if block in self.labels][:count]:
            self.unpublish(block)

    def forget_all(self) -> bool:
        """Forget every key. Return False, with nothing changed, while any block is in use."""
        if len(self.free) != len(self.references) - 1:
            return False
        for block in list(self.labels):
            self.unpublish(block)
        return True
