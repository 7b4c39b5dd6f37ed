"""Records what the rows of each step were: the raw material of facts about a failing run (`group.causes.facts`).

Built from records alone, so it means the same for every engine. It ends at the violation.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, structs

from ...targets.base.observe import Copied, Effect, Forward, Loaded, Planned, Record
from ...targets.base.protocol import Target, TargetFactory
from ...targets.base.proxy import FactoryProxy, TargetProxy
from ...targets.base.trace import Config, Event, Trace
from ..judge.lockstep import unobserved
from ..judge.outcome import Outcome
from ..judge.run import run_trace
from .executed import Executed, LineTracer
from .recorder import noted


class ActivityRow(Struct, frozen=True, array_like=True):
    """One request in one planned step, in the scheduler's order; as `PlannedRow`."""

    name: str
    start: int
    num_tokens: int
    drafts: int
    admitted: bool
    hit: int
    kept: int = 0


class Activity(Struct, frozen=True):
    """One planned step, and its execution if it was executed before the violation.

    event     index of the event that planned it
    order     rows of the executed batch, None for padding rows; empty if it was not executed
    sampled   request -> tokens that the executed step sampled
    moves     requests whose states or slots were copied or loaded for this step
    waiting   requests that still wait after planning
    dummy     True for a dummy run: it has no rows
    """

    step: int
    event: int
    rows: tuple[ActivityRow, ...] = ()
    preempted: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    order: tuple[str | None, ...] = ()
    sampled: dict[str, int] = {}
    moves: tuple[str, ...] = ()
    graph: bool = False
    dummy: bool = False


class Observation(Struct, frozen=True, tag="observed"):
    """A run with its steps and the lines that it executed. `applied` counts its events, draining included."""

    outcome: Outcome
    steps: tuple[Activity, ...] = ()
    executed: tuple[Executed, ...] = ()
    applied: int = 0


class ActivityRecorder(FactoryProxy):
    """A factory whose targets' steps, and optionally executed lines, are recorded; `activity` after the run.

    Lines are recorded in the first `most` events (in all if it is None), so that runs that end later can be compared.
    """

    def __init__(self, factory: TargetFactory, tracer: LineTracer | None = None, most: int | None = None) -> None:
        super().__init__(factory)
        self.ranks: list[_Steps] = []
        self._tracer = tracer
        self._most = most

    def open(self, config: Config) -> Target:
        """Open a recorded target."""
        self.ranks.append(_Steps())
        return _Recorded(super().open(config), self.ranks[-1], self._tracer, self._most)

    @property
    def applied(self) -> int:
        """Number of events that were applied, draining included; the largest of all ranks."""
        return max((each.event + 1 for each in self.ranks), default=0)

    def activity(self, rank: int) -> tuple[Activity, ...]:
        """Return the steps of one rank, -1 for the only one."""
        return tuple(self.ranks[max(rank, 0)].steps) if self.ranks else ()


class _Steps:
    """The steps of one engine. Records come when the lockstep gets to them, so the list ends at the violation."""

    def __init__(self) -> None:
        self.event = -1
        self.steps: list[Activity] = []

    def take(self, record: Record) -> None:
        if isinstance(record, Planned):
            rows = tuple(
                ActivityRow(row.name, row.start, row.num_tokens, row.drafts, row.admitted, row.hit, row.kept)
                for row in record.rows
            )
            waiting = tuple(record.view.waiting)
            self.steps.append(Activity(record.step, self.event, rows, tuple(record.preempted), waiting))
        elif isinstance(record, Forward) and record.dummy:
            self.steps.append(Activity(record.step, self.event, graph=record.graph, dummy=True))
        elif isinstance(record, Forward):
            sampled = {row.request: len(row.sampled) for row in record.rows if row.request}
            order = tuple(row.request for row in record.rows)
            self._change(record.step, order=order, sampled=sampled, graph=record.graph)
        elif isinstance(record, Copied | Loaded):
            self._moved(record.step, record.request)

    def _moved(self, step: int, request: str) -> None:
        for activity in reversed(self.steps):
            if activity.step == step and not activity.dummy:
                if request not in activity.moves:
                    self._change(step, moves=(*activity.moves, request))
                return

    def _change(self, step: int, **fields: object) -> None:
        for index in range(len(self.steps) - 1, -1, -1):
            if self.steps[index].step == step and not self.steps[index].dummy:
                self.steps[index] = structs.replace(self.steps[index], **fields)
                return


class _Recorded(TargetProxy):
    def __init__(self, target: Target, steps: _Steps, tracer: LineTracer | None, most: int | None) -> None:
        super().__init__(target)
        self._steps = steps
        self._tracer = tracer
        self._most = most

    def apply(self, event: Event) -> Effect:
        self._steps.event += 1
        tracer = self._tracer if self._most is None or self._steps.event < self._most else None
        if tracer:
            tracer.start()
        try:
            effect = super().apply(event)
        finally:
            if tracer:
                tracer.stop()
        return Effect(noted(effect.records, self._steps.take), effect.refused)


def record_activity(
    factory: TargetFactory,
    trace: Trace,
    on_event: Callable[[int], None] = unobserved,
    *,
    lines: bool = False,
    most: int | None = None,
) -> Observation:
    """Run a trace as `run_trace` does; also return its steps and, if wanted, the lines that it executed."""
    tracer = LineTracer(factory.capabilities.engine) if lines else None
    recorder = ActivityRecorder(factory, tracer, most)
    outcome = run_trace(recorder, trace, on_event)
    rank = outcome.violation.rank if outcome.violation else -1
    executed = tracer.executed() if tracer else ()
    return Observation(outcome, recorder.activity(rank), executed, recorder.applied)
