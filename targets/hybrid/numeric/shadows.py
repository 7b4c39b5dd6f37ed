"""The symbolic parts with a numeric shadow.

Each part watches its symbolic base from the outside and repeats on the device what it did: the zero list as it was
applied, the copies as they were made, kernel calls by what they logged. They stand in front of whatever class a target
has for that part, so a mutant needs no numeric version of itself.
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
    """What is stored outside of a kernel was read just before: that is a copy, unless it comes from outside the pool.

    arriving  the key behind which a page is being loaded, and by layer what it holds
    """

    device_state: DeviceState | None = None
    in_kernel = False
    arriving: tuple[Key, Mapping[int, Content]] | None = None

    def scramble(self) -> None:
        """All bytes are lost."""
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
        """The recurrent state."""
        self._last_temporal = block
        return super().temporal(layer, block)

    def conv(self, layer: int, block: int) -> tuple[int, ...]:
        """The convolution buffer."""
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
        """Overwrite the convolution buffer; where in the source the window stood, its tags tell."""
        super().store_conv(layer, block, window)
        if self.device_state and self.arriving:
            self.device_state.load_window(self.arriving[0], layer, block)
        elif self.device_state and not self.in_kernel:
            buffer, length = self._last_buffer, len(window)
            places = [at for at in range(len(buffer)) if buffer[at : at + length] == window]
            self.device_state.copy_window(layer, self._last_conv, places[0] if places else 0, block)

    def slots(self, layer: int, block: int, size: int) -> Sequence[int]:
        """All attention slots of a page."""
        tags = super().slots(layer, block, size)
        self._last_slots = block, tags
        return tags

    def store_slots(self, layer: int, block: int, size: int, first: int, tags: Sequence[int]) -> None:
        """Overwrite attention slots; which ones of the source they were, their tags tell."""
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
    """Where in a source with these tags a slot came from."""
    here = slot < len(tags) and tags[slot] == tag
    return slot if here or tag not in tags else tags.index(tag)


class NumericStore(ExternalStore):
    """What is kept outside of the pool has its bytes there, too."""

    device_state: DeviceState | None = None

    def seed(self, tokens: Sequence[int], states: bool) -> None:
        """Another engine stored what it computed for these tokens."""
        before = set(self.pages)
        super().seed(tokens, states)
        if self.device_state:
            self.device_state.offloaded.seed([key for key in self.pages if key not in before], tokens)

    def save(self, key: Key, block: int) -> None:
        """Carry a block's pages out of the pool."""
        if key not in self.pages:
            self._leaving: list[tuple[int, int]] = []
            super().save(key, block)
            if self.device_state:
                self.device_state.save(key, self._leaving)

    def page(self, group: int, layer: int, block: int) -> Content:
        """What leaves the pool."""
        self._leaving.append((layer, block))
        return super().page(group, layer, block)

    def load(self, step: int, request: str, load: Load, records: list[Record]) -> None:
        """Carry an entry into a block."""
        assert isinstance(self.memory, NumericMemory)
        pages = zip(self.layers(load.group), self.pages.get(load.key, ()), strict=False)
        self.memory.arriving = load.key, dict(pages)
        super().load(step, request, load, records)
        self.memory.arriving = None


class NumericKernels(TagKernels):
    """Every call is noted with what it logged."""

    device_state: DeviceState | None = None

    def state_row(self, group: int, layer: int, inputs: RowInput, at: StateIndices) -> tuple[int, ...]:
        """Convolution and recurrence of one row."""
        before = len(self.log)
        with KernelScope(self.memory):
            tags = super().state_row(group, layer, inputs, at)
        if self.device_state:
            self.device_state.calls.add_state((group, layer), inputs, at, self.log[before:], self.is_null)
        return tags

    def write_slots(
        self, group: int, layer: int, inputs: RowInput, blocks: Sequence[int], size: int
    ) -> tuple[int, ...]:
        """Store keys and values of a row's tokens."""
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
        """Attention up to the row's last position."""
        before = len(self.log)
        tags = super().read_slots(group, layer, inputs, blocks, size, own, first)
        if self.device_state:
            self.device_state.calls.add_slots((group, layer), inputs, size, self.log[before:], self.is_null)
        return tags


class KernelScope:
    """While a kernel runs, what it stores is no copy."""

    def __init__(self, memory: TagMemory) -> None:
        self.memory = memory

    def __enter__(self) -> None:
        if isinstance(self.memory, NumericMemory):
            self.memory.in_kernel = True

    def __exit__(self, *_: object) -> None:
        if isinstance(self.memory, NumericMemory):
            self.memory.in_kernel = False


class NumericRunner(ModelRunner):
    """Puts the promise of a `Numeric` before each `Forward`; the target redeems it."""

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
        """All layers of the model."""
        outputs = super().forward(plan, inputs, indices, padded, graph)
        if self.device_state:
            self.device_state.forward(inputs, graph)
        return outputs

    def dummy_run(self, step: int, rows: int, records: list[Record]) -> None:
        """A decode graph over rows of no request."""
        assert self.device_state
        before = len(records)
        super().dummy_run(step, rows, records)
        self.device_state.forward((), graph=True)
        self.report(step, records, before)

    def report(self, step: int, records: list[Record], before: int) -> None:
        """What the device found, ahead of what the tags say about the same forward."""
        assert self.device_state
        for index in range(before, len(records)):
            record = records[index]
            if isinstance(record, Forward):
                names = [row.request for row in record.rows]
                promise = self.device_state.numeric(step, names, record.accesses, record.dummy)
                records.insert(index, cast("Record", promise))
                return
        records.append(cast("Record", self.device_state.numeric(step, (), (), False)))


class NumericPool(BlockPool):
    """Remembers what a step that is being planned was handed; `handed_out` is None when none is.

    What is handed out then (to a fork) is used at once, with nothing in flight."""

    device_state: DeviceState | None = None
    handed_out: list[int] | None = None

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` blocks."""
        blocks = super().allocate(count)
        if self.handed_out is not None:
            self.handed_out += blocks
        elif self.device_state:
            self.device_state.overwrite(blocks)
        return blocks


class NumericScheduler(Scheduler):
    """Tells the device which blocks died by the time a step was planned."""

    device_state: DeviceState | None = None

    def schedule(self, step: int, budget: int, limits: Mapping[str, int]) -> Plan:
        """Decide the next step."""
        pool = self.cache.pool
        assert isinstance(pool, NumericPool)
        handed_out: list[int] = []
        pool.handed_out = handed_out
        plan = super().schedule(step, budget, limits)
        pool.handed_out = None
        if self.device_state:
            self.device_state.note_plan(plan, pool, handed_out)
        return plan
