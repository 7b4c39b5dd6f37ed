"""The partition rule of physical blocks.

At every moment each block is in exactly one of these:

    the null block or a reserved id   never owned, never keyed, never in the free queue
    free                              exactly once in the free queue, reference count 0; it may still be keyed:
                                      it stays reachable by a hit until it is handed out again
    owned                             not in the free queue, reference count = table entries + pins
    cached                            only where the cache owns what it publishes (`Layout.cache_owns`): not in the
                                      free queue, reference count = requests that borrow it + pins. There an id
                                      that is not cached has at most one owner.

`partition_faults` yields one `Fault` for each block that breaks it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .layout import Layout


@dataclass(frozen=True, slots=True)
class Fault:
    """One block that breaks the rule, and how (`kind`). `count` is the number that was observed, of `wanted`.

    named-by-...    a table, the free queue or the cache (-table, -queue, -cache) has an id outside of `wanted`
    queued-again    it is `count` times in the free queue
    reserved-owned  `count` table entries have a reserved id
    queued-owned    it is in the free queue and has `count` owners
    queued-cached   it is in the free queue and belongs to the cache
    queued-reserved a reserved id is in the free queue
    lost-block      nobody holds it, and it is not in the free queue
    miscounted      its reference count is `count`, with `wanted` owners
    owned-twice     `count` requests own it, where the cache owns what is shared
    """

    block: int
    field: str
    kind: str
    count: int = 0
    wanted: int = 0


def count_owners(tables: Iterable[Sequence[Sequence[int]]], layout: Layout) -> dict[int, int]:
    """Return how often each block is in the tables of all requests, without the null block."""
    owners: dict[int, int] = {}  # twice as fast as a Counter for tables of this size
    for table in tables:
        for columns in table:
            for block in columns:
                owners[block] = owners.get(block, 0) + 1
    if layout.null_block is not None:
        owners.pop(layout.null_block, None)
    return owners


def is_partition(
    layout: Layout,
    free: Sequence[int],
    references: Sequence[int],
    owners: Mapping[int, int],
    pins: Mapping[int, int],
    cached: Collection[int] = (),
) -> bool:
    """Return True if the rule holds, as it nearly always does: the parts have as many ids as the pool and leave none
    out, so none is in two of them, and all counts are right. Otherwise `partition_faults` (same arguments) has the
    faults."""
    reserved, held = layout.unowned, _held(owners, pins)
    taken = held.keys() | cached if cached else held
    if len(free) + len(taken) + len(reserved) != layout.num_blocks or {*free, *taken, *reserved} != layout.ids:
        return False
    counted = [0] * layout.num_blocks
    for block, count in held.items():
        counted[block] = count
    for block in reserved:
        counted[block] = references[block]
    return references == counted and (not layout.cache_owns or not any(_shared_faults(owners, cached)))


def _held(owners: Mapping[int, int], pins: Mapping[int, int]) -> Mapping[int, int]:
    if not pins:
        return owners
    return {block: owners.get(block, 0) + pins.get(block, 0) for block in owners.keys() | pins.keys()}


def partition_faults(
    layout: Layout,
    free: Sequence[int],
    references: Sequence[int],
    owners: Mapping[int, int],
    pins: Mapping[int, int],
    cached: Collection[int] = (),
) -> Iterator[Fault]:
    """Yield the faults of one observation of the pool, by the rule above.

    free        the free queue, in order
    references  reference count by block id, `layout.num_blocks` long
    owners      from `count_owners`
    pins        references that no table explains but the target declares (copies in flight, ...)
    cached      ids that the cache owns; empty where published blocks wait in the free queue
    """
    reserved, ids, free_set = layout.unowned, layout.ids, set(free)
    for where, blocks in (("table", owners), ("queue", free_set), ("cache", cached)):
        for block in set(blocks) - ids:
            yield Fault(block, "id", f"named-by-{where}", wanted=layout.num_blocks)
    held = _held(owners, pins)
    counted = [held.get(block, 0) for block in range(layout.num_blocks)]
    if len(free_set) != len(free):
        for block, times in Counter(free).items():
            if times > 1:
                yield Fault(block, "free", "queued-again", times, 1)
    unheld = ids.difference(held, reserved, cached)
    for block in reserved.intersection(held):
        yield Fault(block, "owner", "reserved-owned", counted[block])
    for block in (free_set & ids) - unheld:
        how = "reserved" if block in reserved else "cached" if block in cached else "owned"
        yield Fault(block, "free", f"queued-{how}", counted[block])
    for block in unheld - free_set:
        yield Fault(block, "free", "lost-block")
    yield from _shared_faults(owners, cached) if layout.cache_owns else ()
    for block, count in enumerate(counted):
        if references[block] != count and block not in reserved:
            yield Fault(block, "references", "miscounted", references[block], count)


def _shared_faults(owners: Mapping[int, int], cached: Collection[int]) -> Iterator[Fault]:
    """Yield blocks with several owners that are not cached, where the cache owns what it publishes."""
    for block, count in owners.items():
        if count > 1 and block not in cached:
            yield Fault(block, "owner", "owned-twice", count, 1)
