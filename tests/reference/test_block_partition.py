"""The partition rule of the pool: one test for each kind of fault, and what is no fault."""

import random
from collections import Counter

import pytest

from hybridfuzz.reference.block_partition import Fault, count_owners, is_partition, partition_faults
from hybridfuzz.reference.layout import Group, Layout

LAYOUT = Layout((Group("mamba", 8), Group("attention", 8)), 8, 4, "align", True)
RESERVING = Layout(LAYOUT.groups, 8, 4, "align", True, reserved=frozenset({7}))
OWNING = Layout(LAYOUT.groups, 8, 4, "slots", True, cache_owns=True)
NO_NULL = Layout(LAYOUT.groups, 8, 4, "align", True, null_block=None)


def faults(
    free: list[int],
    owners: dict[int, int],
    references: dict[int, int] | None = None,
    pins: dict[int, int] | None = None,
    layout: Layout = LAYOUT,
    cached: tuple[int, ...] = (),
) -> list[Fault]:
    """References are those of the owners and pins unless given."""
    counts = Counter(owners) + Counter(pins or {}) if references is None else references
    listed = [counts.get(block, 0) for block in range(layout.num_blocks)]
    found = list(partition_faults(layout, free, listed, owners, pins or {}, cached))
    assert is_partition(layout, free, listed, owners, pins or {}, cached) == (not found)
    return found


@pytest.mark.parametrize(
    ("free", "owners", "pins", "layout"),
    [
        ([1, 2, 3, 4, 5, 6, 7], {}, {}, LAYOUT),
        ([7, 3, 1], {2: 1, 4: 2, 5: 1, 6: 3}, {}, LAYOUT),
        ([], dict.fromkeys(range(1, 8), 1), {}, LAYOUT),
        ([1, 2, 3], {4: 1, 5: 1}, {5: 1, 6: 2, 7: 1}, LAYOUT),
        ([1, 2, 3, 4, 5, 6], {}, {}, RESERVING),
        (list(range(8)), {}, {}, NO_NULL),
        ([1, 2, 3, 4, 5, 6, 7], {0: 1}, {}, NO_NULL),
    ],
)
def test_sound_pools(free: list[int], owners: dict[int, int], pins: dict[int, int], layout: Layout) -> None:
    assert faults(free, owners, pins=pins, layout=layout) == []


def test_listed_twice() -> None:
    [fault] = faults([1, 2, 3, 4, 5, 6, 7, 3], {})
    assert (fault.block, fault.field, fault.kind, fault.count) == (3, "free", "queued-again", 2)


def test_the_cache_owns_what_does_not_exist() -> None:
    [fault] = faults([1, 2, 3, 4, 5, 6, 7], {}, layout=OWNING, cached=(-3,))
    assert (fault.block, fault.field, fault.kind, fault.wanted) == (-3, "id", "named-by-cache", 8)


def test_owned_and_free() -> None:
    [fault] = faults([1, 2, 3, 4, 5, 6, 7], {4: 1})
    assert (fault.block, fault.field) == (4, "free")
    assert (fault.kind, fault.count) == ("queued-owned", 1)


def test_neither_owned_nor_free() -> None:
    [fault] = faults([1, 2, 3, 5, 6, 7], {})
    assert (fault.block, fault.field, fault.kind) == (4, "free", "lost-block")


@pytest.mark.parametrize("referenced", [0, 1, 3])
def test_count_differs_from_owners(referenced: int) -> None:
    [fault] = faults([1, 2, 3, 5, 6, 7], {4: 2}, {4: referenced})
    assert (fault.block, fault.field) == (4, "references")
    assert (fault.kind, fault.count, fault.wanted) == ("miscounted", referenced, 2)


def test_free_but_referenced() -> None:
    [fault] = faults([1, 2, 3, 4, 5, 6, 7], {}, {4: 1})
    assert (fault.block, fault.field) == (4, "references")


def test_pins_count_as_owners() -> None:
    assert faults([1, 2, 3, 5, 6, 7], {4: 1}, {4: 2}, {4: 1}) == []
    [fault] = faults([1, 2, 3, 5, 6, 7], {4: 1}, {4: 1}, {4: 1})
    assert fault.field == "references"


def test_null_block_in_the_free_queue() -> None:
    [fault] = faults([0, 1, 2, 3, 4, 5, 6, 7], {})
    assert (fault.block, fault.field, fault.kind) == (0, "free", "queued-reserved")


