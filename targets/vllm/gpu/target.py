"""Engines with a real model as one target: the same events, executed once for each fill of unused memory.

The engines plan the same steps, since tokens are the tag model's. What the first one shows is the target's; the others
only have to compute the same bits.

With batch-invariant kernels the steps of each request that finishes are repeated alone (`alone`), and every bit is
compared. Left to the tolerance: aborted requests, requests that resumed from a prefix which several plans computed, and
all that follows a step which another kernel computes alone than in the batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ....reference.layout import Layout
from ....reference.tokens import Truth
from ...base.observe import (
    Content,
    Delivered,
    Effect,
    Forward,
    ForwardRow,
    Planned,
    RealForward,
    RealRow,
    Record,
    StateWrite,
    View,
)
from ...base.trace import Arrive, Config, Event
from .. import hooks
from ..target import VllmTarget
from .alone import Alone
from .cold import Cold
from .engine import Fill, RealEngine
from .engines import ENGINES
from .lives import Lives
from .models import STATE_KIND, dtype, mixer
from .plans import Segment
from .real_model import Floats, Read

TOLERANCES = {
    ("gdn", "float32"): 0.15,
    ("mamba2", "float32"): 0.6,
    ("gdn", "bfloat16"): 1.0,
    ("mamba2", "bfloat16"): 2.0,
    ("mamba1", "bfloat16"): 2.0,
    ("short_conv", "bfloat16"): 1.0,
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
    name = mixer(config)
    kind = STATE_KIND.get(name, name)
    return TOLERANCES.get((kind, dtype(config)), TOLERANCES["mamba2", "float32"])


class Computed(NamedTuple):
    """The log-probabilities of one executed step, of tokens that are their request's own.

    rows    (request, position) of each row of `logprobs`
    writes  (group, layer, block) of the states that were stored
    segments  (request, what the step computed of it)
    ends    (request, group, layer, block) of the states at the ends of those segments
    live    the rows of the model's log-probabilities that `logprobs` are
    """

    step: int
    rows: Sequence[tuple[str, int]]
    logprobs: Floats
    writes: Sequence[tuple[int, int, int]]
    segments: Sequence[tuple[str, Segment]]
    ends: Sequence[tuple[str, int, int, int]]
    live: Sequence[int]


class Lane(VllmTarget):
    """One engine."""

    def __init__(self, engine: RealEngine, fill: Fill) -> None:
        self.real_engine = engine
        engine.reset(fill)
        super().__init__(engine.config, engine)
        self.fill: Fill = fill
        self.lengths: dict[str, int] = {}
        self.computed: list[Computed] = []
        self.reads: list[Read] = []
        """What the real model computed in the last event, one for each executed step."""
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
            rows = [index for index, _ in live]
            segments = self._segments(forward, read)
            ends = [
                (segments[access.row][0], access.group, access.layer, access.block)
                for access in forward.accesses
                if isinstance(access, StateWrite) and access.temporal is not None and access.block
                and access.row in segments and access.depth == segments[access.row][1].end
            ]  # fmt: skip
            own, parts = [place for _, place in live], list(segments.values())
            self.computed.append(Computed(forward.step, own, read.logprobs[rows], sorted(writes), parts, ends, rows))
        self.reads = list(reads)
        reads.clear()

    def _segments(self, forward: Forward, read: Read) -> dict[int, tuple[str, Segment]]:
        """What the step computed, by row."""
        found = {}
        for row, one in enumerate(forward.rows):
            kept = len([place for place in self._places(one) if place])
            if one.request is not None and kept:
                drafts = tuple(one.tokens[len(one.tokens) - one.drafts :])
                found[row] = one.request, Segment(one.position, kept, drafts, read.kernels.get(row, ""))
        return found

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

    def own_tokens(self, name: str) -> Sequence[int]:
        """All tokens that a request may get to."""
        truth: Truth = self.real_engine.drafter.truths[name]
        truth.reach(self.lengths[name])
        return truth.tokens[: self.lengths[name]]

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


class Follower(Lane):
    """An engine that repeats the steps of a leading one, with other bytes in unused memory.

    It needs no mirror: the tokens are those that the leading one's mirror chose. If its steps were others, its real
    model would compute something else, too.
    """

    def __init__(self, engine: RealEngine, fill: Fill) -> None:
        super().__init__(engine, fill)
        engine.real.mirror, engine.real.choose = None, self._choose
        self._chosen: Iterator[Read] = iter(())
        self._no_view = self.view()

    def follow(self, event: Event, leader: Lane) -> None:
        """Let an event happen that has happened to the leading engine."""
        hooks.activate(None)
        self._chosen = iter(leader.reads)
        self.apply(event)
        self.reads = list(self.real_engine.real.reads)
        self.real_engine.real.reads.clear()
        self.computed = [
            one._replace(logprobs=mine.logprobs[one.live])
            for one, mine, theirs in zip(leader.computed, self.reads, leader.reads, strict=False)
            if mine.indices == theirs.indices
        ]
        if len(self.computed) < len(leader.computed) or len(self.reads) != len(leader.reads):
            self.computed.clear()

    def _choose(self, indices: Sequence[int]) -> Sequence[int]:
        read = next(self._chosen, None)
        return read.tokens if read and read.indices == indices else [0] * len(indices)

    def _planned(self, plan: Any, budget: int) -> Planned:
        """Nothing is observed here."""
        return Planned(self.step, (), (), budget, self._no_view)


def first_difference(wanted: Sequence[int], seen: Sequence[int]) -> int:
    """Index of the first unequal element, or the shorter length."""
    for index, (one, other) in enumerate(zip(wanted, seen, strict=False)):
        if one != other:
            return index
    return min(len(wanted), len(seen))


class RealTarget:
    """Several engines, one trace."""

    def __init__(
        self, config: Config, device: str, fills: Sequence[Fill], reference: Cold | None, exact: Alone | None = None
    ) -> None:
        self._engines = [ENGINES.take(config, device, number) for number in range(len(fills))]
        self._first = Lane(self._engines[0], fills[0])
        self._others = [Follower(*one) for one in zip(self._engines[1:], fills[1:], strict=True)]
        self.lanes: Sequence[Lane] = [self._first, *self._others]
        self._sound = False
        self._reference = reference
        self._tolerance = tolerance(config, device)
        self.layout: Layout = self._first.layout
        self.compared = 0
        self.largest = 0.0
        """Log-probabilities compared with the reference: rows, and the largest difference."""
        block_size = max(group.block_size for group in config.groups if group.kind == "mamba")
        self.lives = Lives(block_size, exact) if exact else None

    def apply(self, event: Event) -> Effect:
        """Let the event happen everywhere."""
        self._sound = False
        effect = self._first.happen(event)
        for follower in self._others:
            follower.follow(event, self._first)
        by_step = {one.step: one for one in self._real_forwards()}
        exact = self._repeat_alone(effect) if self.lives else {}
        for lane in self.lanes:
            lane.fill_freed()
        records: list[Record] = []
        for record in effect.records:
            if isinstance(record, Forward) and record.step in by_step:
                records.append(by_step.pop(record.step))
                records += exact.pop(record.step, [])
            records.append(record)
        self._sound = True
        return Effect(records, effect.refused)

    def _repeat_alone(self, effect: Effect) -> dict[int, list[RealForward]]:
        """Follow the requests' plans; compare those of finished requests, by the step in which they finished."""
        assert self.lives
        lane, found = self._first, dict[int, list[RealForward]]()
        computed = {one.step: one for one in lane.computed}
        for record in effect.records:
            if isinstance(record, Planned):
                for row in record.rows:
                    if row.admitted:
                        self.lives.begin(row.name, lane.own_tokens(row.name)[: row.hit])
            elif isinstance(record, Forward) and record.step in computed:
                # States are as the last step left them.
                is_last = record.step == max(computed)
                one = computed[record.step]
                self.lives.extend(one.segments, lane.own_tokens)
                self.lives.keep_logprobs(one.rows, one.logprobs)
                if is_last:
                    self.lives.keep_states(one.ends, lane.states)
            elif isinstance(record, Delivered):
                ended = [self.lives.compare(record.step, name, lane.own_tokens(name)) for name in record.finished]
                found[record.step] = [one for one in ended if one]
        hooks.activate(lane.real_engine.recorder)
        return found

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
        expected = self._reference.expected(self._first.own_tokens(name))
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
