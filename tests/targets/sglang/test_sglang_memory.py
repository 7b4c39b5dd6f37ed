"""Where contents are in a unified memory: ids are translated by its tables, and a lost page is counted."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hybridfuzz.targets.sglang.batch_rows import NO_STATE, Row
from hybridfuzz.targets.sglang.compat.memory import Memory, Pools, SchedulerStream, UnifiedMemory

FREE = -1


class Between:
    """Pages of windows between both ends: ids 1 and 3 have pages 4 and 2, and page 3 is a hole."""

    min_page_index, num_pages, low_wm_page, high_wm_page = 1, 6, 2, 5

    def __init__(self) -> None:
        self.virtual_to_physical = torch.tensor([0, 4, FREE, 2, FREE, FREE, FREE])
        self.physical_to_virtual = torch.tensor([0, FREE, 3, FREE, 1, FREE, FREE])
        self._free_phys_pages = torch.tensor([3])

    def bind(self, ids: torch.Tensor, pages: torch.Tensor) -> None:
        self.virtual_to_physical[ids], self.physical_to_virtual[pages] = pages, ids


class End:
    """One end of a memory with pages 1 to 5; ids 1 to 3 are bound to pages 2, 5 and 3, and page 4 is a hole."""

    min_page_index, num_pages, page_size = 1, 6, 1

    def __init__(self) -> None:
        self.virtual_to_physical = torch.tensor([0, 2, 5, 3, FREE, FREE, FREE])
        self.physical_to_virtual = torch.tensor([0, FREE, 1, 3, FREE, 2, FREE])
        self.free_virtual_ids = torch.tensor([4, 5])
        self._free_phys_pages = torch.tensor([4])
        self._pending_reuse_pages_cpu: set[int] = set()

    def _allocated_pages(self) -> int:
        return 4

    def translate(self, ids: torch.Tensor) -> torch.Tensor:
        return self.virtual_to_physical[ids]


@pytest.fixture
def ends() -> tuple[End, End]:
    return End(), End()


@pytest.fixture
def memory(ends: tuple[End, End]) -> UnifiedMemory:
    pages, slots = ends
    allocator = SimpleNamespace(
        full_attn_allocator=pages,
        mamba_allocator=slots,
        translate_kv_loc=lambda ids: pages.translate(ids).clamp(min=0),
        translate_write_loc=lambda ids: pages.translate(ids).clamp(min=0),
    )
    rows = SimpleNamespace(translate_mamba_indices=slots.translate, mamba_pool=SimpleNamespace())
    return UnifiedMemory(Pools(rows, SimpleNamespace(full_kv_pool=SimpleNamespace()), allocator))


@pytest.fixture
def windowed(memory: UnifiedMemory) -> UnifiedMemory:
    allocator = memory.pools.allocator
    allocator.swa_attn_allocator = windows = Between()
    allocator.translate_loc_from_full_to_swa = lambda ids: windows.virtual_to_physical[ids]
    return UnifiedMemory(memory.pools)


def row(slot: int, locations: list[int], name: str | None = "r0") -> Row:
    return Row(name, 1, 0, 1, (7,), True, slot, (), locations, locations[-1:])


def test_a_row_gets_the_places_of_its_ids(memory: UnifiedMemory) -> None:
    placed = memory.with_places(0, row(2, [1, 3]))
    assert (placed.place, placed.reads, placed.writes) == (5, [2, 3], [3])
    assert (placed.slot, placed.locations) == (2, [1, 3]), "what is reported has the ids"


def test_without_unified_memory_ids_are_places() -> None:
    placed = Memory(Pools(None, None, None)).with_places(0, row(2, [1, 3]))
    assert (placed.place, placed.reads, placed.writes) == (2, [1, 3], [3])


def test_a_state_without_a_place_is_out_of_range_and_a_location_is_nobody_s(memory: UnifiedMemory) -> None:
    """A kernel would take the last state for -1; SGLang's translation sends a location without a page to place 0."""
    placed = memory.with_places(3, row(4, [1]))
    assert placed.outside is not None
    assert (placed.outside.row, placed.outside.index) == (3, FREE)
    assert memory.with_places(0, row(1, [1, 4])).reads == [2, 0]
    assert memory.with_places(0, row(NO_STATE, [0], None)).outside is None, "a padding row of a graph has no state"


def test_a_place_is_named_by_the_id_that_is_bound_to_it(memory: UnifiedMemory) -> None:
    assert memory.slots_at([2, 5, 4, NO_STATE, 99]) == [1, 2, 4, NO_STATE, 99]
    assert memory.places_of([1, 2, 4]) == [2, 5, FREE]


