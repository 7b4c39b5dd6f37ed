"""What clients of sessions ask an engine for: to end a turn, to forget its end, and to go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from ...reference.tokens import Truth
from ..base.observe import Record
from ..base.trace import Event, Fork, Park, Resume, Truncate, fits
from .forks import Forks
from .plan import Plan

if TYPE_CHECKING:
    from .target import HybridTarget


@mypyc_attr(allow_interpreted_subclasses=True)
class Turns:
    """Handlers of one engine's events."""

    def __init__(self, target: HybridTarget) -> None:
        self.target = target
        self.forks = Forks(target)
        self.handlers: dict[type[Event], Callable[..., list[Record]]] = {
            Park: self.park,
            Resume: self.resume,
            Truncate: self.truncate,
            Fork: self.fork,
        }

    def park(self, event: Park) -> list[Record]:
        """End the turn of a running session once nothing is in flight."""
        scheduler = self.target.scheduler
        request = scheduler.requests.get(event.name)
        if request is None or not request.session or request not in scheduler.running:
            return []
        records = self.target.drain()
        if request in scheduler.running:
            scheduler.sessions.park(request)
        return records

    def truncate(self, event: Truncate) -> list[Record]:
        """A parked session forgets tokens, or the engine says that it cannot."""
        scheduler = self.target.scheduler
        request = scheduler.requests.get(event.name)
        if request not in scheduler.sessions.parked or not 0 < event.length < len(request.tokens):
            return []
        if not scheduler.sessions.truncate(request, event.length):
            self.target.refused = f"no state of {event.name} at or before {event.length} tokens is kept"
        return []

    def fork(self, event: Fork) -> list[Record]:
        """A copy of a parked session, once nothing is in flight and the worker has dropped the session's row."""
        target, scheduler = self.target, self.target.scheduler
        parent = scheduler.requests.get(event.parent)
        if parent not in scheduler.sessions.parked or event.name in target.names_seen:
            return []
        records = target.drain()
        if scheduler.sessions.holds(parent):
            if self.forks.blocks_needed(parent.settled) > len(target.pool.free):
                target.refused = f"there are too few blocks for a copy of {event.parent}"
                return records
            self.drop_rows()
            self.forks.fill(parent, event.name)
        target.names_seen.add(event.name)
        scheduler.requests[event.name] = fork = parent.copy(event.name, scheduler.arrivals)
        scheduler.arrivals += 1
        scheduler.sessions.parked.append(fork)
        return records

    def drop_rows(self) -> None:
        """Tell the worker now what it would hear with the next plan."""
        plan = Plan(self.target.step, 0)
        self.target.scheduler.sessions.tell(plan)
        self.target.batch.accepted.wait()
        self.target.runner.update_batch(plan)

    def resume(self, event: Resume) -> list[Record]:
        """The next turn of a parked session."""
        scheduler = self.target.scheduler
        request = scheduler.requests.get(event.name)
        if request in scheduler.sessions.parked and fits(self.target.config, event, len(request.tokens)):
            prompt = Truth.after(request.tokens, event.prompt).tokens[len(request.tokens) :]
            scheduler.sessions.resume(request, prompt, event.max_new_tokens)
        return []
