"""Arrays for the kernels of one group of state layers and one part of the batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..worker.tag_kernels import RowInput
from .indices import NO_STOP, IndexArrays, StateRule, Stop, state_rule, stop_rule
from .kernel_calls import KernelCalls, StateCall
from .pool import NO_PAGE, BytePool
from .tables import Ints, Tables

Filled = tuple[int, StateCall]
"""(fill, call)."""


class StateArrays:
    """Arrays of one part ("update " or "prefill "), whose rows, positions and tokens are already set."""

    def __init__(self, pool: BytePool, tables: Tables, index_arrays: IndexArrays, group: int, part: str) -> None:
        self.pool = pool
        self.index_arrays = index_arrays
        self.group = group
        self.part = part
        self.tables = tables
        self.layout = pool.layout

    def fill(self, rows: Sequence[tuple[int, RowInput]], calls: KernelCalls) -> None:
        """Add the inputs from which the device computes indices, and the entries that the host overrides."""
        layers = range(self.layout.groups[self.group].layers)
        by_row = [{call.inputs.row: call for call in calls.states[self.group, layer]} for layer in layers]
        of_layers = [[(fill, of_layer[one.row]) for fill, one in rows] for of_layer in by_row]
        rule = self._state_rule(of_layers[0])
        stops = self._stop_rule(rule, of_layers) if self.part == "prefill " else None
        for layer, ours in zip(layers, of_layers, strict=True):
            name = f"{self.group, layer} {self.part}"
            self.index_arrays.add(
                name + "temporal", rule.sources, self._pages((fill, call.temporal) for fill, call in ours)
            )
            self.index_arrays.add(name + "conv", rule.windows, self._pages((fill, call.conv) for fill, call in ours))
            if stops:
                self.index_arrays.add_stops(
                    name + "states ", stops, [self._stops(fill, call.states) for fill, call in ours]
                )
                self.index_arrays.add_stops(
                    name + "windows ", stops, [self._stops(fill, call.windows) for fill, call in ours]
                )
            else:
                self._add_outputs(name, rule.outputs, ours)

    def _where(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Return table, rows, positions and tokens."""
        arrays = self.index_arrays.arrays
        table = self.tables.view(self.group, arrays[f"{self.group} pages"])
        rows = arrays[f"{self.group} {self.part}rows"]
        return table, rows, arrays[self.part + "positions"], arrays[self.part + "tokens"]

    def _state_rule(self, calls: Sequence[Filled]) -> StateRule:
        name, arrays, layout = f"{self.group} {self.part}", self.index_arrays.arrays, self.layout
        arrays[name + "rows"] = np.array([self.tables.row(fill, call.table_row) for fill, call in calls], np.int32)
        arrays[name + "columns"] = np.array([call.column for _, call in calls], np.int32)
        arrays[name + "offsets"] = np.array([call.offset for _, call in calls], np.int32)
        rule = state_rule(
            *self._where(),
            arrays[name + "columns"],
            arrays[name + "offsets"],
            size=0 if layout.mode == "none" else layout.groups[self.group].block_size,
            width=1 if self.part == "prefill " else max(len(call.inputs.tokens) for _, call in calls),
        )
        self.index_arrays.expected |= {name + field: getattr(rule, field) for field in StateRule._fields}
        return rule

    def _stop_rule(self, rule: StateRule, of_layers: Sequence[Sequence[Filled]]) -> tuple[Ints, Ints]:
        """Return the expected stops, with room for as many as any row has, expected or overridden."""
        table, rows, positions, tokens = self._where()
        most = [max(len(call.states), len(call.windows)) for calls in of_layers for _, call in calls]
        if self.layout.mode == "all":
            size, name = self.layout.groups[self.group].block_size, f"{self.group} {self.part}"
            passed = (positions + tokens - 1) // size - positions // size
            stops = stop_rule(table, rows, positions, tokens, size=size, capacity=max(*most, int(passed.max()) + 1))
            self.index_arrays.expected |= {name + "counts": stops[0], name + "blocks": stops[1]}
            return stops
        counts = np.full((len(rows), max(1, *most)), NO_STOP)
        blocks = np.full_like(counts, NO_PAGE)
        counts[:, -1], blocks[:, -1] = tokens, rule.outputs[:, 0]
        return counts, blocks

    def _add_outputs(self, name: str, rule: Ints, calls: Sequence[Filled]) -> None:
        outputs, windows = np.full_like(rule, NO_PAGE), np.full_like(rule[:, 0], NO_PAGE)
        for index, (fill, call) in enumerate(calls):
            for count, page in self._stops(fill, call.states):
                outputs[index, count - 1] = page
            for _, page in self._stops(fill, call.windows):
                windows[index] = page
            tokens = len(call.inputs.tokens)
            outputs[index, tokens:] = rule[index, tokens:]  # no state is stored after a row's own tokens
        self.index_arrays.add(name + "outputs", rule, outputs)
        self.index_arrays.add(name + "windows", rule[:, 0], windows)

    def _pages(self, blocks: Iterable[tuple[int, int | None]]) -> Ints:
        return np.array([self.pool.page_or_null(fill, block) for fill, block in blocks], np.int32)

    def _stops(self, fill: int, stops: Sequence[tuple[int, int]]) -> list[Stop]:
        return [(count, self.pool.page(fill, block)) for count, block in stops]
