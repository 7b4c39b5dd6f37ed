"""llama.cpp behind the `Target` protocol: a client, a context, and the same operations on a second one.

The two contexts differ only in what was decoded in them before the trace began: in what cells, snapshots and attention
that nobody owns hold. Every bit of the logits has to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from ...reference.layout import Group, Layout
from ..base.observe import (
    Content,
    Delivered,
    Effect,
    Forward,
    ForwardRow,
    Planned,
    RealForward,
    RealRow,
    Record,
    StateContent,
    View,
)
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
from .client import Client, Fed, Request, sequences_of
from .context import Context, Row, log_softmax, poisoned
from .executor import Executor
from .families import CONV
from .model import MARGIN_MIN, Alone, Model, state_of
from .sizes import planes_of, sizes_of

NO_PREFIX = 1
"""Stands for the tag of a state that is that of none of the prefixes that it is compared with."""


def make_layout(config: Config) -> Layout:
    """Return one group of states, whose content is told by that of all layers. That of attention is not read."""
    size = next((group.block_size for group in config.groups if group.kind == "mamba"), 1)
    return Layout(
        (Group("mamba", size, conv=False),), 0, CONV, "none", False, config.num_speculative_tokens,
        null_block=None, zeroing=False,
    )  # fmt: skip


class LlamaCppTarget:
    """One client and its contexts for one trace."""

    def __init__(self, config: Config, model: Model) -> None:
        self.config = config
        self.layout = make_layout(config)
        self.model = model
        sizes = sizes_of(config, planes_of(config, has_planes=model.library.has_planes))
        self.contexts = [poisoned(Context(model.library, model.handle, sizes), poison) for poison in (1, 2)]
        self.client = Client(config, self.contexts[0].planes)
        self.executors = [Executor(context) for context in self.contexts]
        self.step = 0
        self._handlers: dict[type[Event], Callable[[Any], Effect]] = {
            Arrive: self.arrive,
            Resume: self.resume,
            Fork: self.fork,
            Truncate: self.truncate,
            Step: self.run_step,
            Abort: lambda event: self._do(self.client.abort(event.name)),
            Preempt: lambda event: self._do(self.client.preempt(event.name)),
            Park: lambda event: self._do(self.client.park(event.name)),
            Crop: lambda event: self._do(self.client.crop(event.tokens)),
            Select: lambda event: self._do(self.client.select(event.names)),
            Reorder: lambda event: self._do(self.client.reorder(event.sources)),
            Repeat: lambda event: self._do(self.client.repeat(event.times)),
            Reset: lambda event: self._do(self.client.reset()),
        }

    def apply(self, event: Event) -> Effect:
        """Apply an event."""
        return self._handlers[type(event)](event)

    def _do(self, operations: Sequence[do.Operation]) -> Effect:
        """Execute operations on both contexts."""
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
            self._do(self.client.fork(event.name, event.parent))
        return Effect()

    def truncate(self, event: Truncate) -> Effect:
        """Cut a parked session, if llama.cpp can roll it back."""
        request = self.client.parked.get(event.name)
        if request is None or not 0 < event.length < request.known:
            return Effect()
        if request.saved and request.computed > event.length:
            return Effect(refused="its state is saved, and only a sequence can be cut")
        if cut := self.client.cut(event.name, event.length):
            agreed = {executor.execute(cut) for executor in self.executors}
            assert len(agreed) == 1, "what a cut does depends on what unused memory holds"
            if not agreed.pop():
                return Effect(refused="llama_memory_seq_rm returns false")
        self.client.truncated(event.name, event.length)
        return Effect()

    # steps

    def run_step(self, event: Step) -> Effect:
        """Decode one batch."""
        step, self.step = self.step, self.step + 1
        client = self.client
        made_room, fed, planned, budget = client.plan(event)
        self._do(made_room)
        records: list[Record] = [Planned(step, planned, (), budget, self.view())]
        if not fed:
            return Effect(records)
        records.append(self._decode(step, fed))
        rows = [ForwardRow(one.request.name, one.row.start, one.row.tokens, one.drafts, one.sampled) for one in fed]
        records.append(Forward(step, rows, ()))
        rejected, outputs, finished = client.advance(fed)
        self._do(rejected)
        records.append(Delivered(step, outputs, finished))
        self._do(client.settle(finished))
        return Effect(records)

    def _decode(self, step: int, fed: Sequence[Fed]) -> RealForward:
        *checkpoints, batch = self.client.batch(fed)
        self._do(checkpoints)
        assert isinstance(batch, do.Decode)
        batch_rows = [Row(row.sequence, row.start, row.tokens, row.wanted) for row in batch.rows]
        found, other = (context.decode(batch_rows) for context in self.contexts)
        rows, tolerance = [], MARGIN_MIN
        for one, logits, others in zip(fed, found, other, strict=True):
            if not one.row.wanted:
                continue
            alone = self._alone(one.request)
            tolerance = max(tolerance, alone.tolerance)
            stop = one.row.start + len(one.row.tokens)
            drafted = (*one.request.tokens(0, one.row.start), *one.row.tokens)
            logprobs = self.model.logprobs(drafted) if one.drafts else alone.logprobs
            expected = logprobs[stop - one.row.wanted : stop]
            rows.append(_worst(one, expected, log_softmax(logits), logits.tobytes() == others.tobytes()))
        return RealForward(step, rows, tolerance)

    # views

    def view(self) -> View:
        """Return the queues, and what llama.cpp says of its sequences."""
        client = self.client
        lengths = {one.sequence: one.computed for one in client.holders()}
        positions = {sequence: self.contexts[0].positions(sequence) for sequence in range(sequences_of(self.config))}
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
                "saved states": len(self.executors[0].saved),
            },
            drained={"sequences at a wrong position": len(lost)},
        )

    def read(self, group: int, layer: int, block: int) -> Content:
        """Return which prefix of its request the state of a sequence stands for: the state is saved, and compared with
        those that the request's tokens have alone. Without one it is no prefix's."""
        [request] = [one for one in self.client.holders() if one.sequence == block]
        alone, found = self._alone(request), state_of(self.contexts[0], block)
        lengths = range(1, len(alone.states) + 1)
        near = chain([request.computed], sorted(lengths, key=lambda length: abs(length - request.computed)))
        length = next((one for one in near if alone.is_state(one, found)), None)
        return StateContent(NO_PREFIX if length is None else request.truth.tag(length), ())

    def _alone(self, request: Request) -> Alone:
        """Return what all tokens that a request will have give alone: the same in all its steps."""
        return self.model.alone(request.tokens(0, request.total))

    def close(self) -> None:
        """Free the contexts."""
        for context in self.contexts:
            context.close()


def _worst(one: Fed, expected: Any, found: Any, agrees: bool) -> RealRow:
    """Return the position of a row whose log-probabilities differ most from the expected ones."""
    distance = np.nan_to_num(np.abs(found - expected).max(axis=1), nan=np.inf)
    worst = int(distance.argmax())
    position = one.row.start + len(one.row.tokens) - one.row.wanted + worst
    return RealRow(one.request.name, position, found[worst], expected[worst], agrees)
