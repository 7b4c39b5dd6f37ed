"""A client and the memories that it drives, behind the `Target` protocol.

Several memories execute the same operations, where they differ only in what unused memory holds. A target whose server
holds the memory, and decides what it keeps, passes none.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ...reference.layout import Layout
from ..base.observe import Content, Delivered, Effect, Planned, Record, View
from ..base.trace import Config, Event, Shift, Step, Truncate
from . import operations as do
from .client import Client, Fed, sequences_of
from .client_events import cuttable, shift_of, told
from .executor import Executor, Memory


class ClientTarget(ABC):
    """One client and its memories for one trace."""

    def __init__(self, config: Config, layout: Layout, memories: Sequence[Memory], planes: int) -> None:
        self.config = config
        self.layout = layout
        self.client = Client(config, planes)
        self.executors = [Executor(memory) for memory in memories]
        self.step = 0

    def apply(self, event: Event) -> Effect:
        """Apply an event."""
        if isinstance(event, Step):
            return self.run_step(event)
        if isinstance(event, Truncate):
            return self.truncate(event)
        if isinstance(event, Shift):
            return self.shift(event)
        return self.execute(event, told(self.client, event))

    def execute(self, event: Event, operations: Sequence[do.Operation]) -> Effect:
        """Execute the operations that an event means, on all memories."""
        for operation in operations:
            for executor in self.executors:
                executor.execute(operation)
        return Effect()

    def truncate(self, event: Truncate) -> Effect:
        """Cut a parked session, if the memory can roll it back."""
        request = cuttable(self.client, event)
        if request is None:
            return Effect()
        if request.saved and request.computed > event.length:
            return Effect(refused="its state is saved, and only a sequence can be cut")
        cut = self.client.cut(event.name, event.length)
        if cut and not self._agree(cut):
            return Effect(refused="the memory cannot roll the sequence back that far")
        self.client.truncated(event.name, event.length)
        return Effect()

    def shift(self, event: Shift) -> Effect:
        """Move the positions of a sequence, if the memory can."""
        operation = shift_of(self.client, event)
        if operation and not self._agree(operation):
            return Effect(refused="the memory cannot move positions")
        return Effect()

    def _agree(self, operation: do.Operation) -> bool:
        """Execute what a memory may refuse on all of them; return False if they refuse it."""
        agreed = {executor.execute(operation) for executor in self.executors}
        assert len(agreed) <= 1, "what a memory refuses depends on what unused memory holds"
        return False not in agreed

    # steps

    def run_step(self, event: Step) -> Effect:
        """Decode one batch."""
        step, self.step = self.step, self.step + 1
        client = self.client
        made_room, fed, planned, budget = client.plan(event)
        self.execute(event, made_room)
        records: list[Record] = [Planned(step, planned, (), budget, self.view())]
        if not fed:
            return Effect(records)
        *checkpoints, batch = client.batch(fed)
        self.execute(event, checkpoints)
        assert isinstance(batch, do.Decode)
        records += self.decode(step, fed, batch)
        rejected, outputs, finished = client.advance(fed)
        self.execute(event, rejected)
        records.append(Delivered(step, outputs, finished))
        self.execute(event, client.settle(finished))
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
            if first and found != (first.position(sequence, lengths.get(sequence, 0) - 1),) * 2
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
