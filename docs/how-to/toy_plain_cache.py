"""A toy engine with plain caches: a batch of rows without a pool of blocks, with sessions, drafts and batch events.

    hybridfuzz fuzz --target python:toy_plain_cache:FACTORY --time 30s        # in this folder

The cache has one entry per row of the batch in each layer, as in Hugging Face transformers: rows are selected,
reordered, repeated, cropped and reset as a whole. Engine and adapter are one here, as in `toy_target.py`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hybridfuzz.reference.batch import choice, reordered, repeated, selected
from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.tokens import EMPTY, NO_INPUT, Truth, chain, draft_tokens, mix, next_token
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
from hybridfuzz.targets.base.protocol import Capabilities
from hybridfuzz.targets.base.trace import (
    Abort,
    Arrive,
    Config,
    Crop,
    Event,
    Park,
    Reorder,
    Repeat,
    Reset,
    Resume,
    Select,
    Step,
    fits,
)

State = tuple[int, tuple[int, ...]]
"""Recurrent state and convolution window of one row."""
KV = tuple[int, ...]
"""One tag for each position of one row."""
KEPT = 1000
"""Ids of the caches of parked sessions start here; those below are rows of the batch."""


class Cache:
    """The caches of a batch, `layers[group][row]`: a `State` or `KV`."""

    def __init__(self, groups: Sequence[Group], width: int) -> None:
        self.groups = groups
        self.width = width
        self.layers: list[list[State | KV]] = [[] for _ in groups]
        self._noise = random.Random(0)

    def append(self) -> None:
        """Add a row with nothing computed; its state is noise, so that reading it is noticed."""
        for group, rows in zip(self.groups, self.layers, strict=True):
            noise = self._noise.getrandbits(62)
            rows.append((noise, (noise,) * (self.width - 1)) if group.kind == "mamba" else ())

    def join(self, other: Cache) -> None:
        """Add the rows of another cache."""
        for rows, others in zip(self.layers, other.layers, strict=True):
            rows.extend(others)

    def select(self, indices: Sequence[int]) -> None:
        """Keep these rows, in this order; a row that is named twice is copied."""
        self.layers = [[rows[index] for index in indices] for rows in self.layers]

    def taken(self, index: int) -> Cache:
        """Return a cache with a copy of one row."""
        one = Cache(self.groups, self.width)
        one.layers = [[rows[index]] for rows in self.layers]
        return one

    def crop(self, tokens: int) -> None:
        """Cut the last positions of all rows. There must be no states."""
        self.layers = [[row[:-tokens] for row in rows] for rows in self.layers]

    def reset(self) -> None:
        """Empty all rows."""
        count, self.layers = len(self.layers[0]), [[] for _ in self.groups]
        for _ in range(count):
            self.append()


@dataclass
class Request:
    """A request: its tokens so far, how many of them are its prompt, where it ends, how many are computed."""

    name: str
    session: bool
    tokens: list[int]
    prompt: int
    length: int
    computed: int = 0
    drafts: Sequence[int] = ()

    def copy_of(self, source: Request, rank: int) -> Request:
        """Return this request with the tokens of `source`; copies of rank 1 and up continue with another token."""
        tokens = list(source.tokens)
        if rank and len(tokens) > source.prompt:
            tokens[-1] = choice(tokens[-1], rank)
        return replace(source, name=self.name, session=self.session, tokens=tokens, drafts=())


class Engine:
    """One engine for one trace."""

    def __init__(self, config: Config, layout: Layout) -> None:
        self.config = config
        self.layout = layout
        self.cache = self.new_cache()
        self.rows: list[Request] = []
        """The batch; row i of the cache belongs to `rows[i]`."""
        self.waiting: list[Request] = []
        self.sessions: dict[str, tuple[Request, Cache]] = {}
        """Sessions that are parked, or wait for their next turn, with their caches."""
        self.names: set[str] = set()
        self.steps = 0

    def new_cache(self) -> Cache:
        """Return a cache without rows."""
        return Cache(self.layout.groups, self.layout.conv_width)

    def apply(self, event: Event) -> Effect:
        """Execute one event."""
        if isinstance(event, Step):
            return self.step(event)
        if isinstance(event, Crop):
            return Effect(refused=self.crop(event.tokens))
        if isinstance(event, Arrive):
            self.arrive(event)
        elif isinstance(event, Abort):
            self.abort(event.name)
        elif isinstance(event, Park):
            self.remove([request for request in self.rows if request.name == event.name and request.session])
        elif isinstance(event, Resume):
            self.resume(event)
        elif isinstance(event, Select):
            self.select(event.names)
        elif isinstance(event, Reorder):
            self.copy_rows(reordered([request.name for request in self.rows], event.sources))
        elif isinstance(event, Repeat):
            names = [request.name for request in self.rows]
            self.copy_rows(repeated(names, event.times, self.config.max_num_seqs, self.names))
        elif isinstance(event, Reset):
            self.reset()
        return Effect()

    def arrive(self, event: Arrive) -> None:
        """Put a new request into the queue."""
        if event.name not in self.names and fits(self.config, event):
            self.names.add(event.name)
            tokens = list(Truth(event.prompt).tokens)
            length = len(tokens) + event.max_new_tokens
            self.waiting.append(Request(event.name, event.session, tokens, len(tokens), length))

    def abort(self, name: str) -> None:
        """End a request or a session."""
        self.waiting = [request for request in self.waiting if request.name != name]
        self.sessions.pop(name, None)
        if any(request.name == name for request in self.rows):
            self.keep([index for index, request in enumerate(self.rows) if request.name != name])

    def resume(self, event: Resume) -> None:
        """Start the next turn of a parked session."""
        if event.name not in self.parked():
            return
        request, _ = self.sessions[event.name]
        if fits(self.config, event, len(request.tokens)):
            request.tokens = list(Truth.after(request.tokens, event.prompt).tokens)
            request.prompt, request.drafts = len(request.tokens), ()
            request.length = request.prompt + event.max_new_tokens
            self.waiting.append(request)

    def parked(self) -> list[str]:
        """Return the sessions between two turns."""
        queue = [request.name for request in self.waiting]
        return [name for name in self.sessions if name not in queue]

    def select(self, names: Sequence[str]) -> None:
        """Keep some rows; the requests of the others end."""
        rows = [request.name for request in self.rows]
        self.keep([rows.index(name) for name in selected(rows, names)])

    def copy_rows(self, batch: dict[str, tuple[str, int]]) -> None:
        """Give each row the caches and tokens of its source: row -> (source, rank)."""
        if not batch:
            return
        requests = {request.name: request for request in self.rows}
        order = list(requests)
        self.names.update(batch)
        self.cache.select([order.index(source) for source, _ in batch.values()])
        self.rows = [
            requests.get(name, Request(name, False, [], 0, 0)).copy_of(requests[source], rank)
            for name, (source, rank) in batch.items()
        ]

    def crop(self, tokens: int) -> str:
        """Cut the last computed tokens of all rows; return the reason if that is refused."""
        if any(group.kind == "mamba" for group in self.layout.groups):
            return "a state cannot be rolled back"
        if all(request.computed > tokens for request in self.rows):
            self.cache.crop(tokens)
            for request in self.rows:
                request.computed -= tokens
        return ""

    def reset(self) -> None:
        """Empty the caches in place; the rows start again."""
        self.cache.reset()
        for request in self.rows:
            request.computed, request.drafts = 0, ()

    def keep(self, indices: Sequence[int]) -> None:
        """Keep these rows of the batch."""
        self.cache.select(indices)
        self.rows = [self.rows[index] for index in indices]

    def remove(self, leaving: Sequence[Request]) -> None:
        """Take requests out of the batch; sessions are parked with their caches."""
        for index, request in enumerate(self.rows):
            if request in leaving and request.session:
                self.sessions[request.name] = (request, self.cache.taken(index))
        self.keep([index for index, request in enumerate(self.rows) if request not in leaving])

    def step(self, event: Step) -> Effect:
        """Schedule and execute one step."""
        step, self.steps = self.steps, self.steps + 1
        budget = left = min(event.budget or self.config.max_num_batched_tokens, self.config.max_num_batched_tokens)
        planned: list[PlannedRow] = []
        for request in self.rows:
            left -= self.schedule(request, event, left, planned, admitted=False)
        while self.waiting and left and len(self.rows) < self.config.max_num_seqs:
            request = self.waiting.pop(0)
            kept = self.sessions.pop(request.name, None)
            self.cache.join(kept[1]) if kept else self.cache.append()
            self.rows.append(request)
            left -= self.schedule(request, event, left, planned, admitted=True)
        records = Planned(step, planned, (), budget, self.view())
        return Effect([records, *self.execute(step, event, planned)] if planned else [records])

    def schedule(self, request: Request, event: Step, left: int, planned: list[PlannedRow], *, admitted: bool) -> int:
        """Add the row of a request to the plan; return its number of tokens."""
        limits = [len(request.tokens) - request.computed, left, event.chunks.get(request.name, left)]
        count = min([*limits, self.config.long_prefill_token_threshold or left])
        if not count:
            return 0
        is_last = request.computed + count == len(request.tokens)
        request.drafts = request.drafts[: left - count] if is_last else ()
        count += len(request.drafts)
        kept = request.computed if admitted else 0
        planned.append(PlannedRow(request.name, request.computed, count, len(request.drafts), admitted, 0, kept=kept))
        return count

    def execute(self, step: int, event: Step, planned: Sequence[PlannedRow]) -> tuple[Forward, Delivered]:
        """Run the forward of a planned step."""
        requests = {request.name: (index, request) for index, request in enumerate(self.rows)}
        accesses: list[Access] = []
        batch, outputs, finished = [], [], []
        for index, row in enumerate(planned):
            cache_row, request = requests[row.name]
            known = request.tokens[row.start : row.start + row.num_tokens - row.drafts]
            tokens = (*known, *request.drafts)
            tags = self.forward(index, cache_row, request, tokens, accesses)
            sampled = self.verified(request, tokens, tags) if row.start + len(known) == len(request.tokens) else ()
            computed = len(known) + max(len(sampled) - 1, 0)
            self.write(index, cache_row, request, tokens[:computed], tags, accesses)
            batch.append(ForwardRow(row.name, row.start, tokens, row.drafts, sampled))
            request.computed += computed
            request.drafts = ()
            if sampled:
                delivered = sampled[: request.length - len(request.tokens)]
                request.tokens += delivered
                outputs.append((row.name, delivered))
                wanted, right = event.per_request.get(row.name, (event.drafts, event.right))
                last = mix(tags[computed - 1], sampled[-1])
                request.drafts = draft_tokens(last, min(wanted, self.config.num_speculative_tokens), right)
            if len(request.tokens) == request.length:
                finished.append(row.name)
        self.remove([request for request in self.rows if request.name in finished])
        return Forward(step, batch, accesses), Delivered(step, outputs, finished)

    def verified(self, request: Request, tokens: Sequence[int], tags: Sequence[int]) -> tuple[int, ...]:
        """Return the accepted drafts and the next token; of a session no more than its turn has left."""
        first = len(tokens) - len(request.drafts)
        sampled = [next_token(tags[first - 1])]
        for offset, draft in enumerate(request.drafts):
            if sampled[-1] != draft:
                break
            sampled.append(next_token(tags[first + offset]))
        return tuple(sampled[: request.length - len(request.tokens)] if request.session else sampled)

    def forward(
        self, row: int, cache_row: int, request: Request, tokens: tuple[int, ...], accesses: list[Access]
    ) -> Sequence[int]:
        """Let each layer read its cache and extend it by the tokens; return the tags of the last layer."""
        tags: Sequence[int] = ()
        for index, group in enumerate(self.layout.groups):
            start, cached = EMPTY, self.cache.layers[index][cache_row]
            if request.computed and group.kind == "mamba":
                temporal, window = cached
                start = temporal if group.recurrent else window[-1]
                accesses.append(StateRead(row, index, 0, 0, cache_row, *parts(group, (temporal, window))))
            elif request.computed:
                start = cached[-1]
                accesses.append(SlotRead(row, index, 0, (cache_row,), cached))
            tags = chain(start, tokens)
        return tags

    def write(
        self, row: int, cache_row: int, request: Request, tokens: tuple[int, ...], tags: Sequence[int],
        accesses: list[Access],
    ) -> None:  # fmt: skip
        """Store what the layers computed for the accepted tokens."""
        computed, count = request.computed, len(tokens)
        for index, group in enumerate(self.layout.groups):
            rows = self.cache.layers[index]
            if group.kind == "mamba":
                width = self.layout.conv_width - 1
                window = rows[cache_row][1] if computed else (NO_INPUT,) * width
                rows[cache_row] = (tags[count - 1], (*window, *tags[:count])[-width:])
                state = parts(group, rows[cache_row])
                accesses.append(StateWrite(row, index, 0, 0, cache_row, computed + count, *state))
                continue
            rows[cache_row] = (*rows[cache_row], *tags[:count])
            slots = range(computed, computed + count)
            accesses.append(SlotWrite(row, index, 0, computed, (cache_row,) * count, slots, tags[:count]))

    def view(self) -> View:
        """Return a snapshot. There is no pool: nothing is free, published or in a table."""
        caches = {request.name: index for index, request in enumerate(self.rows)}
        return View(
            free=(),
            references=(),
            published={},
            labels=None,
            tables={},
            waiting=[request.name for request in self.waiting],
            running=[request.name for request in self.rows],
            leftovers={"requests": len(self.rows) + len(self.waiting), "sessions": len(self.sessions)},
            parked=self.parked(),
            caches=caches | {name: KEPT + index for index, name in enumerate(self.sessions)},
        )

    def read(self, group: int, layer: int, block: int) -> Content:
        """Return the content of one layer of one cache."""
        cache, row = (self.cache, block) if block < KEPT else (list(self.sessions.values())[block - KEPT][1], 0)
        content = cache.layers[group][row]
        if self.layout.groups[group].kind == "attention":
            return SlotContent(content)
        temporal, window = parts(self.layout.groups[group], content)
        return StateContent(temporal, window or ())

    def close(self) -> None:
        """Do nothing: the engine holds no resources."""


def parts(group: Group, state: State) -> tuple[int | None, tuple[int, ...] | None]:
    """Return the parts of a state that the layers of a group have."""
    return (state[0] if group.recurrent else None, state[1] if group.conv else None)


def layout_of(config: Config) -> Layout:
    """Return the layout: no blocks, and single positions for attention."""
    states = config.options.get("states", "both")
    groups = [
        Group("mamba", group.block_size, recurrent=states != "convolution", conv=states != "recurrent")
        if group.kind == "mamba"
        else Group("attention", 1)
        for group in config.groups
    ]
    return Layout(
        tuple(groups),
        num_blocks=0,
        conv_width=config.conv_width,
        mode=config.mamba_cache_mode,
        prefix_caching=False,
        num_speculative_tokens=config.num_speculative_tokens,
        null_block=None,
        zeroing=False,
    )


class ToyFactory:
    """Opens toy engines."""

    name = "toy"
    capabilities = Capabilities(
        events=frozenset({"arrive", "step", "abort", "park", "resume", "select", "reorder", "repeat", "crop", "reset"}),
        modes=("none",),
        observes=frozenset({"accesses", "caches", "leftovers"}),
        block_sizes=((8, 8), (4, 4)),
        group_counts=((1, 1), (2, 1), (0, 1)),
        conv_widths=(4, 2),
        max_speculative_tokens=3,
        variable_drafts=True,
        options={"states": ("both", "both", "recurrent", "convolution")},
        features=frozenset({"chunks"}),
        lacks=frozenset({"preemption", "zeroing"}),
        traces_per_second=40.0,
    )

    def supports(self, config: Config) -> str:
        """Accept every configuration that the capabilities allow."""
        return ""

    def open(self, config: Config) -> Engine:
        """Return a fresh engine."""
        return Engine(config, layout_of(config))


FACTORY = ToyFactory()
