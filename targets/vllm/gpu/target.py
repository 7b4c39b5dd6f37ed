"""An engine with a real model as a target: its device work is done once for each fill of unused memory (`memories`).

What the engine's own memory shows is the target's; the others only have to get the same bits.

With batch-invariant kernels the steps of each request that finishes are repeated alone (`same_steps`), and every bit is
compared. Left to the tolerance: aborted requests, requests that resumed from a prefix which several plans computed, and
all that follows a step which another kernel computes alone than in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from msgspec import structs
from msgspec.json import encode

from ....reference.layout import Layout
from ....reference.tokens import Truth
from ...base.observe import (
    Content,
    Delivered,
    Effect,
    Forward,
    Planned,
    RealDraft,
    RealForward,
    RealRow,
    Record,
    StateWrite,
    View,
)
from ...base.trace import Config, Event, Turn, stop_tokens_of
from ..counterparts import kv_connector
from ..counterparts.kv_connector import Store
from ..counterparts.offloading import OffloadedStore
from ..models import mixer
from ..options import rank_count, windows_are_last
from ..shadow import patches
from ..target import VllmTarget
from ..versions import compat
from . import jitter, memories, rank_processes, same_steps, same_tokens
from .comparison import Comparison, tolerance
from .engines_of_process import kept
from .lives import Lives
from .memories import Memories
from .memory_budget import Closable, Kind
from .offloaded_pages import OffloadedPages
from .plans import Floats, Segment
from .real_engine import Fill, RealEngine, fill_bytes
from .real_model import Read
from .same_steps import SameSteps, has_exact_reference
from .same_tokens import SameTokens
from .stored_pages import StoredPages
from .turns import Place, Turns
from .unsaid_writes import unsaid_writes


class Computed(NamedTuple):
    """The log-probabilities of one executed step, of tokens that are their request's own.

    rows    (request, position) of each row of `logprobs`
    writes  (group, layer, block) of the states that were stored
    segments  (request, what the step computed of it)
    ends    (request, group, layer, block) of the states at the ends of those segments
    others  `logprobs` of each other memory
    drafts  what the draft model computed behind the step
    """

    step: int
    rows: Sequence[tuple[str, int]]
    logprobs: Floats
    others: Sequence[Floats]
    writes: Sequence[tuple[int, int, int]]
    segments: Sequence[tuple[str, Segment]]
    ends: Sequence[tuple[str, int, int, int]]
    drafts: Sequence[RealDraft] = ()


class Lane(VllmTarget):
    """One engine, with several memories. `fills` are what unused memory holds in them, the engine's own first."""

    def __init__(self, engine: RealEngine, fills: Sequence[Fill]) -> None:
        self.real_engine = engine
        engine.reset(fills[0])
        super().__init__(engine.config, engine)
        self.memories = Memories(engine.storages(), len(fills) - 1)
        self.turns = Turns(engine.drafter.truths)
        self.computed: list[Computed] = []
        self._clean: set[int] = set()
        self._unlike: dict[int, int] = {}
        """Block that the memories were made to differ in -> the step that did, during this event."""
        self._pages = [(fills[0], engine.pages())]
        for number, fill in enumerate(fills[1:]):
            self._pages.append((fill, [self.memories.counterpart(pages, number) for pages in engine.pages()]))
            for pages in self._pages[-1][1]:
                pages[:] = fill_bytes(pages.shape[1], engine.device, fill)
        self._states: dict[tuple[int, int], Sequence[torch.Tensor]] = {}
        if engine.kit.head:
            engine.recorder.behind_zeroing = self._unlike_zeros

    def connect(self, alone: SameTokens) -> None:
        """Let a KV connector, if there is one, save and load real pages; `alone` computes those of other engines."""
        if isinstance(self.store, Store):
            self.store.copies = StoredPages(self.real_engine, self.memories, alone, self._activate)
        elif isinstance(self.store, OffloadedStore):
            worker = self.store.worker
            worker.device.contents = OffloadedPages(worker, self.memories, self.real_engine.recorder.storages)

    def _activate(self) -> None:
        """Make this engine the one of the process whose work is observed, repeated and connected."""
        patches.activate(self.real_engine.recorder)
        memories.activate(self.memories)
        kv_connector.activate(self.real_engine.connector)

    def happen(self, event: Event) -> Effect:
        """Apply an event to the engine and all its memories."""
        self._activate()
        self.computed.clear()
        self._unlike.clear()
        with jitter.active(self.real_engine.kit.jitter):
            effect = self.apply(event)
        memories.activate(None)
        kv_connector.activate(None)
        self._collect(effect.records)
        return effect

    def _add(self, turn: Turn, truth: Truth, first: int, session: bool) -> None:
        """Add a request or a turn, and keep the length at which it ends."""
        stops = stop_tokens_of(turn, truth)
        answer = truth.answer_length(turn.max_new_tokens, stops)
        self.turns.begin(turn.name, truth.prompt_length + answer)
        super()._add(turn, truth, first, session)

    def _dummy_batch(self, rows: int) -> list[Record]:
        """Execute one dummy run, and add each block that it changed though its metadata names none there: a kernel may
        write where no argument of it points."""
        engine = self.real_engine
        before = [pages.clone() for pages in engine.pages()]
        records = super()._dummy_batch(rows)
        [dummy] = [one for one in records if isinstance(one, Forward)]
        unsaid = unsaid_writes(dummy.accesses, self.layout.sinks, engine.places(), before, engine.pages())
        seen = [*dummy.accesses, *unsaid]
        return [structs.replace(one, accesses=seen) if one is dummy else one for one in records]

    def close(self) -> None:
        """Stop recording, and let go of the other memories."""
        super().close()
        self.real_engine.recorder.behind_zeroing = lambda blocks: None
        self.memories = Memories((), 0)
        self._pages, self._states = [], {}

    def _collect(self, records: Sequence[Record]) -> None:
        reads = self.real_engine.real.reads
        for record in records:
            if isinstance(record, Planned):
                self.turns.planned(record.step, [row.name for row in record.rows])
        forwards = [one for one in records if isinstance(one, Forward) and not one.dummy]
        head = self.real_engine.kit.head
        drafts = dict(head.reads) if head else {}
        for forward, read in zip(forwards, reads, strict=True):
            by_row = self.turns.places(forward)
            given_away = {block for block, step in self._unlike.items() if step > forward.step}
            places = [place for row in by_row for place in row]
            live = [
                (index, place)
                for index, token in enumerate(read.indices)
                if token < len(places) and (place := places[token]) is not None
            ]
            # An event may have several steps: a state is there to be compared unless its block was given away since.
            states = [
                access
                for access in forward.accesses
                if isinstance(access, StateWrite) and access.temporal is not None and access.block
                and access.block not in given_away
            ]  # fmt: skip
            writes = {(access.group, access.layer, access.block) for access in states}
            rows = [index for index, _ in live]
            segments = segments_of(forward, read, by_row)
            ends = [
                (segments[access.row][0], access.group, access.layer, access.block)
                for access in states
                if access.row in segments and access.depth == segments[access.row][1].end
            ]
            own, parts = [place for _, place in live], list(segments.values())
            found = [one[rows] for one in (read.logprobs, *read.others)]
            guessed = drafts[forward.step] if head else ()
            self.computed.append(Computed(forward.step, own, found[0], found[1:], sorted(writes), parts, ends, guessed))
        reads.clear()
        if head:
            head.reads.clear()

    def _unlike_zeros(self, blocks: Sequence[int]) -> None:
        """Let zeroed blocks hold finite numbers in the other memories. A draft that is computed from zeros which nobody
        has stored has no reference that would show it; numbers that a kernel masks change nothing."""
        self._unlike.update(dict.fromkeys(blocks, self.real_engine.recorder.step))
        self._fill(blocks, [("random", all_pages) for _, all_pages in self._pages[1:]])

    def fill_freed(self) -> None:
        """Fill blocks that were freed and have no key; nothing may read them once no step is under way, but for what
        a connector is still to save."""
        if self.in_flight:
            return
        unused = self.host.pool.free_unlabelled().difference(self.store.to_save())
        if fresh := unused - self._clean:
            self._fill(sorted(fresh), self._pages)
        self._clean = unused

    def _fill(self, blocks: Sequence[int], memories: Sequence[tuple[Fill, Sequence[torch.Tensor]]]) -> None:
        where = torch.tensor(blocks, device=self.real_engine.device)
        for fill, all_pages in memories:
            for pages in all_pages:
                pages[where] = fill_bytes(pages.shape[1], self.real_engine.device, fill)

    def states(self, group: int, layer: int, blocks: Sequence[int]) -> torch.Tensor:
        """[blocks, words] bits of a layer's temporal states."""
        return self._temporal(group, layer)[0][blocks].flatten(1)

    def differing_states(self, places: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Return those of some states, (group, layer, block) each, that have other bits in another memory."""
        if not places or not self.memories.others or self.in_flight:
            return []
        by_layer: dict[tuple[int, int], tuple[int, ...]] = {}
        for group, layer, block in places:
            by_layer[group, layer] = (*by_layer.get((group, layer), ()), block)
        device = self.real_engine.device
        where = {blocks: torch.tensor(blocks, device=device) for blocks in set(by_layer.values())}
        differs = []
        for place, blocks in by_layer.items():
            own, *others = [state[where[blocks]].flatten(1) for state in self._temporal(*place)]
            differs.append(torch.stack([(own != other).any(1) for other in others]).any(0))
        in_order = [(*place, block) for place, blocks in by_layer.items() for block in blocks]
        return [place for place, bad in zip(in_order, torch.cat(differs).tolist(), strict=True) if bad]

    def _temporal(self, group: int, layer: int) -> Sequence[torch.Tensor]:
        """[blocks, ...] bits of a layer's temporal states in each memory."""
        if (group, layer) not in self._states:
            own = self.real_engine.temporal(group, layer)
            others = [self.memories.counterpart(own, number) for number in range(len(self.memories.others))]
            self._states[group, layer] = own, *others
        return self._states[group, layer]


def segments_of(
    forward: Forward, read: Read, places: Sequence[Sequence[Place | None]]
) -> dict[int, tuple[str, Segment]]:
    """Return what a step computed, by row; `places` are those of the rows' tokens."""
    found = {}
    for row, (one, own) in enumerate(zip(forward.rows, places, strict=True)):
        kept = sum(place is not None for place in own)
        if one.request is not None and kept:
            drafts = tuple(one.tokens[len(one.tokens) - one.drafts :])
            found[row] = one.request, Segment(one.position, kept, drafts, read.kernels.get(row, ""))
    return found


class RealTarget:
    """An engine for one trace."""

    def __init__(
        self, config: Config, device: str, fills: Sequence[Fill], say: Callable[[str], None] = lambda what: None
    ) -> None:
        """`say` is told what is built."""
        # All engines of a trace read it while they run.
        compat.lay_out_windows("DS" if windows_are_last(config) else "SD")
        self._lent: list[Closable] = []
        self._say = say
        exact = (
            self._lend("steps", same_steps.plain(config), device, SameSteps) if has_exact_reference(config) else None
        )
        reference = self._lend("tokens", same_tokens.plain(config), device, SameTokens)
        comparison = Comparison(reference, tolerance(config, device))
        self._engine = self._lend("engine", config, device, RealEngine)
        self.fills = fills
        self.lane = Lane(self._engine, fills)
        self.lane.connect(reference)
        self._sound = False
        self.comparison = comparison
        self.layout: Layout = self.lane.layout
        block_size = max(group.block_size for group in config.groups if group.kind == "mamba")
        self.lives = Lives(block_size, exact) if exact else None

    def _lend(self, kind: str, config: Config, device: str, build: Callable[[Config, str], Kind]) -> Kind:
        """Take an engine, or a reference, that is given back when this target is closed."""

        def built() -> Kind:
            self._say(f"opening an engine ({build.__name__}, {mixer(config)})")
            return build(config, device)

        generation = 0
        if (ranks := rank_count(config)) > 1:
            self._say(f"waiting for {ranks} data-parallel ranks")
            generation = rank_processes.prepare(ranks, device)
        lent: Kind = kept().take((kind, encode(config), device, generation), built)
        self._lent.append(lent)
        return lent

    def apply(self, event: Event) -> Effect:
        """Apply an event, and add what the real model computed to its records."""
        self._sound = False
        try:
            effect = self.lane.happen(event)
        except Exception as error:
            self._engine.settle_ranks(error)
            raise
        by_step = {one.step: one for one in self._real_forwards()}
        exact = self._repeat_alone(effect) if self.lives else {}
        self.lane.fill_freed()
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
        lane, found = self.lane, dict[int, list[RealForward]]()
        computed = {one.step: one for one in lane.computed}
        for record in effect.records:
            if isinstance(record, Planned):
                for row in record.rows:
                    if row.admitted:
                        own = lane.turns.tokens(row.name)
                        self.lives.begin(row.name, own[: row.hit], own[row.hit : row.hit + row.external])
            elif isinstance(record, Forward) and record.step in computed:
                # States are as the last step left them.
                is_last = record.step == max(computed)
                one = computed[record.step]
                self.lives.extend(one.segments, lane.turns.tokens)
                self.lives.keep_logprobs(one.rows, one.logprobs)
                if is_last:
                    self.lives.keep_states(one.ends, lane.states)
            elif isinstance(record, Delivered):
                ended = [self.lives.compare(record.step, name, lane.turns.tokens(name)) for name in record.finished]
                found[record.step] = [one for one in ended if one]
        patches.activate(lane.real_engine.recorder)
        return found

    def _real_forwards(self) -> list[RealForward]:
        found = []
        for one in self.lane.computed:
            rows = []
            for index, (name, position) in enumerate(one.rows):
                agrees = all(other[index].tobytes() == one.logprobs[index].tobytes() for other in one.others)
                turns, found_there = self.lane.turns, one.logprobs[index]
                expected = self.comparison.expected(turns.tokens(name), position, found_there, turns.beside(name))
                rows.append(RealRow(name, position, one.logprobs[index], expected, agrees))
            states = self.lane.differing_states(one.writes)
            found.append(RealForward(one.step, rows, self.comparison.tolerance, states, one.drafts))
        return found

    def view(self) -> View:
        """The host's metadata now."""
        return self.lane.view()

    def read(self, group: int, layer: int, block: int) -> Content:
        """What the mirror holds for a page."""
        return self.lane.read(group, layer, block)

    def close(self) -> None:
        """Give the engine and its references back; close them if an event raised an exception."""
        self.lane.close()
        memories.activate(None)
        kv_connector.activate(None)
        for lent in self._lent:
            if self._sound:
                kept().give_back(lent)
            else:
                kept().discard(lent)
        self._lent.clear()
