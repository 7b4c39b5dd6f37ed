"""Runs a trace and keeps the lives of its blocks.

A `Recorder` is a factory that stands before the real one. Its targets note each record at the moment at which the
lockstep takes it up, so a history ends exactly where the violation is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from ...targets.base.observe import Content, Effect, Record, View
from ...targets.base.protocol import Target, TargetFactory
from ...targets.base.trace import Config, Event, Trace
from ..lockstep.lockstep import unobserved
from ..lockstep.run import run_trace
from ..traces.outcome import Outcome
from ..traces.violation import Violation
from .history import History
from .history_builder import HistoryBuilder


class Recorder:
    """A factory whose targets are watched. `history` after the run."""

    def __init__(self, factory: TargetFactory, trace: Trace) -> None:
        self.name = factory.name
        self.capabilities = factory.capabilities
        self.supports = factory.supports
        self._factory = factory
        self._trace = trace
        self._builders: list[HistoryBuilder] = []
        """Of each engine that was opened: one, or one for each rank."""

    def open(self, config: Config) -> Target:
        """A watched target."""
        target = self._factory.open(config)
        self._builders.append(HistoryBuilder(target.layout, self._trace.events))
        return _Watched(target, self._builders[-1])

    def history(self, violation: Violation | None) -> History:
        """What was noted of the engine that broke, with the violation that ended it."""
        if not self._builders:
            return History(violation=violation)
        notes = self._builders[max(violation.rank, 0) if violation else 0]
        layout = notes.layout
        return History(
            layout.num_blocks,
            tuple((group.kind, group.block_size) for group in layout.groups),
            -1 if layout.null_block is None else layout.null_block,
            tuple(notes.moments),
            tuple(notes.marks_until(violation)),
            tuple(notes.request_steps.values()),
            violation,
            notes.wanted(violation),
        )


class _Watched:
    """A target that notes what it reports."""

    def __init__(self, target: Target, notes: HistoryBuilder) -> None:
        self.layout = target.layout
        self._target = target
        self._builders = notes

    def apply(self, event: Event) -> Effect:
        self._builders.begin(event)
        effect = self._target.apply(event)
        if not effect.refused:
            self._builders.edited(event)
        return Effect(_Noted(effect.records, self._builders.take), effect.refused)

    def view(self) -> View:
        view = self._target.view()
        self._builders.see(view)
        return view

    def read(self, group: int, layer: int, block: int) -> Content:
        return self._target.read(group, layer, block)

    def close(self) -> None:
        self._target.close()


class _Noted(Sequence[Record]):
    """Records that are noted when they are iterated over."""

    def __init__(self, records: Sequence[Record], take: Callable[[Record], None]) -> None:
        self._records = records
        self._take = take

    def __iter__(self) -> Iterator[Record]:
        for record in self._records:
            self._take(record)
            yield record

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        return self._records[index]


def record_history(
    factory: TargetFactory, trace: Trace, on_event: Callable[[int], None] = unobserved
) -> tuple[Outcome, History]:
    """Run a trace as `run_trace` does, and keep the lives of its blocks."""
    recorder = Recorder(factory, trace)
    outcome = run_trace(recorder, trace, on_event)
    return outcome, recorder.history(outcome.violation)
