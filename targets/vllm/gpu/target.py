"""Engines with a real model as one target: the same events, executed once for each fill of unused memory.

The engines plan the same steps, since tokens are the tag model's. What the first one shows is the target's; the others
only have to compute the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from ....reference.layout import Layout
from ...base.observe import (
    Content,
    Effect,
    Forward,
    ForwardRow,
    RealForward,
    RealRow,
    Record,
    StateWrite,
    View,
)
from ...base.trace import Arrive, Config, Event
from .. import hooks
from ..target import VllmTarget
from .cold import Cold
from .engine import Fill, RealEngine
from .engines import ENGINES
from .models import dtype, mixer
from .real_model import Floats

TOLERANCES = {
    ("gdn", "float32"): 0.15,
    ("mamba2", "float32"): 0.6,
    ("gdn", "bfloat16"): 1.0,
    ("mamba2", "bfloat16"): 2.0,
}
"""Largest difference of a log-probability from the same tokens alone that counts as rounding: four to seven times the
largest that was measured on a tree with the known causes fixed (benchmarks/gpu_engines.md). Most of it is TF32,
Triton's default for products of float32."""
EXACT_PRODUCTS = 0.001
"""The same in float32 where products of float32 are not rounded to TF32: on an interpreter, and where
`TRITON_F32_DEFAULT` is tf32x3 (`devices.variables`) or ieee. 50 times the largest that was measured; the smallest
difference that a known defect makes is 900 times this."""


def tolerance(config: Config, device: str) -> float:
    """The tolerance for a trace."""
    exact = device == "interpreter" or os.environ.get("TRITON_F32_DEFAULT") in ("tf32x3", "ieee")
    if exact and dtype(config) == "float32":
        return EXACT_PRODUCTS
    return TOLERANCES[mixer(config), dtype(config)]


class Computed(NamedTuple):
    """The log-probabilities of one executed step, of tokens that are their request's own.

    rows    (request, position) of each row of `logprobs`
    writes  (group, layer, block) of the states that were stored
    """

    step: int
    rows: Sequence[tuple[str, int]]
    logprobs: Floats
    writes: Sequence[tuple[int, int, int]]


class Lane(VllmTarget):
    """One engine."""

    def __init__(self, engine: RealEngine, fill: Fill) -> None:
        self.real_engine = engine
        engine.reset(fill)
        super().__init__(engine.config, engine)
        self.fill: Fill = fill
        self.lengths: dict[str, int] = {}
        self.computed: list[Computed] = []
        self._clean: set[int] = set()

    def happen(self, event: Event) -> Effect:
        """Let the event happen."""
        hooks.activate(self.real_engine.recorder)
        self.computed.clear()
        effect = self.apply(event)
        self._collect(effect.records)
        return effect

    def arrive(self, event: Arrive) -> list[Record]:
        """Queue a request, and keep how long it can become."""
        self.lengths.setdefault(event.name, sum(length for _, length in event.prompt) + event.max_new_tokens)
        return super().arrive(event)

    def _collect(self, records: Sequence[Record]) -> None:
        reads = self.real_engine.real.reads
        forwards = [one for one in records if isinstance(one, Forward) and not one.dummy]
        for forward, read in zip(forwards, reads, strict=True):
            places = [place for row in forward.rows for place in self._places(row)]
            live = [
                (index, place)
                for index, token in enumerate(read.indices)
                if token < len(places) and (place := places[token]) is not None
            ]
            writes = {
                (access.group, access.layer, access.block)
                for access in forward.accesses
                if isinstance(access, StateWrite) and access.temporal is not None and access.block
            }
            values = read.logprobs[[index for index, _ in live]]
            self.computed.append(Computed(forward.step, [place for _, place in live], values, sorted(writes)))
        reads.clear()

    def _places(self, row: ForwardRow) -> list[tuple[str, int] | None]:
        """(request, position) of each token of a row; None where the output is thrown away: from a wrong draft on, and
        behind the request's last token."""
        if row.request is None:
            return [None] * len(row.tokens)
        truth = self.engine.drafter.truths[row.request]
        truth.reach(row.position + len(row.tokens))
        wanted = truth.tokens[row.position : row.position + len(row.tokens)]
        right = min(first_difference(wanted, row.tokens), self.lengths[row.request] - row.position)
        return [(row.request, row.position + index) if index < right else None for index in range(len(row.tokens))]

    def fill_freed(self) -> None:
        """Fill blocks that were freed and have no key; nothing may read them once no step is under way."""
        if self.in_flight:
            return
        pool = self.host.pool
        unused = {one.block_id for one in pool.free_block_queue.get_all_free_blocks() if one.block_hash is None}
        if fresh := unused - self._clean:
            self.real_engine.fill_blocks(sorted(fresh), self.fill)
        self._clean = unused

    def states(self, group: int, layer: int, blocks: Sequence[int]) -> torch.Tensor:
        """[blocks, words] bits of a layer's temporal states."""
        return self.real_engine.temporal(group, layer)[blocks].flatten(1)


