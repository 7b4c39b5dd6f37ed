"""Symbolic parts that repeat their work on the device.

Each class overrides a symbolic part and repeats on the device what the part did: the zero list as applied, the copies
as made, the kernel calls as logged. It is combined with the class that a target uses for the part, so a mutant needs no
numeric version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from ....reference.prefix_cache import Key
from ...base.observe import Content, Forward, Record, SlotContent
from ...base.trace import Step
from ..host.block_pool import BlockPool
from ..host.scheduler import Scheduler
from ..offload.external_store import ExternalStore
from ..plan import Load, Plan
from ..tag_memory import TagMemory
from ..worker.input_batch import StateIndices
from ..worker.model_runner import Executed, ModelRunner
from ..worker.tag_kernels import RowInput, TagKernels
from .device_state import DeviceState


class NumericMemory(TagMemory):
    """A store outside a kernel is a copy of what was read just before, unless it is loaded from outside the pool.

    arriving  key of the page being loaded, and its content by layer
    """

    device_state: DeviceState | None = None
    in_kernel = False
    arriving: tuple[Key, Mapping[int, Content]] | None = None

    def scramble(self) -> None:
        """Lose all content."""
        super().scramble()
        self._last_temporal = self._last_conv = -1
        self._last_buffer: tuple[int, ...] = ()
        self._last_slots: tuple[int, Sequence[int]] = (-1, ())
        if self.device_state:
            self.device_state.make_pool()

    def zero(self, block: int) -> None:
        """Zero the page of every layer."""
        super().zero(block)
        if self.device_state:
            self.device_state.moves.zero(block)

    def temporal(self, layer: int, block: int) -> int:
        """Return the tag of the recurrent state."""
        self._last_temporal = block
        return super().temporal(layer, block)

    def conv(self, layer: int, block: int) -> tuple[int, ...]:
        """Return the convolution buffer."""
        self._last_conv, self._last_buffer = block, super().conv(layer, block)
        return self._last_buffer

    def store_temporal(self, layer: int, block: int, tag: int) -> None:
        """Overwrite the recurrent state."""
        super().store_temporal(layer, block, tag)
        if self.device_state and self.arriving:
            self.device_state.load_temporal(self.arriving[0], layer, block)
        elif self.device_state and not self.in_kernel:
            self.device_state.copy_temporal(layer, self._last_temporal, block)

    def store_conv(self, layer: int, block: int, window: tuple[int, ...]) -> None:
        """Overwrite the convolution buffer; the tags give the window's offset in the source."""
        super().store_conv(layer, block, window)
        if self.device_state and self.arriving:
            self.device_state.load_window(self.arriving[0], layer, block)
        elif self.device_state and not self.in_kernel:
            buffer, length = self._last_buffer, len(window)
            places = [at for at in range(len(buffer)) if buffer[at : at + length] == window]
            self.device_state.copy_window(layer, self._last_conv, places[0] if places else 0, block)

    def slots(self, layer: int, block: int, size: int) -> Sequence[int]:
        """Return the tags of all attention slots of a page."""
        tags = super().slots(layer, block, size)
        self._last_slots = block, tags
        return tags

    def store_slots(self, layer: int, block: int, size: int, first: int, tags: Sequence[int]) -> None:
        """Overwrite attention slots; the tags give their slots in the source."""
        source, found = self._last_slots[0], list(self._last_slots[1])
        super().store_slots(layer, block, size, first, tags)
        for slot, tag in enumerate(tags, first):
            if self.device_state and self.arriving:
                key, pages = self.arriving
                page = pages[layer]
                assert isinstance(page, SlotContent)
                self.device_state.load_slot(key, layer, _place(page.tags, slot, tag), block, slot, size)
            elif self.device_state and not self.in_kernel:
                self.device_state.copy_slot(layer, source, _place(found, slot, tag), block, slot, size)


def _place(tags: Sequence[int], slot: int, tag: int) -> int:
    """Return the slot of a source with these tags that a tag came from."""
    here = slot < len(tags) and tags[slot] == tag
    return slot if here or tag not in tags else tags.index(tag)


class NumericStore(ExternalStore):
    """External store that keeps the bytes of its pages, too."""

    device_state: DeviceState | None = None

    def seed(self, tokens: Sequence[int], states: bool) -> None:
        """Add entries for these tokens, as computed by another engine."""
        before = set(self.pages)
        super().seed(tokens, states)
        if self.device_state:
            self.device_state.offloaded.seed([key for key in self.pages if key not in before], tokens)

    def save(self, key: Key, block: int) -> None:
        """Copy a block's pages out of the pool."""
        if key not in self.pages:
            self._leaving: list[tuple[int, int]] = []
            super().save(key, block)
            if self.device_state:
                self.device_state.save(key, self._leaving)

    def page(self, group: int, layer: int, block: int) -> Content:
        """Return the present content of one layer's page, and note it for saving."""
        self._leaving.append((layer, block))
        return super().page(group, layer, block)

    def load(self, step: int, request: str, load: Load, records: list[Record]) -> None:
        """Copy an entry into a block."""
        assert isinstance(self.memory, NumericMemory)
        pages = zip(self.layers(load.group), self.pages.get(load.key, ()), strict=False)
        self.memory.arriving = load.key, dict(pages)
        super().load(step, request, load, records)
        self.memory.arriving = None


