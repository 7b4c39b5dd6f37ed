"""Where the contents of state slots and token locations are in SGLang's pools.

Without unified memory ids are places. With it (`--enable-unified-memory`, 0.5.23) keys, values and states share the
bytes of one pool: requests and the tree name pages and state slots by virtual ids, each of which is bound to a page of
the pool. Pages of keys and values grow from one end of it, states from the other, and what is behind a freed page is
moved into its place (compaction). A forward's ids are translated when it is launched: SGLang fences what it reads of
the tables. The pools, their allocators and the tables are SGLang's own; its streams and events are stand-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ...base.observe import OutOfRange
from ..batch_rows import Row
from . import old_releases, scheduler_api
from .sizes import ROW_WORDS, Sizes

MOVES = 2
"""Most pages in one copy of a compaction, and most pages that a compaction which is not urgent moves per call. A server
has 4,096 for both."""


class SchedulerStream:
    """The scheduler's stream. What it waits for is executed at once."""

    @staticmethod
    def wait_event(event: Any) -> None:
        """Wait for a launch."""
        event.synchronize()

    @staticmethod
    def wait_stream(stream: ForwardStream) -> None:
        """Wait for all launches of a device."""
        stream.synchronize()


class ForwardStream:
    """The stream of a device's launches. What it would wait for has been executed."""

    def __init__(self, drain: Callable[[], None]) -> None:
        self.synchronize = drain

    def wait_stream(self, stream: Any) -> None:
        """Do nothing."""

    def wait_event(self, event: Any) -> None:
        """Do nothing."""


class Pools(NamedTuple):
    """Request rows with their states, keys and values, and the allocator of both."""

    rows: Any
    kv: Any
    allocator: Any


def make_unified_pools(
    sizes: Sizes, parameters: Any, states: list[int], attention: list[int], windows: list[int]
) -> Pools:
    """Return pools over one buffer, for the given state layers, attention layers and layers with a sliding window."""
    from sglang.srt.environ import envs
    from sglang.srt.mem_cache import unified_memory_pool

    # For the whole process: nothing else asks for a stream without a GPU.
    torch.cuda.current_stream = SchedulerStream  # type: ignore[assignment]
    with (
        envs.SGLANG_LAZY_COMPACTION_MAX_MOVES_PER_CALL.override(MOVES),
        envs.SGLANG_COMPACTION_MAX_PAGES_PER_MOVE.override(MOVES),
    ):
        common = {
            "device": "cpu",
            "kv_cache_dtype": torch.int64,
            "head_num": 1,
            "head_dim": ROW_WORDS,
            "page_size": sizes.page,
            "start_layer": 0,
            "end_layer": len(attention) + len(windows) - 1,
            "mamba_layer_ids": states,
            "full_attention_layer_ids": attention,
            "mamba2_cache_params": parameters,
            "model_context_len": sizes.context,
            "extra_max_context_len": sizes.extra_context,
            "max_mamba_cache_size": sizes.unified_states,
            "max_num_reqs": sizes.rows,
            "enable_memory_saver": False,
            "enable_mamba_extra_buffer": sizes.strategy != "no_buffer",
            "enable_mamba_extra_buffer_lazy": sizes.strategy == "extra_buffer_lazy",
            "speculative_num_draft_tokens": sizes.drafts or None,
            "disable_overlap_schedule": not sizes.overlap,
            "need_sort": sizes.disaggregation != "no",
            "lazy_compaction": sizes.unified == "lazy",
        }
        if windows:
            made = unified_memory_pool.init_unified_mamba_swa_pools(
                v_head_dim=ROW_WORDS,
                swa_head_num=1,
                swa_head_dim=ROW_WORDS,
                swa_v_head_dim=ROW_WORDS,
                swa_attention_layer_ids=windows,
                full_max_total_num_tokens=sizes.unified_tokens,
                swa_max_total_num_tokens=sizes.unified_window_tokens,
                sliding_window_size=sizes.sliding - 1,
                **common,
            )
        else:
            made = unified_memory_pool.init_unified_mamba_pools(
                is_draft_worker=False,
                use_mla_backend=False,
                max_total_num_tokens=sizes.unified_tokens,
                **common,
            )
    pools = Pools(made.req_to_token_pool, made.token_to_kv_pool, made.token_to_kv_pool_allocator)
    pages, slots = pools.allocator.full_attn_allocator, pools.allocator.mamba_allocator
    assert (slots.num_pages, slots.min_page_index) == (sizes.num_slots, sizes.reserved_slots)
    assert (pages.num_pages, pages.min_page_index) == (sizes.num_pages, sizes.reserved_pages)
    return pools


