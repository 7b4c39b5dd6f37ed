"""The events of a trace as calls, for scripts: what the client does, one line for each call.

What the client does follows from the trace alone, so no engine runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from ..base.trace import Config, Event, Shift, Step, Truncate
from ..sequences import operations as do
from ..sequences.client import Client
from ..sequences.client_events import cuttable, shift_of, told


class Calls(ABC):
    """The operations of a trace, as lines of Python."""

    def __init__(self, config: Config, planes: int) -> None:
        self.config = config
        self.client = Client(config, planes)

    def lines(self, events: Sequence[Event]) -> Iterator[str]:
        """Yield the calls of all events."""
        for event in events:
            if isinstance(event, Step):
                yield from self.step(event)
            elif isinstance(event, Shift):
                shift = shift_of(self.client, event)
                yield from self.written(event, [shift] if shift else [])
            elif not isinstance(event, Truncate):
                yield from self.written(event, told(self.client, event))
            elif cuttable(self.client, event):
                yield from self.written(event, self.truncate(event))

    @abstractmethod
    def truncate(self, event: Truncate) -> Sequence[do.Operation]:
        """Return what truncates a parked session."""

    @abstractmethod
    def step(self, event: Step) -> Iterator[str]:
        """Yield the calls of a step."""

    @abstractmethod
    def written(self, event: Event, operations: Sequence[do.Operation]) -> Iterator[str]:
        """Yield the calls that do what an event does."""
