"""Clears and copies that releases up to 0.5.12 do immediately; later ones defer them to the batch.

A slot is cleared when it is allocated (up to 0.5.4 when it is freed) and copied into when a prefix matches, on the
scheduler's own stream: the model runner's stream waits for it before the next batch, it does not wait for the batch in
flight. Both happen here when SGLang does them, which with overlap is before a launched batch is executed; they are
reported with the batch of the request whose working slot it is, since that batch is the first to depend on them.
"""

from __future__ import annotations

from typing import Any


class Immediate:
    """Wraps a pool that allocates its own slots; does nothing if there is a `mamba_allocator`."""

    def __init__(self, rows: Any, clears_what_is_freed: bool) -> None:
        self._cleared: set[int] = set()
        self._copied: dict[int, int] = {}
        if not hasattr(rows, "mamba_allocator"):
            self._watch(rows.mamba_pool, clears_what_is_freed)

    def _watch(self, pool: Any, clears_what_is_freed: bool) -> None:
        hand_out, take_back, copy = pool.alloc, pool.free, pool.copy_from
        if clears_what_is_freed:
            self._cleared.update(pool.free_slots.tolist())

        def watched_alloc(size: int) -> Any:
            slots = hand_out(size)
            for slot in [] if slots is None else slots.tolist():
                self._copied.pop(slot, None)
                if not clears_what_is_freed:
                    self._cleared.add(slot)
            return slots

        def watched_free(slots: Any) -> None:
            take_back(slots)
            if clears_what_is_freed:
                self._cleared.update(slots.reshape(-1).tolist())

        def watched_copy(source: Any, destination: Any) -> None:
            copy(source, destination)
            self._copied[int(destination)] = int(source)

        pool.alloc, pool.free, pool.copy_from = watched_alloc, watched_free, watched_copy

    def take(self, slots: list[int]) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the working slots cleared, and copies into them as (source, slot), since the last call."""
        clears = [slot for slot in slots if slot in self._cleared]
        copies = [(self._copied.pop(slot), slot) for slot in slots if slot in self._copied]
        self._cleared.difference_update(slots)
        return clears, copies