class Memory:
    """Translates ids of separate pools: an id is its place."""

    def __init__(self, pools: Pools) -> None:
        self.pools = pools

    def with_places(self, index: int, row: Row) -> Row:
        """Return row `index` of a batch with its places."""
        row = row._replace(place=row.slot, reads=row.locations, writes=row.written)
        return row._replace(window_reads=row.window_locations, window_writes=row.window_written)

    def windows_of(self, locations: Any) -> list[int]:
        """Return what token locations are in the pool of layers with a sliding window, 0 where they are no more."""
        mapped: list[int] = self.pools.allocator.full_to_swa_index_mapping[locations].tolist()
        return [max(location, 0) for location in mapped]

    def windows_of_node(self, locations: Any, windows: Any) -> Any:
        """Return the locations in that pool of a node of the tree, given by what it has for both pools."""
        return windows

    def first_window_token(self, page: int) -> int:
        """Return the place of the first token of a page of that pool."""
        return self.first_token(page)

    def window_page_at(self, place: int) -> int:
        """Return the page of that pool that the place of a token belongs to."""
        windows = scheduler_api.allocators(self.pools.allocator)[1]
        return place // int(windows.page_size)

    def places_of(self, slots: list[int]) -> list[int]:
        """Return the places of state slots."""
        return slots

    def translated(self, slots: Any) -> Any:
        """Return the places of a tensor of state slots, None for None."""
        return slots

    def slots_at(self, places: list[int]) -> list[int]:
        """Return the state slots at places."""
        return places

    def first_token(self, page: int) -> int:
        """Return the place of the first token of a page."""
        size: int = scheduler_api.allocators(self.pools.allocator)[0].page_size
        return page * size

    def free_slots(self) -> list[int]:
        """Return the free state slots."""
        return old_releases.free_slots(self.pools.rows)

    def free_pages(self) -> list[int]:
        """Return the free pages of attention layers."""
        return scheduler_api.free_pages(scheduler_api.allocators(self.pools.allocator)[0])

    def free_window_pages(self) -> list[int]:
        """Return the free pages of layers with a sliding window."""
        windows = scheduler_api.allocators(self.pools.allocator)[1]
        return [] if windows is None else scheduler_api.free_pages(windows)

    def fence_writes(self, device: Any) -> None:
        """Let writes of the scheduler's stream come after the launches of a device that it waits for."""

    def pin_during_copies(self, controller: Any) -> None:
        """Let no page move while a controller of copies to and from the host has any, as the scheduler does."""

    def launched(self, launch: Any, batch: Any) -> None:
        """Note a launched batch, as `Scheduler.run_batch` does with overlap."""

    def compact(self) -> None:
        """Move pages together where nothing is in flight."""

    def miscounted(self) -> int:
        """Return how many pages are lost or counted twice."""
        return 0