def test_what_is_free_are_ids(memory: UnifiedMemory) -> None:
    assert (memory.free_slots(), memory.free_pages()) == ([4, 5], [4, 5])


@pytest.mark.parametrize(
    "lose",
    [
        lambda end: setattr(end, "_free_phys_pages", torch.tensor([], dtype=torch.int64)),
        lambda end: setattr(end, "free_virtual_ids", torch.tensor([4])),
        lambda end: setattr(end, "free_virtual_ids", torch.tensor([3, 4, 5])),
        lambda end: end._pending_reuse_pages_cpu.add(3),
    ],
    ids=["a hole is lost", "an id is lost", "an id in use is free", "a page in use waits to be free"],
)
def test_a_lost_page_is_counted(memory: UnifiedMemory, ends: tuple[End, End], lose: Callable[[End], None]) -> None:
    assert memory.miscounted() == 0
    lose(ends[1])
    assert memory.miscounted() == 1


def test_the_scheduler_s_stream_writes_behind_what_it_waits_for(memory: UnifiedMemory) -> None:
    """Pages are moved and zeroed behind the launches that have to be complete by then."""
    order: list[Any] = []
    device = SimpleNamespace(fence=lambda: order.append("fence"), drain=lambda: order.append("drain"))
    keys, states = memory.pools.kv.full_kv_pool, memory.pools.rows.mamba_pool
    keys.zero_physical_pages = keys.move_physical_pages = states.move_physical_pages = order.append
    memory.fence_writes(device)
    keys.zero_physical_pages(1)
    keys.move_physical_pages(2)
    states.move_physical_pages(3)
    assert order == ["fence", 1, "fence", 2, "fence", 3]
    SchedulerStream.wait_stream(memory.pools.allocator.mamba_allocator.forward_stream)
    assert order[-1] == "drain"


def test_windows_have_the_ids_of_keys_and_values_and_pages_of_their_own(windowed: UnifiedMemory) -> None:
    assert windowed.windows_of([1, 2, 3]) == [1, 0, 3], "the second has left its window"
    assert windowed.free_window_pages() == [2, 4, 5]
    placed = windowed.with_places(0, row(2, [1, 3])._replace(window_locations=[1, 0, 3], window_written=[3]))
    assert (placed.window_reads, placed.window_writes) == ([4, 0, 2], [2])
    assert windowed.first_window_token(3) == 2
    assert windowed.windows_of_node(torch.tensor([1, 3]), torch.tensor([4, 2])).tolist() == [1, 3]
    assert windowed.windows_of_node(torch.tensor([1, 3]), None) is None


def test_a_page_of_a_window_keeps_its_name_when_it_moves_or_gets_another_id(windowed: UnifiedMemory) -> None:
    windows = windowed.pools.allocator.swa_attn_allocator
    windows.bind(torch.tensor([2]), torch.tensor([4]))  # the tree's page takes over that of a request
    windows.virtual_to_physical[1] = FREE
    assert windowed.windows_of([1, 2, 3]) == [0, 1, 3]
    assert windowed.free_window_pages() == [2, 4, 5]
    assert windowed.first_window_token(1) == 4
    windows.bind(torch.tensor([2]), torch.tensor([3]))  # a move
    assert windowed.windows_of([2]) == [1] and windowed.first_window_token(1) == 3
    windows.bind(torch.tensor([1]), torch.tensor([5]))
    assert windowed.windows_of([1]) == [2], "the request's next page has the name that is free"


def test_a_load_of_a_window_names_a_place(windowed: UnifiedMemory) -> None:
    """Which has the name of the page that it is bound to; SGLang binds it before the copy."""
    assert [windowed.window_page_at(place) for place in (4, 2, 3)] == [1, 3, 0]
    windowed.pools.allocator.swa_attn_allocator.bind(torch.tensor([2]), torch.tensor([4]))
    assert windowed.window_page_at(4) == 1, "the page keeps its name"
    separate = SimpleNamespace(swa_attn_allocator=SimpleNamespace(page_size=4))
    assert Memory(Pools(None, None, separate)).window_page_at(9) == 2


def test_a_lost_page_of_a_window_is_counted(windowed: UnifiedMemory) -> None:
    assert windowed.miscounted() == 0
    windowed.pools.allocator.swa_attn_allocator.virtual_to_physical[3] = FREE
    assert windowed.miscounted() == 1
