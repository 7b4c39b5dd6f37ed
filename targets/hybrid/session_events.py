"""Handlers of session events: a turn ends (park), its last tokens are dropped (truncate), the session is copied (fork),
and its next turn arrives (resume).

A fork copies a parked session:

    attention   full blocks are shared; a partly filled block is copied
    states      the running state is copied into a new block, from the column where accepted drafts left it

No step is in flight then, so the copies cannot overtake a forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mypy_extensions import mypyc_attr

from ...reference.tokens import Truth
from ..base.observe import Record
from ..base.trace import Config, Event, Fork, Park, Resume, Truncate, fits, least_tokens, stop_tokens_of
from .host.block_pool import BlockPool
from .host.block_tables import AttentionGroup
from .host.cache_manager import CacheManager
from .host.scheduler import Scheduler
from .layout import NULL_BLOCK
from .plan import Plan, Request, grammar_of
from .tag_memory import TagMemory
from .worker.input_batch import InputBatch
from .worker.model_runner import ModelRunner
from .worker.state_slots import StateSlots


class SessionEngine(Protocol):
    """The engine as session events see it: its parts, and a way to execute all steps in flight."""

    config: Config
    pool: BlockPool
    cache: CacheManager
    scheduler: Scheduler
    batch: InputBatch
    memory: TagMemory
    states: StateSlots
    runner: ModelRunner
    step: int
    refused: str
    names_seen: set[str]

    def drain(self) -> list[Record]:
        """Execute every planned step and return its records."""


class Forks:
    """Allocates and fills the blocks of forks."""

    def __init__(self, engine: SessionEngine) -> None:
        self.cache = engine.cache
        self.memory = engine.memory
        self.states = engine.states
        self.batch = engine.batch

    def blocks_needed(self, settled: int) -> int:
        """Return how many blocks a fork of a session with `settled` tokens cannot share."""
        return sum(group.kind == "mamba" or settled % group.block_size > 0 for group in self.cache.groups)

    def fill(self, parent: Request, name: str) -> None:
        """Build the tables of the fork `name` and fill its own blocks."""
        for group in self.cache.groups:
            fork = self.fork_state if group.kind == "mamba" else self.fork_attention
            fork(group, parent, name)

    def fork_attention(self, group: AttentionGroup, parent: Request, name: str) -> None:
        """Share the full blocks, copy the partial one."""
        full, past = divmod(parent.settled, group.block_size)
        table = list(group.tables[parent.name][: full + (past > 0)])
        for block in table[:full]:
            if block != NULL_BLOCK:
                self.cache.pool.touch(block)
        if past:
            source = table[full]
            [table[full]] = self.cache.pool.allocate(1)
            for layer in range(group.spec.layers):
                tags = self.memory.slots(layer, source, group.block_size)
                self.memory.store_slots(layer, table[full], group.block_size, 0, tags)
        group.tables[name], group.num_published[name] = table, full

    def fork_state(self, group: AttentionGroup, parent: Request, name: str) -> None:
        """Copy the running state to the seed column of a request with as many settled tokens."""
        columns = self.states.columns.get(parent.name)
        kept = self.batch.accepted.kept.get(parent.name)
        offset = kept[group.index] if columns and kept else 0
        column = self.states.seed_column(group.index, parent.settled)
        source = columns[group.index] if columns else column
        table = group.tables[parent.name]
        [block] = self.cache.pool.allocate(1)
        for layer in range(group.spec.layers):
            self.states.move_temporal(layer, table[source + offset], block)
            self.states.move_conv(layer, table[source], block, offset)
        group.tables[name], group.num_published[name] = [NULL_BLOCK] * column + [block], column


@mypyc_attr(allow_interpreted_subclasses=True)
class SessionEvents:
    """Session events of one engine; `handlers` maps event types to methods."""

    def __init__(self, engine: SessionEngine) -> None:
        self.engine = engine
        self.forks = Forks(engine)
        self.handlers: dict[type[Event], Callable[..., list[Record]]] = {
            Park: self.park,
            Resume: self.resume,
            Truncate: self.truncate,
            Fork: self.fork,
        }

    def park(self, event: Park) -> list[Record]:
        """Execute all steps in flight, then end the turn of a running session."""
        scheduler = self.engine.scheduler
        request = scheduler.requests.get(event.name)
        if request is None or not request.session or request not in scheduler.running:
            return []
        records = self.engine.drain()
        if request in scheduler.running:
            scheduler.sessions.park(request)
        return records

    def truncate(self, event: Truncate) -> list[Record]:
        """Drop the last tokens of a parked session, after all steps in flight have run; refused if no kept state allows
        it."""
        scheduler = self.engine.scheduler
        request = scheduler.requests.get(event.name)
        if request not in scheduler.sessions.parked or not 0 < event.length < len(request.tokens):
            return []
        records = self.engine.drain()
        if not scheduler.sessions.truncate(request, event.length):
            self.engine.refused = f"no state of {event.name} at or before {event.length} tokens is kept"
        return records

    def fork(self, event: Fork) -> list[Record]:
        """Copy a parked session, after all steps in flight have run and the worker has dropped the session's row."""
        engine, scheduler = self.engine, self.engine.scheduler
        parent = scheduler.requests.get(event.parent)
        if parent not in scheduler.sessions.parked or event.name in engine.names_seen:
            return []
        records = engine.drain()
        if scheduler.sessions.holds(parent):
            if self.forks.blocks_needed(parent.settled) > len(engine.pool.free):
                engine.refused = f"too few free blocks for a fork of {event.parent}"
                return records
            self.drop_rows()
            self.forks.fill(parent, event.name)
        engine.names_seen.add(event.name)
        scheduler.requests[event.name] = fork = parent.copy(event.name, scheduler.arrivals)
        scheduler.arrivals += 1
        scheduler.sessions.parked.append(fork)
        return records

    def drop_rows(self) -> None:
        """Send the worker now the row changes that the next plan would carry."""
        plan = Plan(self.engine.step, 0)
        self.engine.scheduler.sessions.report_changes(plan)
        self.engine.batch.accepted.wait()
        self.engine.runner.update_batch(plan)

    def resume(self, event: Resume) -> list[Record]:
        """Queue the next turn of a parked session."""
        scheduler = self.engine.scheduler
        request = scheduler.requests.get(event.name)
        if request in scheduler.sessions.parked and fits(self.engine.config, event, len(request.tokens)):
            truth = Truth.after(request.tokens, event.prompt)
            prompt = truth.tokens[len(request.tokens) :]
            stops = stop_tokens_of(event, truth)
            least, grammar = least_tokens(event), grammar_of(truth)
            scheduler.sessions.resume(request, prompt, event.max_new_tokens, stops, least, event.structured, grammar)
        return []
