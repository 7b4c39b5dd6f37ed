"""A client and the memories that it drives, behind the `Target` protocol.

Several memories execute the same operations, where they differ only in what unused memory holds. A target whose server
holds the memory, and decides what it keeps, passes none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from ...reference.layout import Layout
from ..base.observe import Content, Delivered, Effect, Planned, Record, View
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
from . import operations as do
from .client import Client, Fed, sequences_of
from .executor import Executor, Memory


class ClientTarget(ABC):
    """One client and its memories for one trace."""

    def __init__(self, config: Config, layout: Layout, memories: Sequence[Memory], planes: int) -> None:
        self.config = config
        self.layout = layout
        self.client = Client(config, planes)
        self.executors = [Executor(memory) for memory in memories]
        self.step = 0
        self._handlers: dict[type[Event], Callable[[Any], Effect]] = {
            Arrive: self.arrive,
            Resume: self.resume,
            Fork: self.fork,
            Truncate: self.truncate,
            Step: self.run_step,
            Abort: lambda event: self.execute(self.client.abort(event.name)),
            Preempt: lambda event: self.execute(self.client.preempt(event.name)),
            Park: lambda event: self.execute(self.client.park(event.name)),
            Crop: lambda event: self.execute(self.client.crop(event.tokens)),
            Select: lambda event: self.execute(self.client.select(event.names)),
            Reorder: lambda event: self.execute(self.client.reorder(event.sources)),
            Repeat: lambda event: self.execute(self.client.repeat(event.times)),
            Reset: lambda event: self.execute(self.client.reset()),
        }

    def apply(self, event: Event) -> Effect:
        """Apply an event."""
        return self._handlers[type(event)](event)

    def execute(self, operations: Sequence[do.Operation]) -> Effect:
        """Execute operations on all memories."""
        for operation in operations:
            for executor in self.executors:
                executor.execute(operation)
        return Effect()

    # requests

    def arrive(self, event: Arrive) -> Effect:
        """Queue a request; no-op for a name that was used before."""
        if event.name not in self.client.names and fits(self.config, event):
            self.client.arrive(event)
        return Effect()

    def resume(self, event: Resume) -> Effect:
        """Queue the next turn of a parked session."""
        request = self.client.parked.get(event.name)
        if request is not None and fits(self.config, event, request.known):
            self.client.resume(event)
        return Effect()

    def fork(self, event: Fork) -> Effect:
        """Copy a parked session and its sequence."""
        if event.parent in self.client.parked and event.name not in self.client.names:
            self.execute(self.client.fork(event.name, event.parent))
        return Effect()

    def truncate(self, event: Truncate) -> Effect:
        """Cut a parked session, if the memory can roll it back."""
        request = self.client.parked.get(event.name)
        if request is None or not 0 < event.length < request.known:
            return Effect()
        if request.saved and request.computed > event.length:
            return Effect(refused="its state is saved, and only a sequence can be cut")
        if cut := self.client.cut(event.name, event.length):
            agreed = {executor.execute(cut) for executor in self.executors}
            assert len(agreed) <= 1, "what a cut does depends on what unused memory holds"
            if False in agreed:
                return Effect(refused="the memory cannot roll the sequence back that far")
        self.client.truncated(event.name, event.length)
        return Effect()

    # steps

    def run_step(self, event: Step) -> Effect:
        """Decode one batch."""
        step, self.step = self.step, self.step + 1
        client = self.client
        made_room, fed, planned, budget = client.plan(event)
        self.execute(made_room)
        records: list[Record] = [Planned(step, planned, (), budget, self.view())]
        if not fed:
            return Effect(records)
        *checkpoints, batch = client.batch(fed)
        self.execute(checkpoints)
        assert isinstance(batch, do.Decode)
        records += self.decode(step, fed, batch)
        rejected, outputs, finished = client.advance(fed)
        self.execute(rejected)
        records.append(Delivered(step, outputs, finished))
        self.execute(client.settle(finished))
        return Effect(records)

    @abstractmethod
    def decode(self, step: int, fed: Sequence[Fed], batch: do.Decode) -> Sequence[Record]:
        """Compute a batch in all memories; return the records of the forward."""

    # views

    def view(self) -> View:
        """Return the queues, and what the memory says of its sequences."""
        client, first = self.client, next(iter(self.executors), None)
        lengths = {one.sequence: one.computed for one in client.holders()}
        sequences = range(sequences_of(self.config))
        positions = {one: first.memory.positions(one) for one in sequences} if first else {}
        lost = [
            sequence for sequence, found in positions.items()
            if found != (lengths.get(sequence, 0) - 1, lengths.get(sequence, 0) - 1)
        ]  # fmt: skip
        return View(
            free=(),
            references=(),
            published={},
            labels=None,
            tables={},
            waiting=[one.name for one in client.waiting],
            running=[one.name for one in client.running],
            parked=list(client.parked),
            caches={one.name: one.sequence for one in client.holders() if one.sequence is not None and one.computed},
            leftovers={
                "requests": len(client.running) + len(client.waiting),
                "sessions": len(client.parked),
                "sequences": sum(last >= 0 for _, last in positions.values()),
                "saved states": len(first.saved) if first else 0,
            },
            drained={"sequences at a wrong position": len(lost)},
        )

    @abstractmethod
    def read(self, group: int, layer: int, block: int) -> Content:
        """Return the content of a sequence."""

    @abstractmethod
    def close(self) -> None:
        """Free the memories."""
