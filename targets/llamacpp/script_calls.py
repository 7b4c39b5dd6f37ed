"""The events of a trace as calls, for scripts: what the client does, one line for each call.

What the client does follows from the trace alone, so no engine runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

from ..base.trace import (
    Abort,
    Arrive,
    Config,
    Crop,
    Event,
    Fork,
    Park,
    Preempt,
    Reorder,
    Repeat,
    Reset,
    Resume,
    Select,
    Step,
    Truncate,
    fits,
)
from ..sequences import operations as do
from ..sequences.client import Client


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
            else:
                yield from self.written(event, self._event(event))

    def _event(self, event: Event) -> Sequence[do.Operation]:
        client = self.client
        match event:
            case Arrive() if event.name not in client.names and fits(self.config, event):
                client.arrive(event)
            case Resume() if request := client.parked.get(event.name):
                if fits(self.config, event, request.known):
                    client.resume(event)
            case Fork() if event.parent in client.parked and event.name not in client.names:
                return client.fork(event.name, event.parent)
            case Truncate() if request := client.parked.get(event.name):
                if 0 < event.length < request.known:
                    return self.truncate(event)
            case Abort():
                return client.abort(event.name)
            case Preempt():
                return client.preempt(event.name)
            case Park():
                return client.park(event.name)
            case Crop():
                return client.crop(event.tokens)
            case Select():
                return client.select(event.names)
            case Reorder():
                return client.reorder(event.sources)
            case Repeat():
                return client.repeat(event.times)
            case Reset():
                return client.reset()
        return ()

    @abstractmethod
    def truncate(self, event: Truncate) -> Sequence[do.Operation]:
        """Return what truncates a parked session."""

    @abstractmethod
    def step(self, event: Step) -> Iterator[str]:
        """Yield the calls of a step."""

    @abstractmethod
    def written(self, event: Event, operations: Sequence[do.Operation]) -> Iterator[str]:
        """Yield the calls that do what an event does."""
