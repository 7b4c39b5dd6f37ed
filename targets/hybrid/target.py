"""The built-in engine behind the `Target` protocol.

With `async_depth` d, the forward of a step runs d steps after the step was planned; its results reach the scheduler
once it has run. Device work keeps the order of planning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import ClassVar

from mypy_extensions import mypyc_attr

from ...reference.prefix_cache import key_at
from ...reference.tokens import NO_INPUT, Truth
from ..base.inspection import Inspection
from ..base.observe import (
    Content,
    Delivered,
    Effect,
    Planned,
    Record,
    SlotContent,
    StateContent,
    View,
)
from ..base.shadow import POISON
from ..base.trace import (
    Abort,
    Arrive,
    CaptureGraphs,
    Config,
    DummyRun,
    Event,
    Evict,
    ExternalLoad,
    MoveTier,
    Preempt,
    ResetPrefixCache,
    Sleep,
    Step,
    Wake,
    fits,
    least_tokens,
    stop_tokens_of,
)
from .host.block_pool import BlockPool
from .host.cache_manager import CacheManager
from .host.scheduler import Scheduler
from .inspection import AT_REST, MARKS
from .layout import build_layout
from .offload.connector import Connector
from .offload.external_store import ExternalStore
from .plan import Plan, grammar_of
from .session_events import SessionEvents
from .tag_memory import TagMemory
from .worker.drafter import Drafter
from .worker.input_batch import NULL_INDICES, InputBatch
from .worker.model_runner import ModelRunner
from .worker.state_slots import StateSlots
from .worker.tag_kernels import TagKernels


@mypyc_attr(allow_interpreted_subclasses=True)
class HybridTarget:
    """One engine for one trace. The classes of its parts are class attributes, so that a mutant can replace one."""

    pool_class: ClassVar[type[BlockPool]] = BlockPool
    cache_class: ClassVar[type[CacheManager]] = CacheManager
    scheduler_class: ClassVar[type[Scheduler]] = Scheduler
    batch_class: ClassVar[type[InputBatch]] = InputBatch
    memory_class: ClassVar[type[TagMemory]] = TagMemory
    kernels_class: ClassVar[type[TagKernels]] = TagKernels
    states_class: ClassVar[type[StateSlots]] = StateSlots
    drafter_class: ClassVar[type[Drafter]] = Drafter
    store_class: ClassVar[type[ExternalStore]] = ExternalStore
    connector_class: ClassVar[type[Connector]] = Connector
    runner_class: ClassVar[type[ModelRunner]] = ModelRunner
    session_events_class: ClassVar[type[SessionEvents]] = SessionEvents

    def __init__(self, config: Config) -> None:
        self.config = config
        self.layout = layout = build_layout(config)
        self.slots = [group.block_size if group.kind == "attention" else 0 for group in layout.groups]
        """Attention slots per page, by group; 0 for groups of states."""
        self.pool = self.pool_class(config.num_blocks)
        self.cache = self.cache_class(layout, self.pool)
        self.batch = self.batch_class(layout, config.max_num_seqs, config.longest_span)
        layers = max(group.layers for group in layout.groups)
        self.memory = self.memory_class(
            config.num_blocks, layers, config.conv_width, POISON if layout.zeroing else NO_INPUT
        )
        self.store = self.store_class(layout, self.memory)
        self.connector = self.connector_class(layout, self.store, config.options.get("connector_saves") == "yes")
        self.scheduler = self.scheduler_class(config, self.cache, self.connector)
        self.kernels = self.kernels_class(self.memory, config.conv_width)
        self.states = self.states_class(layout, self.batch, self.memory)
        self.drafter = self.drafter_class(layout, self.kernels, config.max_num_seqs)
        self.runner = self.runner_class(
            layout,
            config,
            self.batch,
            self.memory,
            self.kernels,
            self.states,
            self.drafter,
            self.connector,
        )
        self.in_flight: deque[tuple[Plan, Step]] = deque()
        self.names_seen: set[str] = set()
        self.step = 0
        self.asleep = False
        self._handlers: dict[type[Event], Callable[..., list[Record]]] = {
            Arrive: self.arrive,
            Step: self.run_step,
            Preempt: self.preempt,
            Abort: self.abort,
            DummyRun: self.dummy_run,
            CaptureGraphs: self.capture_graphs,
            ResetPrefixCache: self.reset_prefix_cache,
            Evict: self.evict,
            Sleep: self.sleep,
            Wake: self.wake,
            ExternalLoad: self.external_load,
            MoveTier: self.move_tier,
            **self.session_events_class(self).handlers,
        }

    def apply(self, event: Event) -> Effect:
        """Apply one event and return its effect."""
        self.refused = ""
        return Effect(self._handlers[type(event)](event), self.refused)

    def arrive(self, event: Arrive) -> list[Record]:
        """Queue a request. No-op if the name was used before or the request does not fit."""
        if event.name in self.names_seen or not fits(self.config, event):
            return []
        self.names_seen.add(event.name)
        truth = Truth(event.prompt)
        prompt, stops = truth.tokens.copy(), stop_tokens_of(event, truth)
        self.scheduler.add(
            event.name, prompt, event.max_new_tokens, event.priority, event.session, stops, least_tokens(event),
            reads_cache=not event.prompt_logprobs, compiling=event.bad_grammar or event.structured,
            compiles=not event.bad_grammar, grammar=grammar_of(truth),
        )  # fmt: skip
        return []

    def run_step(self, event: Step) -> list[Record]:
        """Plan one step and execute the steps that are due."""
        if self.asleep or not self.has_work():
            return []
        budget = min(event.budget or self.config.max_num_batched_tokens, self.config.max_num_batched_tokens)
        plan = self.scheduler.schedule(self.step, budget, event.chunks)
        self.step += 1
        observed = [row.observed for row in plan.rows.values()]
        records: list[Record] = [Planned(plan.step, observed, tuple(plan.preempted), budget, self.view())]
        self.in_flight.append((plan, event))
        while len(self.in_flight) > (self.config.async_depth if plan.rows else 0):
            self.complete(records)
        return records

    def has_work(self) -> bool:
        """Return True if there are requests to serve or rows of ended requests that the worker has not dropped yet."""
        return bool(self.serving or self.scheduler.removed or self.in_flight)

    @property
    def serving(self) -> bool:
        """True if any request runs or waits; parked sessions do neither."""
        return bool(self.scheduler.running or self.scheduler.waiting or self.scheduler.compiling)

    def complete(self, records: list[Record]) -> None:
        """Execute the oldest planned step and pass its results to scheduler and client."""
        plan, event = self.in_flight.popleft()
        executed = self.runner.execute(plan, event, records)
        for row in plan.rows.values():
            self.cache.partial.unpin(row.pins)
        outputs, finished = [], []
        for row in plan.rows.values():
            tokens, ended = self.scheduler.settle(row, executed.sampled[row.name])
            if tokens:
                outputs.append((row.name, tokens))
            if ended:
                finished.append(row.name)
            request = self.scheduler.requests.get(row.name)
            if request is not None and request.epoch == row.epoch:
                request.drafts = executed.drafts[row.name]
        records.append(Delivered(plan.step, outputs, finished, self.scheduler.refuse(plan.refused)))

    def drain(self) -> list[Record]:
        """Execute every step in flight."""
        records: list[Record] = []
        while self.in_flight:
            self.complete(records)
        return records

    def preempt(self, event: Preempt) -> list[Record]:
        """Take the blocks of a running request or of an idle session; no-op for other requests."""
        request = self.scheduler.requests.get(event.name)
        if request is not None and request in self.scheduler.running:
            self.scheduler.preempt(request)
        elif request is not None and self.scheduler.sessions.holds(request):
            self.scheduler.sessions.drop_cache(request)
        return []

    def abort(self, event: Abort) -> list[Record]:
        """End a request, or several, or the turn of a session; their results still in flight are dropped."""
        for name in (event.name, *event.together):
            request = self.scheduler.requests.get(name)
            if request is None:
                continue
            if not (event.keeps_session and request.session):
                self.scheduler.finish(request)
            elif request not in self.scheduler.sessions.parked:
                self.scheduler.sessions.abort_turn(request)
        return []

    def dummy_run(self, event: DummyRun) -> list[Record]:
        """Execute a dummy batch, as an idle data-parallel rank does; no-op for a rank that serves requests."""
        if self.asleep or self.serving:
            return []
        records = self.run_step(Step()) if self.has_work() else []
        if event.uniform_decode:
            self.runner.dummy_run(self.step, event.rows, records)
            self.step += 1
        return records

    def capture_graphs(self, event: CaptureGraphs) -> list[Record]:
        """Capture the graphs, which leaves null indices in the persistent buffers."""
        for buffer in self.batch.captured:
            buffer[:] = [NULL_INDICES] * len(buffer)
        return []

    def reset_prefix_cache(self, event: ResetPrefixCache) -> list[Record]:
        """Forget every key. Without `preempt_running` this is refused while requests hold blocks."""
        records = self.drain() if event.preempt_running else []
        if event.preempt_running:
            for request in list(reversed(self.scheduler.running)):
                self.scheduler.preempt(request)
            self.scheduler.sessions.drop_all_caches()
        self.pool.forget_all()
        return records

    def evict(self, event: Evict) -> list[Record]:
        """Forget the keys of the oldest free blocks, as pool pressure does."""
        self.pool.evict(event.blocks)
        return []

    def sleep(self, event: Sleep) -> list[Record]:
        """Preempt every request and forget the cache; the bytes of the pool are lost."""
        if self.asleep:
            return []
        records = self.reset_prefix_cache(ResetPrefixCache(preempt_running=True))
        self.asleep = True
        return records

    def wake(self, event: Wake) -> list[Record]:
        """Allocate the pool again; its content is unknown."""
        if self.asleep:
            self.memory.scramble()
            self.asleep = False
        return []

    def external_load(self, event: ExternalLoad) -> list[Record]:
        """Put the first `length` tokens of a request into the external store, as computed by another engine."""
        request = self.scheduler.requests.get(event.name)
        if request is not None:
            self.store.seed(request.tokens[: event.length], event.states)
            if event.breaks_off:
                self.connector.breaks_off.add(event.name)
        return []

    def move_tier(self, event: MoveTier) -> list[Record]:
        """Save the cached whole blocks of a request's prefix to the external store; unpublish those not in use."""
        request = self.scheduler.requests.get(event.name)
        if request is None:
            return []
        records = self.drain()
        for block, key in list(self.pool.labels.items()):
            whole = key.depth % self.layout.groups[key.group].block_size == 0
            if whole and key == key_at(self.layout, key.group, request.tags, key.depth):
                self.store.save(key, block)
                if not self.pool.references[block]:
                    self.pool.unpublish(block)
        return records

    def view(self) -> View:
        """Return a snapshot of the host's metadata."""
        scheduler, pool, cache = self.scheduler, self.pool, self.cache
        return View(
            free=list(pool.free),
            references=pool.references.copy(),
            published={block: key for key, blocks in pool.index.items() for block in blocks},
            labels=pool.labels.copy(),
            tables={name: cache.tables(name) for name in cache.groups[0].tables},
            waiting=[request.name for request in (*scheduler.waiting, *scheduler.compiling)],
            running=[request.name for request in scheduler.running],
            pins=dict(self.cache.partial.pins),
            leftovers=self.count_leftovers(),
            drained={"blocks to zero": len(self.cache.to_zero)},
            stored=self.store.pages.copy(),
            parked=[request.name for request in scheduler.sessions.parked],
        )

    def count_leftovers(self) -> dict[str, int]:
        """Return the sizes of all per-request containers; all are 0 once no request is alive. While there are requests
        it is their number alone: counting the rest after each event would take long."""
        requests, groups = len(self.scheduler.requests), self.cache.groups
        if requests:
            return {"requests": requests}
        return {
            "requests": 0,
            "tables": sum(len(group.tables) for group in groups),
            "publication counters": sum(len(group.num_published) for group in groups),
            "worker rows": len(self.batch.names),
            "worker requests": len(self.runner.requests),
            "state columns": len(self.states.columns),
            "kept accepted counts": len(self.batch.accepted.kept),
            "drafter slots": len(self.drafter.slots),
            "mirrored tables": len(self.connector.mirror),
        }

    def read(self, group: int, layer: int, block: int) -> Content:
        """Return the content of one page."""
        if size := self.slots[group]:
            return SlotContent(self.memory.slots(layer, block, size))
        window = self.memory.conv(layer, block)[: self.config.conv_width - 1]
        return StateContent(self.memory.temporal(layer, block), window)

    def inspect(self) -> Inspection:
        """Return all parts."""
        parts = {
            "target": self,
            "pool": self.pool,
            "cache": self.cache,
            **{f"group {group.index}": group for group in self.cache.groups},
            "partial": self.cache.partial,
            "scheduler": self.scheduler,
            "sessions": self.scheduler.sessions,
            "batch": self.batch,
            "accepted": self.batch.accepted,
            "memory": self.memory,
            "store": self.store,
            "connector": self.connector,
            "kernels": self.kernels,
            "states": self.states,
            "drafter": self.drafter,
            "runner": self.runner,
        }
        return Inspection(parts, MARKS if self.in_flight else AT_REST, self.memory.pages())

    def close(self) -> None:
        """Do nothing: no resource outside Python is held."""