def first_difference(wanted: Sequence[int], seen: Sequence[int]) -> int:
    """Index of the first unequal element, or the shorter length."""
    for index, (one, other) in enumerate(zip(wanted, seen, strict=False)):
        if one != other:
            return index
    return min(len(wanted), len(seen))


class RealTarget:
    """Several engines, one trace."""

    def __init__(self, config: Config, device: str, fills: Sequence[Fill], reference: Cold | None) -> None:
        self._engines = [ENGINES.take(config, device, number) for number in range(len(fills))]
        self.lanes = [Lane(engine, fill) for engine, fill in zip(self._engines, fills, strict=True)]
        self._sound = False
        self._first = self.lanes[0]
        self._reference = reference
        self._tolerance = tolerance(config, device)
        self.layout: Layout = self._first.layout
        self.compared = 0
        self.largest = 0.0
        """Log-probabilities compared with the reference: rows, and the largest difference."""

    def apply(self, event: Event) -> Effect:
        """Let the event happen everywhere."""
        self._sound = False
        effect = self._first.happen(event)
        for lane in self.lanes[1:]:
            lane.happen(event)
        by_step = {one.step: one for one in self._real_forwards()}
        for lane in self.lanes:
            lane.fill_freed()
        records: list[Record] = []
        for record in effect.records:
            if isinstance(record, Forward) and record.step in by_step:
                records.append(by_step.pop(record.step))
            records.append(record)
        self._sound = True
        return Effect(records, effect.refused)

    def _real_forwards(self) -> list[RealForward]:
        found = []
        for number, one in enumerate(self._first.computed):
            others = [lane.computed[number : number + 1] for lane in self.lanes[1:]]
            rows = []
            for index, (name, position) in enumerate(one.rows):
                agrees = all(
                    other and other[0].rows == one.rows
                    and other[0].logprobs[index].tobytes() == one.logprobs[index].tobytes()
                    for other in others
                )  # fmt: skip
                expected = self._expected(name, position)
                rows.append(RealRow(name, position, one.logprobs[index], expected, agrees))
                if expected is not None and agrees:
                    self.compared += 1
                    self.largest = max(self.largest, float(np.abs(one.logprobs[index] - expected).max()))
            found.append(RealForward(one.step, rows, self._tolerance, self._differing_states(one)))
        return found

    def _expected(self, name: str, position: int) -> Floats | None:
        if self._reference is None:
            return None
        truth = self._first.engine.drafter.truths[name]
        truth.reach(self._first.lengths[name])
        expected = self._reference.expected(truth.tokens[: self._first.lengths[name]])
        return None if expected is None else expected[position]

    def _differing_states(self, one: Computed) -> list[tuple[int, int, int]]:
        if len(self.lanes) < 2 or not one.writes or self._first.in_flight:
            return []
        by_layer: dict[tuple[int, int], list[int]] = {}
        for group, layer, block in one.writes:
            by_layer.setdefault((group, layer), []).append(block)
        first, *others = [[lane.states(*place, blocks) for place, blocks in by_layer.items()] for lane in self.lanes]
        differs = [
            torch.stack([(mine != lane[index]).any(1) for lane in others]).any(0) for index, mine in enumerate(first)
        ]
        places = [(*place, block) for place, blocks in by_layer.items() for block in blocks]
        return [place for place, bad in zip(places, torch.cat(differs).tolist(), strict=True) if bad]

    def view(self) -> View:
        """The host's metadata now."""
        return self._first.view()

    def read(self, group: int, layer: int, block: int) -> Content:
        """What the mirror holds for a page."""
        return self._first.read(group, layer, block)

    def close(self) -> None:
        """Give the engines back, unless an event raised an exception."""
        for lane in self.lanes:
            lane.close()
        if self._sound:
            ENGINES.give_back(self._engines)
