"""Device memory of one engine, and the order of its device work.

Blocks that have neither owner nor key when a step is planned are dead. They are overwritten when the device starts that
step, not earlier, because steps in flight may still use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ....reference.layout import Group, Layout
from ....reference.numeric import tiny_model
from ....reference.numeric.tiny_model import TinyModel
from ....reference.prefix_cache import Key
from ...base.numbers import Bytes, LayerOutput, NumericRow
from ...base.observe import Access, Numeric
from ...base.trace import Config
from ..host.block_pool import BlockPool
from ..plan import Plan
from ..worker.tag_kernels import RowInput
from .arrays import ArrayBuilder, lone_writes
from .backend import Device
from .forward import Network, Results
from .graphs import Launcher, uploaded
from .indices import differing
from .kernel_calls import KernelCalls, Layer, WriteCall
from .kernels.staging import lanes
from .metadata import Metadata
from .moves import Arrival, Check, Move, Moves
from .offloaded_pages import OffloadedPages
from .paging import PageLayout, Paging
from .pool import BytePool, pack_dead_blocks, parts_of
from .prefetch import Prefetch
from .tables import Ints, Tables

FLOAT = {"fp8": "float8_e4m3fn", "fp16": "float16", "bf16": "bfloat16", "fp32": "float32"}


def build_model(config: Config) -> TinyModel:
    """Return the tiny model with the data types and mixer of the trace's options."""
    kv, state = config.options.get("kv_dtype", "fp8"), config.options.get("state_dtype", "fp32")
    mixer = config.options.get("mixer", "mamba2")
    return TinyModel(config.conv_width, FLOAT[kv], FLOAT[state], mixer)  # type: ignore[arg-type]


class PendingReport(NamedTuple):
    """A `Numeric` record whose values are in transfer from the device; meanwhile more work may be launched."""

    wait: Callable[[], Numeric]


