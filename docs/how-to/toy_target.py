"""The smallest target: a toy engine on one pool of blocks, without prefix caching, speculation or steps in flight.

    hybridfuzz fuzz --target python:toy_target:FACTORY --time 30s        # in this folder

Engine and adapter are one here. A real adapter builds the engine in `open`, hands it the events, and fills in the same
records from the engine's own metadata and its own memory.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence

from hybridfuzz.reference.layout import Layout, required_columns
from hybridfuzz.reference.tokens import EMPTY, NO_INPUT, Truth, chain, next_token
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
    Zeroed,
)
from hybridfuzz.targets.base.protocol import Capabilities
from hybridfuzz.targets.base.trace import Abort, Arrive, Config, Event, Step, fits


class Request:
    """A request: its tokens so far, how many of them are computed, and its blocks by group."""

    def __init__(self, event: Arrive) -> None:
        self.name = event.name
        self.tokens = list(Truth(event.prompt).tokens)
        self.length = len(self.tokens) + event.max_new_tokens
        self.computed = 0
        self.table: list[list[int]] = []


class Toy:
    """One engine for one trace."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.layout = Layout(
            config.layout_groups(), config.num_blocks, config.conv_width, config.mamba_cache_mode, prefix_caching=False
        )
        noise, largest = random.Random(0), max(group.block_size for group in config.groups)
        self.states = [(noise.getrandbits(62), (NO_INPUT,) * (config.conv_width - 1)) for _ in range(config.num_blocks)]
        self.slots = [[noise.getrandbits(62) for _ in range(largest)] for _ in range(config.num_blocks)]
        self.free = deque(range(1, config.num_blocks))
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.names: set[str] = set()
        self.steps = 0

    def apply(self, event: Event) -> Effect:
        """Execute one event. Arrivals and aborts leave no records."""
        if isinstance(event, Arrive) and event.name not in self.names and fits(self.config, event):
            self.names.add(event.name)
            self.waiting.append(Request(event))
        elif isinstance(event, Abort):
            self._forget(event.name)
        elif isinstance(event, Step):
            return self._step(event)
        return Effect()

    def _step(self, event: Step) -> Effect:
        step, self.steps = self.steps, self.steps + 1
        budget = left = min(event.budget or self.config.max_num_batched_tokens, self.config.max_num_batched_tokens)
        rows: list[PlannedRow] = []
        taken: list[int] = []
        preempted: list[str] = []
        for request in list(self.running):
            if request in self.running:
                left -= self._place(request, event, left, rows, taken, preempted)
        while self.waiting and left and not preempted and len(self.running) < self.config.max_num_seqs:
            request = self.waiting[0]
            if len(self.free) < len(self._missing(request, self._count(request, event, left))):
                break
            self.running.append(self.waiting.popleft())
            request.table = [[] for _ in self.config.groups]
            left -= self._place(request, event, left, rows, taken, preempted, admitted=True)
        planned = Planned(step, rows, preempted, budget, self.view())
        if not rows:
            return Effect([planned])
        for block in taken:
            self.slots[block] = [NO_INPUT] * len(self.slots[block])
        return Effect([planned, Zeroed(step, taken), *self._execute(step, rows)])

    def _count(self, request: Request, event: Step, left: int) -> int:
        """Return the number of tokens of a request that a step may compute."""
        limits = [len(request.tokens) - request.computed, left, event.chunks.get(request.name, left)]
        return min([*limits, self.config.long_prefill_token_threshold or left])

    def _missing(self, request: Request, count: int) -> list[int]:
        """Return the groups that need more blocks, each once per block."""
        missing = []
        for index, group in enumerate(self.layout.groups):
            has = len(request.table[index]) if request.table else 0
            needs = required_columns(group, self.layout.mode, request.computed + count, 0)
            missing += [index] * (needs - has)
        return missing

    def _place(
        self,
        request: Request,
        event: Step,
        left: int,
        rows: list[PlannedRow],
        taken: list[int],
        preempted: list[str],
        *,
        admitted: bool = False,
    ) -> int:
        """Give a request its blocks, preempting the requests behind it; return the number of tokens to compute."""
        count = self._count(request, event, left)
        if not count:
            return 0
        missing = self._missing(request, count)
        while len(self.free) < len(missing):
            victim = self.running.pop()
            preempted.append(victim.name)
            self._release(victim)
            victim.computed = 0
            self.waiting.appendleft(victim)
            if victim is request:
                return 0
        for group in missing:
            block = self.free.popleft()
            request.table[group].append(block)
            if self.layout.groups[group].kind == "attention":
                taken.append(block)
        rows.append(PlannedRow(request.name, request.computed, count, 0, admitted, 0))
        return count

    def _execute(self, step: int, rows: Sequence[PlannedRow]) -> tuple[Forward, Delivered]:
        requests = {request.name: request for request in self.running}
        accesses: list[Access] = []
        batch, outputs, finished = [], [], []
        for index, row in enumerate(rows):
            request = requests[row.name]
            tokens = tuple(request.tokens[row.start : row.start + row.num_tokens])
            tag = self._forward(index, request, tokens, accesses)
            request.computed += len(tokens)
            sampled = (next_token(tag),) if request.computed == len(request.tokens) else ()
            batch.append(ForwardRow(row.name, row.start, tokens, 0, sampled))
            if sampled:
                request.tokens += sampled
                outputs.append((row.name, sampled))
            if len(request.tokens) == request.length:
                finished.append(row.name)
        for name in finished:
            self._forget(name)
        return Forward(step, batch, accesses), Delivered(step, outputs, finished)

    def _forward(self, row: int, request: Request, tokens: tuple[int, ...], accesses: list[Access]) -> int:
        """Run one layer per group: read the state, extend it by the tokens, write it. Return the last tag."""
        start, tags = request.computed, (EMPTY,)
        for index, group in enumerate(self.layout.groups):
            table, size = request.table[index], group.block_size
            if group.kind == "mamba":
                state, window = self.states[table[0]] if start else (EMPTY, (NO_INPUT,) * (self.config.conv_width - 1))
                if start:
                    accesses.append(StateRead(row, index, 0, 0, table[0], state, window))
                tags = chain(state, tokens)
                window = (*window, *tags)[-len(window) :]
                self.states[table[0]] = (tags[-1], window)
                accesses.append(StateWrite(row, index, 0, 0, table[0], start + len(tokens), tags[-1], window))
                continue
            read = [self.slots[table[position // size]][position % size] for position in range(start)]
            if start:
                accesses.append(SlotRead(row, index, 0, table[: -(-start // size)], read))
            tags = chain(read[-1] if read else EMPTY, tokens)
            places = [(table[position // size], position % size) for position in range(start, start + len(tokens))]
            for (block, slot), tag in zip(places, tags, strict=True):
                self.slots[block][slot] = tag
            blocks, slots = zip(*places, strict=True)
            accesses.append(SlotWrite(row, index, 0, start, blocks, slots, tags))
        return tags[-1]

    def _forget(self, name: str) -> None:
        for request in [one for one in (*self.running, *self.waiting) if one.name == name]:
            self._release(request)
            (self.running if request in self.running else self.waiting).remove(request)

    def _release(self, request: Request) -> None:
        self.free.extend(block for blocks in request.table for block in blocks)
        request.table = []

    def view(self) -> View:
        """Return a snapshot: later events must not change it."""
        tables = {request.name: [list(blocks) for blocks in request.table] for request in self.running}
        owned = [block for table in tables.values() for blocks in table for block in blocks]
        return View(
            free=list(self.free),
            references=[owned.count(block) for block in range(self.config.num_blocks)],
            published={},
            labels=None,
            tables=tables,
            waiting=[request.name for request in self.waiting],
            running=[request.name for request in self.running],
            leftovers={"requests": len(self.running) + len(self.waiting)},
        )

    def read(self, group: int, layer: int, block: int) -> Content:
        """Return the content of one page."""
        if self.layout.groups[group].kind == "mamba":
            return StateContent(*self.states[block])
        return SlotContent(self.slots[block][: self.layout.groups[group].block_size])

    def close(self) -> None:
        """Do nothing: the engine holds no resources."""


class ToyFactory:
    """Opens toy engines."""

    name = "toy"
    capabilities = Capabilities(
        events=frozenset({"arrive", "step", "abort"}),
        modes=("none",),
        observes=frozenset({"pool", "tables", "accesses", "content", "leftovers"}),
        block_sizes=((8, 4), (16, 8), (8, 16)),
        group_counts=((1, 1), (2, 1)),
        features=frozenset({"block-tables"}),
        traces_per_second=20.0,
    )

    def supports(self, config: Config) -> str:
        """Accept every configuration that the capabilities allow."""
        return ""

    def open(self, config: Config) -> Toy:
        """Return a fresh engine."""
        return Toy(config)


FACTORY = ToyFactory()