def test_reserved_block_owned() -> None:
    [fault] = faults([1, 2, 3, 4, 5, 6], {7: 1}, layout=RESERVING)
    assert (fault.block, fault.field) == (7, "owner")


def test_reserved_block_in_the_free_queue() -> None:
    [fault] = faults([1, 2, 3, 4, 5, 6, 7], {}, layout=RESERVING)
    assert (fault.block, fault.field) == (7, "free")


@pytest.mark.parametrize("block", [8, 99, -1])
def test_table_names_an_impossible_id(block: int) -> None:
    assert ("id", block) in {(one.field, one.block) for one in faults([1, 2, 3, 4, 5, 6, 7], {block: 1})}


def test_sentinel_in_the_free_queue() -> None:
    """SGLang #40250: an entry -1 returned to the free list."""
    [fault] = faults([1, 2, 3, 4, 5, 6, 7, -1], {})
    assert fault.block == -1


def test_free_queue_names_an_impossible_id() -> None:
    """A fault, not a crash of the reference."""
    assert 8 in {fault.block for fault in faults([1, 2, 3, 4, 5, 6, 7, 8], {})}


def test_several_faults_are_all_reported() -> None:
    found = {fault.block for fault in faults([1, 1, 2], {2: 1, 3: 1}, {3: 2})}
    assert found >= {1, 2, 3, 4, 5, 6, 7}


def test_owners_are_counted_over_tables_and_groups_without_null() -> None:
    tables = [((0, 0, 3), (4, 5)), ((0, 3), (4,))]
    assert count_owners(tables, LAYOUT) == {3: 2, 4: 2, 5: 1}
    assert count_owners(tables, NO_NULL) == {0: 3, 3: 2, 4: 2, 5: 1}


def test_a_cache_that_owns_its_blocks_lends_them() -> None:
    """Cached ids are in no queue, with as many references as borrowers and pins, none included."""
    assert faults([1, 2], {4: 2, 5: 1, 7: 1}, pins={6: 1}, layout=OWNING, cached=(3, 4, 6, 7)) == []


@pytest.mark.parametrize(
    ("free", "owners", "cached", "field"),
    [
        ([1, 2, 3, 4, 5, 6], {7: 1}, (6,), "free"),
        ([1, 2, 3, 4, 5], {7: 1}, (), "free"),
        ([1, 2, 3, 4, 5, 6], {7: 2}, (), "owner"),
    ],
    ids=["cached and free", "leaked", "owned twice"],
)
def test_faults_of_a_cache_that_owns_its_blocks(
    free: list[int], owners: dict[int, int], cached: tuple[int, ...], field: str
) -> None:
    assert field in {fault.field for fault in faults(free, owners, layout=OWNING, cached=cached)}


@pytest.mark.parametrize("layout", [LAYOUT, RESERVING, OWNING, NO_NULL])
def test_one_look_finds_what_the_search_finds(layout: Layout) -> None:
    """The look passes every sound pool, and none in which the search finds a fault."""
    draw, sound = random.Random(7), 0
    for _ in range(2000):
        ids = sorted(layout.ids - layout.unowned)
        parts = {block: draw.choice(("free", "owned", "pinned", "cached")) for block in ids}
        owners = {block: 1 for block in ids if parts[block] == "owned"}
        pins = {block: draw.randint(1, 2) for block in ids if parts[block] == "pinned"}
        cached = {block for block in ids if parts[block] == "cached"} if layout.cache_owns else set()
        free = [block for block in ids if block not in owners.keys() | pins.keys() | cached]
        references = [owners.get(block, 0) + pins.get(block, 0) for block in range(layout.num_blocks)]
        changes = draw.randint(0, 2)
        for _ in range(changes):
            block = draw.randint(-1, 8)
            match draw.randint(0, 5):
                case 0:
                    free.append(block)
                case 1 if block in free:
                    free.remove(block)
                case 2:
                    owners[block] = owners.get(block, 0) + 1
                case 3:
                    pins[block] = pins.get(block, 0) + 1
                case 4:
                    references[block % len(references)] += 1
                case 5 if layout.cache_owns:
                    cached ^= {block}
        found = list(partition_faults(layout, free, references, owners, pins, cached))
        passed = is_partition(layout, free, references, owners, pins, cached)
        assert not (passed and found)
        assert passed or changes
        sound += passed
    assert 200 < sound < 1800