class UnifiedMemory(Memory):
    """Translates ids of a unified memory by SGLang's tables, as they are now."""

    def __init__(self, pools: Pools) -> None:
        super().__init__(pools)
        self._pages, self._windows = scheduler_api.allocators(pools.allocator)
        self._slots = pools.allocator.mamba_allocator
        if self._windows is not None:
            self._names = list(range(len(self._windows.virtual_to_physical)))
            self._ids = list(self._names)
            """Ids of pages of layers with a sliding window -> what they are called here, and the reverse. Such a page
            has the id of the page of keys and values that it belongs to, and may be given another one."""
            self._windows.bind = _noting(self._rename, self._windows.bind)

    def with_places(self, index: int, row: Row) -> Row:
        """Return row `index` of a batch with its places, `outside` if its state has none.

        SGLang's own functions translate; a location without a page has place 0, which is nobody's.
        """
        if row.outside:
            return row
        place = row.slot
        if row.has_state:
            [place] = self.places_of([row.slot])
            if place < 0:
                return row._replace(
                    outside=OutOfRange(index, 0, "place of slot", place, len(self._slots.virtual_to_physical))
                )
        allocator = self.pools.allocator
        reads, writes = torch.tensor(row.locations, dtype=torch.int64), torch.tensor(row.written, dtype=torch.int64)
        return row._replace(
            place=place,
            reads=allocator.translate_kv_loc(reads).tolist(),
            writes=allocator.translate_write_loc(writes).tolist(),
            window_reads=self._window_places(row.window_locations),
            window_writes=self._window_places(row.window_written),
        )

    def _window_places(self, locations: Sequence[int]) -> list[int]:
        size = self._pages.page_size
        ids = torch.tensor([self._ids[place // size] * size + place % size for place in locations], dtype=torch.int64)
        places: list[int] = self.pools.allocator.translate_loc_from_full_to_swa(ids).tolist() if locations else []
        return places

    def windows_of(self, locations: Any) -> list[int]:
        """Return what token locations are in the pool of layers with a sliding window, 0 where they are no more."""
        size = self._pages.page_size
        pages = torch.tensor([location // size for location in locations], dtype=torch.int64)
        is_bound = (self._windows.virtual_to_physical[pages] > 0).tolist()
        return [
            self._names[location // size] * size + location % size if bound else 0
            for location, bound in zip(locations, is_bound, strict=True)
        ]

    def windows_of_node(self, locations: Any, windows: Any) -> Any:
        """Return the locations in that pool of a node that has windows, by those of its keys and values.

        The tree has places there, which it does not follow when pages move; it frees by the ids.
        """
        return None if windows is None else torch.tensor(self.windows_of(locations.tolist()))

    def first_window_token(self, page: int) -> int:
        """Return the place of the first token of a page of that pool; a free page has place 0, which is nobody's."""
        [place] = self._window_places([page * self._pages.page_size])
        return max(place, 0)

    def window_page_at(self, place: int) -> int:
        """Return the page of that pool that the place of a token belongs to: a copy from the host names places."""
        virtual = int(self._windows.physical_to_virtual[place // self._pages.page_size])
        return self._names[virtual] if virtual >= 0 else 0

    def _rename(self, ids: Any, places: Any) -> None:
        """Let pages keep their names that are bound to other ids, as when the tree takes over those of a request."""
        windows = self._windows
        for virtual, place in zip(ids.tolist(), places.tolist(), strict=True):
            before = int(windows.physical_to_virtual[place])
            if before not in (-1, virtual) and int(windows.virtual_to_physical[before]) == place:
                names = self._names
                names[before], names[virtual] = names[virtual], names[before]
                self._ids[names[before]], self._ids[names[virtual]] = before, virtual

    def places_of(self, slots: list[int]) -> list[int]:
        """Return the places of state slots, -1 where there is none."""
        places: list[int] = self.translated(torch.tensor(slots, dtype=torch.int64)).tolist()
        return places

    def translated(self, slots: Any) -> Any:
        """Return the places of a tensor of state slots, None for None."""
        return None if slots is None else self.pools.rows.translate_mamba_indices(slots)

    def slots_at(self, places: list[int]) -> list[int]:
        """Return the state slots at places; a place that is free, or out of range, stays."""
        table = self._slots.physical_to_virtual.tolist()
        return [table[place] if 0 <= place < len(table) - 1 and table[place] >= 0 else place for place in places]

    def first_token(self, page: int) -> int:
        """Return the place of the first token of a page; a free page has place 0, which is nobody's."""
        size = self._pages.page_size
        place: int = self.pools.allocator.translate_kv_loc(torch.tensor([page * size])).item()
        return place

    def free_slots(self) -> list[int]:
        """Return the free state slots."""
        slots: list[int] = self._slots.free_virtual_ids.tolist()
        return slots

    def free_pages(self) -> list[int]:
        """Return the free pages of attention layers."""
        pages: list[int] = self._pages.free_virtual_ids.tolist()
        return pages

    def free_window_pages(self) -> list[int]:
        """Return the ids of pages that layers with a sliding window do not have."""
        if self._windows is None:
            return []
        is_free = self._windows.virtual_to_physical[: self._pages.num_pages] <= 0
        is_free[: self._pages.min_page_index] = False
        return [self._names[page] for page in is_free.nonzero().flatten().tolist()]

    def fence_writes(self, device: Any) -> None:
        """Let writes of the scheduler's stream come after the launches of a device that it waits for."""
        for end in self._ends:
            end.forward_stream = ForwardStream(device.drain)
        keys, states = self.pools.kv.full_kv_pool, self.pools.rows.mamba_pool
        tokens = [keys] if self._windows is None else [keys, self.pools.kv.swa_kv_pool]
        for pool in tokens:
            pool.zero_physical_pages = _behind(device.fence, pool.zero_physical_pages)
        for pool in (*tokens, states):
            pool.move_physical_pages = _behind(device.fence, pool.move_physical_pages)

    @property
    def _ends(self) -> list[Any]:
        return [end for end in (self._pages, self._slots, self._windows) if end is not None]

    def pin_during_copies(self, controller: Any) -> None:
        """Let no page move while a controller of copies to and from the host has any, as the scheduler does."""
        self.pools.allocator.set_host_transfer_move_gate(lambda: not controller.has_inflight_device_transfers())

    def launched(self, launch: Any, batch: Any) -> None:
        """Note a launched batch, as `Scheduler.run_batch` does with overlap."""
        self.pools.allocator.set_latest_forward_done_event(launch)
        self.pools.allocator.set_inflight_forward(launch, batch.out_cache_loc)

    def compact(self) -> None:
        """Move pages together where nothing is in flight, as the event loops do when they wait, or are idle."""
        self.pools.allocator.flush_opportunistic()

    def miscounted(self) -> int:
        """Return how many pages are lost or counted twice: each is bound to an id, or free, or waits to be."""
        windows = 0 if self._windows is None else _miscounted_windows(self._windows)
        return windows + sum(map(_miscounted, (self._pages, self._slots)))


def _behind(fence: Callable[[], None], write: Callable[..., None]) -> Callable[..., None]:
    def fenced(*arguments: Any) -> None:
        fence()
        write(*arguments)

    return fenced


def _noting(note: Callable[..., None], call: Callable[..., None]) -> Callable[..., None]:
    def noted(*arguments: Any) -> None:
        note(*arguments)
        call(*arguments)

    return noted


def _miscounted(end: Any) -> int:
    bound = (end.virtual_to_physical[1:-1] >= 0).sum().item()
    ids = end.num_pages - end.min_page_index - len(end.free_virtual_ids)
    holes = len(end._free_phys_pages) + len(end._pending_reuse_pages_cpu)
    return int(abs(bound - ids) + abs(bound + holes - end._allocated_pages()))


def _miscounted_windows(windows: Any) -> int:
    """Return the same of the pages between both ends, which have no ids of their own."""
    bound = (windows.virtual_to_physical[1:-1] > 0).sum().item()
    return int(abs(bound + len(windows._free_phys_pages) - (windows.high_wm_page - windows.low_wm_page)))
