"""Sessions, as their clients see them: a turn ends (park), its end is forgotten (truncate), it is copied (fork), and it
goes on (resume).

A fork copies a parked session. What is no longer written is shared, the rest is copied at once:

    attention   full blocks are shared; a block that is filled in part is copied
    states      the running state is copied into a block of its own, wherever accepted drafts have left it

Nothing is in flight at that moment, so the copies overtake nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mypy_extensions import mypyc_attr

from ...reference.tokens import Truth
from ..base.observe import Record
from ..base.trace import Config, Event, Fork, Park, Resume, Truncate, fits
from .host.block_pool import BlockPool
from .host.block_tables import AttentionGroup
from .host.cache_manager import CacheManager
from .host.scheduler import Scheduler
from .layout import NULL_BLOCK
from .plan import Plan, Request
from .tag_memory import Memory
from .worker.input_batch import Batch
from .worker.model_runner import Runner
from .worker.state_slots import States


class SessionEngine(Protocol):
    """What session events need of the engine: its parts, and a way to let everything in flight run."""

    config: Config
    pool: BlockPool
    cache: CacheManager
    scheduler: Scheduler
    batch: Batch
    memory: Memory
    states: States
    runner: Runner
    step: int
    refused: str
    names_seen: set[str]

    def drain(self) -> list[Record]:
        """Execute every planned step; returns what happened."""


class Forks:
    """Gives a fork its blocks and fills them."""

    def __init__(self, engine: SessionEngine) -> None:
        self.cache = engine.cache
        self.memory = engine.memory
        self.states = engine.states
        self.batch = engine.batch

    def blocks_needed(self, settled: int) -> int:
        """Blocks that a copy of a session with `settled` tokens cannot share."""
        return sum(group.kind == "mamba" or settled % group.block_size > 0 for group in self.cache.groups)

    def fill(self, parent: Request, name: str) -> None:
        """Tables of the fork `name`, and the content of its own blocks."""
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
        """Copy the running state to the column in which one of so many tokens is looked for."""
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
    """Handlers of one engine's session events, by type in `handlers`."""

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
        """End the turn of a running session once nothing is in flight."""
        scheduler = self.engine.scheduler
        request = scheduler.requests.get(event.name)
        if request is None or not request.session or request not in scheduler.running:
            return []
        records = self.engine.drain()
        if request in scheduler.running:
            scheduler.sessions.park(request)
        return records

    def truncate(self, event: Truncate) -> list[Record]:
        """A parked session forgets tokens, or the engine says that it cannot."""
        scheduler = self.engine.scheduler
        request = scheduler.requests.get(event.name)
        if request not in scheduler.sessions.parked or not 0 < event.length < len(request.tokens):
            return []
        if not scheduler.sessions.truncate(request, event.length):
            self.engine.refused = f"no state of {event.name} at or before {event.length} tokens is kept"
        return []

    def fork(self, event: Fork) -> list[Record]:
        """A copy of a parked session, once nothing is in flight and the worker has dropped the session's row."""
        engine, scheduler = self.engine, self.engine.scheduler
        parent = scheduler.requests.get(event.parent)
        if parent not in scheduler.sessions.parked or event.name in engine.names_seen:
            return []
        records = engine.drain()
        if scheduler.sessions.holds(parent):
            if self.forks.blocks_needed(parent.settled) > len(engine.pool.free):
                engine.refused = f"there are too few blocks for a copy of {event.parent}"
                return records
            self.drop_rows()
            self.forks.fill(parent, event.name)
        engine.names_seen.add(event.name)
        scheduler.requests[event.name] = fork = parent.copy(event.name, scheduler.arrivals)
        scheduler.arrivals += 1
        scheduler.sessions.parked.append(fork)
        return records

    def drop_rows(self) -> None:
        """Tell the worker now what it would hear with the next plan."""
        plan = Plan(self.engine.step, 0)
        self.engine.scheduler.sessions.tell(plan)
        self.engine.batch.accepted.wait()
        self.engine.runner.update_batch(plan)

    def resume(self, event: Resume) -> list[Record]:
        """The next turn of a parked session."""
        scheduler = self.engine.scheduler
        request = scheduler.requests.get(event.name)
        if request in scheduler.sessions.parked and fits(self.engine.config, event, len(request.tokens)):
            prompt = Truth.after(request.tokens, event.prompt).tokens[len(request.tokens) :]
            scheduler.sessions.resume(request, prompt, event.max_new_tokens)
        return []
