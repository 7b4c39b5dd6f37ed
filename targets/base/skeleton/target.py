"""The adapter: executes the events of a trace with the engine, and reports what the engine did."""

from __future__ import annotations

from dataclasses import dataclass

from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.tokens import Truth, next_token
from hybridfuzz.targets.base.observe import (
    Access,
    Content,
    Delivered,
    Effect,
    Forward,
    ForwardRow,
    Planned,
    PlannedRow,
    SlotContent,
    SlotRead,
    SlotWrite,
    StateContent,
    StateRead,
    StateWrite,
    View,
)
from hybridfuzz.targets.base.trace import Abort, Arrive, Config, Event, Step, fits

from .engine import Engine

STATE, ATTENTION = 0, 1
"""Groups of layers, in the order of the layout."""


@dataclass
class Request:
    """A request: its tokens so far, where it ends, how many tokens are computed."""

    name: str
    tokens: list[int]
    length: int
    computed: int = 0


class SkeletonTarget:
    """One engine for one trace."""

    def __init__(self, config: Config) -> None:
        self.config = config
        # TODO 2: describe the layers that your engine builds: see `Layout`, and the page "Add a target".
        self.layout = Layout(
            (Group("mamba", config.groups[0].block_size), Group("attention", 1)),
            num_blocks=0,  # plain caches; with a pool: its number of blocks, and `null_block`
            conv_width=config.conv_width,
            mode=config.mamba_cache_mode,
            prefix_caching=config.enable_prefix_caching,
            null_block=None,
            zeroing=False,
        )
        # TODO 3: build your engine; replace its model by layers that store tags in the engine's own tensors.
        self.engine = Engine(config.conv_width)
        self.waiting: list[Request] = []
        self.rows: list[Request] = []
        self.names: set[str] = set()
        self.steps = 0

    def apply(self, event: Event) -> Effect:
        """Execute one event; an event that names no live request does nothing."""
        # TODO 4: hand each event to your engine. Do not catch what it raises: that is a finding.
        if isinstance(event, Arrive) and event.name not in self.names and fits(self.config, event):
            self.names.add(event.name)
            tokens = list(Truth(event.prompt).tokens)
            self.waiting.append(Request(event.name, tokens, len(tokens) + event.max_new_tokens))
        elif isinstance(event, Abort):
            self.waiting = [request for request in self.waiting if request.name != event.name]
            self.leave([request for request in self.rows if request.name == event.name])
        elif isinstance(event, Step):
            return self.step(event)
        return Effect()

    def leave(self, leaving: list[Request]) -> None:
        """Take requests out of the batch."""
        if leaving:
            self.engine.keep_rows([row for row, request in enumerate(self.rows) if request not in leaving])
            self.rows = [request for request in self.rows if request not in leaving]

    def step(self, event: Step) -> Effect:
        """Schedule and execute one step."""
        step, self.steps = self.steps, self.steps + 1
        budget = left = min(event.budget or self.config.max_num_batched_tokens, self.config.max_num_batched_tokens)
        planned = []
        for request in [*self.rows, *self.waiting]:
            count = min(len(request.tokens) - request.computed, left, self.config.long_prefill_token_threshold or left)
            admitted = request in self.waiting
            if not count or (admitted and len(self.rows) == self.config.max_num_seqs):
                continue
            if admitted:
                self.waiting.remove(request)
                self.rows.append(request)
                self.engine.add_row()
            planned.append(PlannedRow(request.name, request.computed, count, drafts=0, admitted=admitted, hit=0))
            left -= count
        # Taken after the decision and before anything is executed.
        records = [Planned(step, planned, (), budget, self.view())]
        return Effect([*records, *self.execute(step, planned)] if planned else records)

    def execute(self, step: int, planned: list[PlannedRow]) -> tuple[Forward, Delivered]:
        """Execute the forward of a planned step."""
        accesses: list[Access] = []
        batch, outputs, finished = [], [], []
        for index, row in enumerate(planned):
            cache = next(cache for cache, request in enumerate(self.rows) if request.name == row.name)
            request = self.rows[cache]
            tokens = tuple(request.tokens[row.start : row.start + row.num_tokens])
            # TODO 5: report what the layers really read and wrote: let them note it in their own forward.
            accesses += self.reads(index, cache, request)
            tag = self.engine.forward(cache, tokens)
            request.computed += len(tokens)
            accesses += self.writes(index, cache, request, len(tokens))
            sampled = (next_token(tag),) if request.computed == len(request.tokens) else ()
            batch.append(ForwardRow(row.name, row.start, tokens, drafts=0, sampled=sampled))
            request.tokens += sampled
            if sampled:
                outputs.append((row.name, sampled))
            if len(request.tokens) == request.length:
                finished.append(request)
        self.leave(finished)
        names = [request.name for request in finished]
        return Forward(step, batch, accesses), Delivered(step, outputs, names)

    def reads(self, row: int, cache: int, request: Request) -> list[Access]:
        """Return the reads of one row: nothing before its first token."""
        if not request.computed:
            return []
        temporal, window = self.engine.states[cache]
        keys = tuple(self.engine.keys[cache])
        return [
            StateRead(row, STATE, 0, 0, cache, temporal, window),
            SlotRead(row, ATTENTION, 0, (cache,), keys),
        ]

    def writes(self, row: int, cache: int, request: Request, count: int) -> list[Access]:
        """Return the writes of one row that has computed `count` more tokens."""
        start = request.computed - count
        keys = tuple(self.engine.keys[cache][start:])
        return [
            StateWrite(row, STATE, 0, 0, cache, request.computed, *self.engine.states[cache]),
            SlotWrite(row, ATTENTION, 0, start, (cache,) * count, range(start, start + count), keys),
        ]

    def view(self) -> View:
        """Return a snapshot of the host's metadata. Without a pool there are no blocks, references and tables."""
        # TODO 6: read it from your engine's own structures.
        return View(
            free=(),
            references=(),
            published={},
            labels=None,
            tables={},
            waiting=[request.name for request in self.waiting],
            running=[request.name for request in self.rows],
            leftovers={"rows": len(self.engine.states)},
            caches={request.name: row for row, request in enumerate(self.rows)},
        )

    def read(self, group: int, layer: int, block: int) -> Content:
        """Return the content of one layer of a cache, from the engine's own memory."""
        if group == STATE:
            return StateContent(*self.engine.states[block])
        return SlotContent(tuple(self.engine.keys[block]))

    def close(self) -> None:
        """Release what the engine holds."""