class DeviceState:
    """Pool, network and queued moves of one engine."""

    def __init__(self, config: Config, layout: Layout, tables: Tables, draft_tables: Tables, device: Device) -> None:
        self.layout = layout
        self.tables = tables
        self.draft_tables = draft_tables
        self.device = device
        self.model = build_model(config)
        self.generations = [0] * layout.num_blocks
        self.calls = KernelCalls()
        self.lanes = lanes(device.torch)
        self.pages = PageLayout.of(layout, self.model, Paging.of(config.options))
        self.offloaded = OffloadedPages(layout, self.model, self.pages, device)
        self.results: tuple[Results, Sequence[RowInput], Mapping[str, Ints]] | None = None
        self.indices_sent = 0
        """Number of indices of the symbolic steps that overrode those computed on the device."""
        self._prefetched: dict[int, Prefetch] = {}
        """Uploads for the steps that are planned and not started, by step."""
        self._dead: set[int] = set()
        self.make_pool()

    def make_pool(self) -> None:
        """Allocate new bytes, all of them dead; queued work and captured graphs of the old ones are dropped."""
        self.pool = BytePool(self.layout, self.model, self.pages, self.device.torch)
        self.pool.fill_all(self.generations)
        self.moves = Moves(self.pool, self.offloaded, self.device.ops, self.lanes)
        self.network = Network(self.layout, self.model, self.pool, self.tables, self.device.ops, self.device.torch)
        self.launcher = Launcher(self.network, self.device, self.lanes)

    def drop_pool(self) -> None:
        """Free the bytes of the pool; `make_pool` allocates new ones."""
        self.lanes.finish()
        for prefetch in (self.moves.prefetch, *self._prefetched.values()):
            prefetch.release()
        self._prefetched.clear()
        del self.pool, self.moves, self.network, self.launcher

    def note_plan(self, plan: Plan, pool: BlockPool, allocated: Sequence[int]) -> None:
        """Prefetch for a planned step; blocks dead since the last plan are overwritten when it starts."""
        dead = {block for block in pool.free if block not in pool.labels}
        dying = (dead - self._dead) | set(allocated)
        self._dead = dead
        named = self._advance_generations(dying, allocated)
        self._prefetched[plan.step] = Prefetch.of(plan, named, self.lanes.early, self.pool, self.offloaded)

    def overwrite(self, allocated: Sequence[int]) -> None:
        """Overwrite blocks that are allocated between two steps, with nothing in flight."""
        assert not self._prefetched, "a planned step may use what these blocks held"
        self.moves.flush()
        self._dead -= set(allocated)
        slot = self.lanes.staging.put(pack_dead_blocks(self._advance_generations(allocated, allocated)))
        self.pool.fill_dead(slot.take())
        slot.release()

    def _advance_generations(self, dying: Iterable[int], allocated: Sequence[int]) -> dict[int, int]:
        """Return the generation of each dying block; an allocated block starts a new generation."""
        for block in allocated:
            self.generations[block] += 1
        return {block: self.generations[block] for block in dying}

    def begin(self, step: int) -> None:
        """Start a planned step on the device."""
        self.moves.flush()
        self.moves.prefetch = self._prefetched.pop(step)
        if self.moves.prefetch.dead:
            self.pool.fill_dead(self.moves.prefetch.dead.take())

    def copy_temporal(self, layer: int, source: int, destination: int) -> None:
        """Copy a recurrent state."""
        self.moves.copy(Move(layer, source, 0, destination, 0, self.pages.conv, "temporal"))

    def copy_window(self, layer: int, source: int, offset: int, destination: int) -> None:
        """Copy a convolution window from `offset` inputs into its buffer to the start of another."""
        entry, start = tiny_model.CONV_CHANNELS * 2, self.pages.conv
        length = min(self.layout.conv_width - 1, self.pages.conv_slots - offset)
        if length > 0:
            move = Move(layer, source, start + offset * entry, destination, start, length * entry, "conv")
            self.moves.copy(move)

    def copy_slot(self, layer: int, source: int, at: int, destination: int, slot: int, size: int) -> None:
        """Copy KV of one token from slot `at` of a block of `size` tokens to slot `slot` of another."""
        places = zip(("key", "value"), self.pages.slot(size, at), self.pages.slot(size, slot), strict=True)
        for part, start, end in places:
            self.moves.copy(Move(layer, source, start, destination, end, self.pages.entry, f"{part} {slot}"))

    def load_temporal(self, key: Key, layer: int, block: int) -> None:
        """Load a recurrent state into the pool."""
        self._load(key, layer, block, 0, 0, self.pages.conv, "temporal")

    def load_window(self, key: Key, layer: int, block: int) -> None:
        """Load a convolution window into the pool."""
        start, length = self.pages.conv, (self.layout.conv_width - 1) * tiny_model.CONV_CHANNELS * 2
        self._load(key, layer, block, start, start, length, "conv")

    def load_slot(self, key: Key, layer: int, at: int, block: int, slot: int, size: int) -> None:
        """Load KV of one token from slot `at` of a page of `size` tokens into slot `slot` of a block."""
        places = zip(("keys", "values"), self.pages.slot(size, at), self.pages.slot(size, slot), strict=True)
        for part, start, end in places:
            self._load(key, layer, block, start, end, self.pages.entry, part)

    def _load(self, key: Key, layer: int, block: int, source: int, destination: int, length: int, part: str) -> None:
        self.moves.load(Arrival(key, layer, block, source, destination, length, part))

    def save(self, key: Key, leaving: Sequence[tuple[int, int]]) -> None:
        """Save pages (layer, block) of the pool as they are now."""
        self._write(self.calls.take_lone_writes(()))
        for layer, block in leaving:
            self.moves.save(key, layer, block)

    def forward(self, inputs: Sequence[RowInput], graph: bool) -> None:
        """Run the kernel calls of the symbolic forward; `inputs` are the live rows."""
        self.moves.flush()
        lone = self.calls.take_lone_writes(inputs)
        builder = ArrayBuilder(self.pool, self.tables, self.calls, inputs)
        self.calls = KernelCalls()
        self._write(lone)
        if not builder.flat.updates and not builder.flat.prefills:
            return
        graph &= not builder.flat.prefills
        shape = builder.build(fixed=graph)
        self.indices_sent += builder.index_arrays.sent
        self.results = self.launcher.run(builder.arrays, shape, graph), inputs, builder.index_arrays.expected

    def _write(self, writes: dict[Layer, list[WriteCall]]) -> None:
        """Store the KV that a drafter wrote."""
        self.moves.wait_for_saves()
        for layer, calls in writes.items():
            index_arrays = lone_writes(self.pool, self.draft_tables, layer, calls)
            with uploaded(index_arrays.arrays, self.lanes.staging) as views:
                metadata = Metadata(self.layout, self.draft_tables, self.device.ops, views)
                found = self.network.write_lone(layer, metadata, max(len(call.inputs.tokens) for call in calls))
            self.indices_sent += index_arrays.sent
            (expected,) = index_arrays.expected.values()
            what = f"computing the drafter's slots of group {layer[0]}"
            self.moves.checks.append(Check(what, found, torch.from_numpy(expected.astype(np.int32))))

    def numeric(self, step: int, names: Sequence[str | None], accesses: Sequence[Access], dummy: bool) -> PendingReport:
        """Return the report on a step, whose values come in one transfer from the device."""
        self._write(self.calls.take_lone_writes(()))
        self.moves.flush()
        self.moves.prefetch.release()
        self.moves.prefetch = Prefetch()
        checks = self.moves.take_checks()
        device = [self.pool.broken_guards(), *(check.there for check in checks)]
        inputs: Sequence[RowInput] = ()
        expected: Mapping[str, Ints] = {}
        if self.results:
            results, inputs, expected = self.results
            device += results
            self.results = None
        download, guard_names, layers = self.lanes.downloads.send(device), self.pool.guard_names, self.network.layers

        def wait() -> Numeric:
            guards, *host = download.wait()
            moved, results = host[: len(checks)], host[len(checks) :]
            broken = [name for name, bad in zip(guard_names, guards, strict=True) if bad]
            failed = [one.what for one, seen in zip(checks, moved, strict=True) if not one.holds(seen)]
            if expected:
                failed += differing(expected, results[-1])
            rows, outputs = outputs_of(inputs, names, layers, *results[:-1]) if inputs else ([], [])
            return Numeric(step, self.model, rows, outputs, accesses, broken, failed, len(checks), dummy)

        return PendingReport(wait)

    def read(self, group: int, layer: int, block: int) -> Bytes:
        """Return the content of one page in the first fill."""
        page = self.pool.by_page[layer, self.pool.page(0, block)].cpu()
        spec = self.layout.groups[group]
        return _numbers(parts_of(page, spec, self.pages, self.model), spec)

    def read_stored(self, key: Key, layer: int) -> Bytes | None:
        """Return the content of an offloaded page in the first fill, None if there is none."""
        if layer not in self.offloaded.pages.get(key, ()):
            return None
        self.lanes.downloads.side.finish()
        first, second = self.offloaded.parts(key, layer)
        return _numbers((first[0], second[0]), self.layout.groups[key.group])


def outputs_of(
    inputs: Sequence[RowInput], names: Sequence[str | None], layers: Sequence[Layer], features: np.ndarray,
    agree: np.ndarray, choices: np.ndarray,
) -> tuple[list[NumericRow], list[LayerOutput]]:  # fmt: skip
    """Return the outputs of each row, and of each layer of each row."""
    rows, outputs, start = [], [], 0
    for one in inputs:
        tokens = slice(start, start + len(one.tokens))
        start = tokens.stop
        chosen = choices[:, tokens]
        rows.append(NumericRow(names[one.row], one.row, one.position, one.tokens, (chosen[0] + 2).tolist()))
        for index, (group, layer) in enumerate(layers):
            outputs.append(
                LayerOutput(len(rows) - 1, group, layer, features[tokens, index], bool(agree[tokens, index].all()))
            )
    return rows, outputs


def _numbers(parts: tuple[torch.Tensor, torch.Tensor], group: Group) -> Bytes:
    """Return states as they are, keys and values by token instead of by kernel block."""
    merged = 1 if group.kind == "attention" else 0
    return Bytes(*(part.float().flatten(0, merged).numpy() for part in parts))
