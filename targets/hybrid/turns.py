"""What clients of sessions ask an engine for: to end a turn, and to go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...reference.tokens import Truth
from ..base.observe import Record
from ..base.trace import Park, Resume, fits

if TYPE_CHECKING:
    from .target import HybridTarget


class Turns:
    """Handlers of one engine's events."""

    def __init__(self, target: HybridTarget) -> None:
        self.target = target

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

    def resume(self, event: Resume) -> list[Record]:
        """The next turn of a parked session."""
        scheduler = self.target.scheduler
        request = scheduler.requests.get(event.name)
        if request in scheduler.sessions.parked and fits(self.target.config, event, len(request.tokens)):
            prompt = Truth.after(request.tokens, event.prompt).tokens[len(request.tokens) :]
            scheduler.sessions.resume(request, prompt, event.max_new_tokens)
        return []
