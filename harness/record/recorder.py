"""Run a trace and record the history of its blocks.

A `Recorder` is a proxy of the real factory. Its targets note each record when the lockstep iterates to it, so a history
ends exactly at the violation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

from ...targets.base.observe import Effect, Record, View
from ...targets.base.protocol import Target, TargetFactory
from ...targets.base.proxy import FactoryProxy, TargetProxy
from ...targets.base.trace import Config, Event, Trace
from ..judge.lockstep import unobserved
from ..judge.outcome import Outcome
from ..judge.run import run_trace
from ..judge.violation import Violation
from .history import History
from .history_builder import HistoryBuilder


class Recorder(FactoryProxy):
    """A factory whose targets are recorded. `history` returns the result after the run."""

    def __init__(self, factory: TargetFactory, trace: Trace) -> None:
        super().__init__(factory)
        self._trace = trace
        self._builders: list[HistoryBuilder] = []
        """One for each engine that was opened: one, or one for each rank."""

    def open(self, config: Config) -> Target:
        """Open a recorded target."""
        target = super().open(config)
        self._builders.append(HistoryBuilder(target.layout, self._trace.events))
        return _RecordedTarget(target, self._builders[-1])

    def history(self, violation: Violation | None) -> History:
        """Return the history of the engine that failed (the first one if none did), ended by the violation."""
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


class _RecordedTarget(TargetProxy):
    """A target whose records and views are passed to a history builder."""

    def __init__(self, target: Target, builder: HistoryBuilder) -> None:
        super().__init__(target)
        self._builder = builder

    def apply(self, event: Event) -> Effect:
        self._builder.begin(event)
        effect = super().apply(event)
        if not effect.refused:
            self._builder.edited(event)
        return Effect(noted(effect.records, self._builder.take), effect.refused)

    def view(self) -> View:
        view = super().view()
        self._builder.see(view)
        return view


def noted(records: Sequence[Record], take: Callable[[Record], None]) -> Sequence[Record]:
    """Return records that are passed to `take` as they are iterated over."""
    return _Noted(records, take)


class _Noted(Sequence[Record]):
    """Records that are passed to `take` as they are iterated over."""

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
    """Run a trace as `run_trace` does and return its history, too."""
    recorder = Recorder(factory, trace)
    outcome = run_trace(recorder, trace, on_event)
    return outcome, recorder.history(outcome.violation)
