"""The numeric target for any class of built-in target, mutants included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....reference.prefix_cache import Key
from ...base.numbers import Bytes
from ...base.observe import Effect, Record
from ...base.trace import Config, Event, Sleep
from ..target import HybridTarget
from .backend import Device
from .device_state import DeviceState, PendingReport
from .shadows import NumericKernels, NumericMemory, NumericPool, NumericRunner, NumericScheduler, NumericStore
from .tables import Tables

PARTS: dict[str, type] = {
    "pool_class": NumericPool,
    "scheduler_class": NumericScheduler,
    "memory_class": NumericMemory,
    "kernels_class": NumericKernels,
    "store_class": NumericStore,
    "runner_class": NumericRunner,
}


class NumericTarget(HybridTarget):
    """The built-in engine, with a device that repeats its work on bytes."""

    device: Device

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        span, is_null = config.longest_span, self.kernels.is_null
        tables = Tables.of_batch(self.layout, self.batch, span, is_null)
        draft_tables = Tables.of_drafter(self.layout, self.drafter, span, is_null)
        self.device_state = DeviceState(config, self.layout, tables, draft_tables, self.device)
        parts: tuple[Any, ...] = (self.pool, self.scheduler, self.memory, self.kernels, self.store, self.runner)
        for part in parts:
            part.device_state = self.device_state

    def apply(self, event: Event) -> Effect:
        """Apply one event. The steps that it executes overlap; their results are awaited at its end."""
        effect = super().apply(event)
        if not self.asleep:
            self.device_state.moves.flush()  # moves between two steps
        pending: Sequence[Record | PendingReport] = effect.records
        records = [record.wait() if isinstance(record, PendingReport) else record for record in pending]
        return Effect(records, effect.refused)

    def sleep(self, event: Sleep) -> list[Record]:
        """Put the engine to sleep and free the bytes of the pool."""
        records = super().sleep(event)
        self.device_state.drop_pool()
        return records

    def read_bytes(self, group: int, layer: int, block: int) -> Bytes:
        """Return the content of a page as numbers."""
        return self.device_state.read(group, layer, block)

    def read_stored(self, key: Key, layer: int) -> Bytes | None:
        """Return the content of an offloaded page as numbers, None if there is none."""
        return self.device_state.read_stored(key, layer)

    def close(self) -> None:
        """Free the device's memory."""
        if not self.asleep:
            self.device_state.drop_pool()


def numeric(target_class: type[HybridTarget], device: Device) -> type[NumericTarget]:
    """Return `target_class` with numeric parts: each derives from a shadow and the original part, broken or not."""
    parts = {
        slot: type(
            f"{shadow.__name__}_{getattr(target_class, slot).__name__}", (shadow, getattr(target_class, slot)), {}
        )
        for slot, shadow in PARTS.items()
    }
    return type(f"Numeric_{target_class.__name__}", (NumericTarget, target_class), {"device": device, **parts})