class NumericKernels(TagKernels):
    """Kernels that record every call with its log."""

    device_state: DeviceState | None = None

    def state_row(self, group: int, layer: int, inputs: RowInput, at: StateIndices) -> tuple[int, ...]:
        """Run convolution and recurrence of one row."""
        before = len(self.log)
        with KernelScope(self.memory):
            tags = super().state_row(group, layer, inputs, at)
        if self.device_state:
            self.device_state.calls.add_state((group, layer), inputs, at, self.log[before:], self.is_null)
        return tags

    def write_slots(
        self, group: int, layer: int, inputs: RowInput, blocks: Sequence[int], size: int
    ) -> tuple[int, ...]:
        """Store KV of a row's tokens."""
        before = len(self.log)
        with KernelScope(self.memory):
            tags = super().write_slots(group, layer, inputs, blocks, size)
        if self.device_state:
            self.device_state.calls.add_slots((group, layer), inputs, size, self.log[before:], self.is_null)
        return tags

    def read_slots(
        self,
        group: int,
        layer: int,
        inputs: RowInput,
        blocks: Sequence[int],
        size: int,
        own: tuple[int, ...],
        first: int = 0,
    ) -> tuple[int, ...]:
        """Attend up to the row's last position."""
        before = len(self.log)
        tags = super().read_slots(group, layer, inputs, blocks, size, own, first)
        if self.device_state:
            self.device_state.calls.add_slots((group, layer), inputs, size, self.log[before:], self.is_null)
        return tags


class KernelScope:
    """Context of a running kernel, whose stores are not copies."""

    def __init__(self, memory: TagMemory) -> None:
        self.memory = memory

    def __enter__(self) -> None:
        if isinstance(self.memory, NumericMemory):
            self.memory.in_kernel = True

    def __exit__(self, *_: object) -> None:
        if isinstance(self.memory, NumericMemory):
            self.memory.in_kernel = False


class NumericRunner(ModelRunner):
    """Model runner that puts a pending `Numeric` before each `Forward`; the target waits for it."""

    device_state: DeviceState | None = None

    def execute(self, plan: Plan, event: Step, records: list[Record]) -> Executed:
        """Run one step."""
        assert self.device_state
        self.device_state.begin(plan.step)
        before = len(records)
        executed = super().execute(plan, event, records)
        self.report(plan.step, records, before)
        return executed

    def forward(
        self,
        plan: Plan,
        inputs: list[RowInput],
        indices: dict[int, list[StateIndices]],
        padded: int,
        graph: bool,
    ) -> list[tuple[int, ...]]:
        """Run all layers of the model."""
        outputs = super().forward(plan, inputs, indices, padded, graph)
        if self.device_state:
            self.device_state.forward(inputs, graph)
        return outputs

    def dummy_run(self, step: int, rows: int, records: list[Record]) -> None:
        """Run a decode graph over rows without requests."""
        assert self.device_state
        before = len(records)
        super().dummy_run(step, rows, records)
        self.device_state.forward((), graph=True)
        self.report(step, records, before)

    def report(self, step: int, records: list[Record], before: int) -> None:
        """Insert the device's report before the symbolic record of the same forward."""
        assert self.device_state
        for index in range(before, len(records)):
            record = records[index]
            if isinstance(record, Forward):
                names = [row.request for row in record.rows]
                pending = self.device_state.numeric(step, names, record.accesses, record.dummy)
                records.insert(index, cast("Record", pending))
                return
        records.append(cast("Record", self.device_state.numeric(step, (), (), False)))


class NumericPool(BlockPool):
    """Block pool that records the blocks allocated while a step is planned; otherwise `allocated` is None.

    Blocks allocated between steps (for a fork) are used at once, with nothing in flight.
    """

    device_state: DeviceState | None = None
    allocated: list[int] | None = None

    def allocate(self, count: int) -> list[int]:
        """Allocate `count` blocks."""
        blocks = super().allocate(count)
        if self.allocated is not None:
            self.allocated += blocks
        elif self.device_state:
            self.device_state.overwrite(blocks)
        return blocks


class NumericScheduler(Scheduler):
    """Scheduler that reports each plan, and the blocks it allocated, to the device."""

    device_state: DeviceState | None = None

    def schedule(self, step: int, budget: int, limits: Mapping[str, int]) -> Plan:
        """Plan the next step."""
        pool = self.cache.pool
        assert isinstance(pool, NumericPool)
        allocated: list[int] = []
        pool.allocated = allocated
        plan = super().schedule(step, budget, limits)
        pool.allocated = None
        if self.device_state:
            self.device_state.note_plan(plan, pool, allocated)
        return plan
