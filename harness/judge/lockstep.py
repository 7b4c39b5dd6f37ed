"""Drives one target and the reference through one trace, with oracles that check every record.

Order within one record: the reference enters the step if this is its first device work; oracles check the record
against the reference as it was before; then the reference applies the record. The first violation ends the trace,
since behaviour after a broken invariant is undefined.

After the last event the trace is *drained*: plain steps until every request has ended, up to a bound.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from msgspec import msgpack

from ...reference.request import Life
from ...targets.base.observe import (
    Delivered,
    Forward,
    ForwardRow,
    Loaded,
    Numeric,
    OutOfRange,
    Planned,
    Record,
    SideBySide,
    SlotWrite,
    StateWrite,
    View,
)
from ...targets.base.protocol import Target
from ...targets.base.proxy import unwrapped
from ...targets.base.trace import (
    Abort,
    Config,
    Event,
    Sleep,
    Step,
    TraceError,
    Wake,
    tag_of,
)
from ..draw.near_stock import as_reached
from .client_events import announce, confirm
from .environment_fault import FaultyEnvironment, fault_of
from .ledger_updates import MOVES, take_over, take_over_slots, take_over_state
from .malformed import fault_in_effect, fault_in_view
from .oracles import IMPLEMENTED_HOOKS, ORACLES
from .oracles.base import ACCESS_HOOKS, HOOKS, RECORD_HOOKS, Context
from .oracles.liveness import Liveness
from .outcome import Outcome
from .reached_states import ReachedStates
from .situations import Situations
from .target_exception import crash_violation, ended_request, owner, record_violation
from .verdict import Requests
from .violation import Violation

DRAIN_STEPS_PER_TOKEN = 3
"""Steps allowed for draining, per token of the unfinished requests. Each step computes at least one token."""

_encode = msgpack.Encoder(enc_hook=repr).encode
"""Encodes observations for the digest, several times faster than `repr`, which is left for foreign number types."""


def unobserved(index: int) -> None:
    """The default `on_event`: does nothing."""


class Lockstep:
    """One target, one reference, all applicable oracles."""

    def __init__(
        self,
        target: Target,
        config: Config,
        observes: frozenset[str],
        engine: tuple[str, ...] = (),
        near_stock: bool = False,
        defaults: tuple[str, ...] = (),
    ) -> None:
        """`engine` are the import names of the engine's packages (`Capabilities.engine`); `near_stock`: the
        configuration is nearly that of the stock server; `defaults`: the settings that it has in common with it."""
        self.target = target
        self.config = config
        self.engine = engine
        self.context = Context(target, target.view())
        self.oracles = [oracle() for oracle in ORACLES if oracle.needs <= observes]
        self.reached = ReachedStates(target.layout, observes, near_stock)
        self._situations = Situations(self.reached.counts)
        self.violation: Violation | None = None
        self.defaults = defaults
        self.steps = 0
        self.digest = 0
        self._names: set[str] = set()
        self.asleep = False
        self._effect: object = None
        """What the target returned for the event in progress; None until it has."""
        self._planned_view: View | None = None
        self._planned_step = -1
        self._hooks = {name: self._overriders(name) for name in HOOKS}
        self._access_hooks = {kind: self._hooks[name].copy() for kind, name in ACCESS_HOOKS.items()}
        self._access_hooks[StateWrite].append(take_over_state)
        self._access_hooks[SlotWrite].append(take_over_slots)

    def _overriders(self, name: str) -> list[Callable[..., Violation | None]]:
        return [getattr(one, name) for one in self.oracles if name in IMPLEMENTED_HOOKS[type(one)]]

    def apply(self, event: Event, index: int) -> Violation | None:
        """Let one event happen in target and reference; return the first violation."""
        assert self.violation is None, "a trace ends at its first violation"
        context = self.context
        context.event_index, context.event_kind = index, tag_of(event)
        announce(event, context.reference, self.config, self._names)
        self.asleep = isinstance(event, Sleep) or (self.asleep and not isinstance(event, Wake))
        self.violation = self._guarded(lambda: self._happen(event))
        return self.violation

    def _guarded(self, judge: Callable[[], Violation | None]) -> Violation | None:
        """Return the violation that `judge` returns, or the one for what it raises. A fault of the environment is none:
        FaultyEnvironment."""
        try:
            return judge()
        except TraceError:  # an event that the target does not have
            raise
        except Exception as error:  # whatever a target raises is a finding, not the end of the campaign
            if fault := fault_of(error):
                raise FaultyEnvironment(fault) from error
            return self._raised(error)

    def _raised(self, error: Exception) -> Violation:
        who, _ = owner(error, self.engine)
        if who != "hybridfuzz":
            return crash_violation(self.context, error, self.engine)
        target, layout = unwrapped(self.target), self.context.layout
        try:
            fault = fault_in_effect(self._effect, layout) or fault_in_view(target.view(), layout)
        except Exception as broken:  # an engine that reports nonsense may not have a view, either
            return crash_violation(self.context, broken, self.engine)
        return record_violation(self.context, error, fault, type(target).__module__)

    def _happen(self, event: Event) -> Violation | None:
        context, before, planned = self.context, self.context.before, None
        self._effect = None
        self._effect = effect = self.target.apply(event)
        for record in effect.records:
            if isinstance(record, Planned):
                # An engine may take several steps in one event. What is known of the pool between them is the plan.
                context.before, planned = (planned or before), record.view
            violation = self._record(record)
            if violation:
                return violation
        context.before = before
        view = self.target.view()
        confirm(event, context.reference, before, view, effect.refused, self.config, self._names)
        context.refused = effect.refused
        if self._planned_view == view:
            view = self._planned_view  # oracles recognise a view that they have checked by its identity
        else:
            # Published outside of planning: attributed to the step planned last, which may still be in flight.
            context.reference.note_published(view.published, self._planned_step)
        violation = self._first("on_view", view)
        self.reached.after_event(event, context, view)
        self._situations.after_event(context.event_kind)
        context.before = view
        return violation

    def _first(self, hook: str, record: object) -> Violation | None:
        context = self.context
        for judge in self._hooks[hook]:
            violation = judge(context, record)
            if violation:
                return violation
        return None

    def _record(self, record: Record) -> Violation | None:
        context, reference = self.context, self.context.reference
        context.step, entered = record.step, context.facts
        if isinstance(record, Planned):
            for row in record.rows:
                life = reference.lives.get(row.name)
                if life is None or life.parked:
                    return ended_request(context, row.name)
            self._plan(record)
        elif isinstance(record, Loaded):
            context.facts = reference.load(record.step, record.request)
        elif not isinstance(record, Delivered | SideBySide):
            context.facts = reference.enter(record.step)
        if isinstance(record, Forward):
            violation = self._forward(record)
        else:
            violation = self._first(RECORD_HOOKS[type(record)], record)
        if violation:
            return violation
        self.reached.after_record(record, context)
        if type(record) in MOVES:
            take_over(reference.ledger, record)
        if isinstance(record, Loaded) and record.request in reference.loading:
            context.facts = entered  # a load for a waiting request is no part of the step that the device is in
        if isinstance(record, Numeric):
            self._note([output.values.tobytes() for output in record.outputs])
        elif isinstance(record, Delivered):
            self._note(record.outputs)
            for name, count in record.behind:
                reference.keep_behind(name, count)
            for name in record.finished:
                reference.end(name)
            for name in record.failed:
                reference.fail(name)
        return None

    def _plan(self, planned: Planned) -> None:
        view = planned.view
        rows: list[tuple[str, int | None, int | None]] = [
            (row.name, row.kept or row.hit + row.external, None if row.kept else row.hit)
            if row.admitted
            else (row.name, None, None)
            for row in planned.rows
            if not row.loads_apart
        ]
        for row in planned.rows:
            if row.instead and row.name in self.context.reference.lives:
                self.context.reference.lives[row.name].compute_instead(row.instead)
        facts = view.tables, view.references, view.published
        self.context.reference.plan(planned.step, rows, *facts)
        for row in planned.rows:
            if row.loads_apart:
                self.context.reference.plan_load(planned.step, (row.name, row.hit + row.external, row.hit), *facts)
        self.context.reference.note_published(view.published, planned.step)
        self.context.reference.preempted.update(dict.fromkeys(planned.preempted, planned.step))
        self._planned_view, self._planned_step = view, planned.step
        self.steps += 1
        self._note((planned.rows, planned.preempted, view.free))

    def _forward(self, forward: Forward) -> Violation | None:
        context = self.context
        context.set_batch_rows([row.request for row in forward.rows], dummy=forward.dummy)
        live = [(row, life) for row, life in zip(forward.rows, context.lives, strict=True) if life is not None]
        violation = self._accesses(forward) or self._first("on_forward", forward) or self._rows(live)
        if violation:
            return violation
        for row, life in live:
            life.advance(len(row.tokens), row.drafts, len(row.sampled))
        if forward.dummy:
            self.steps += 1
        else:
            context.reference.executed(forward.step)
        self._note([(row.request, row.position, row.sampled) for row in forward.rows])
        return None

    def _accesses(self, forward: Forward) -> Violation | None:
        """Check and then apply each access before the next one: a kernel may read what another wrote."""
        context, hooks = self.context, self._access_hooks
        rows = len(forward.rows)
        for access in forward.accesses:
            beyond = access.row >= rows or access.row < 0 or access.group < 0  # Python would count from the end
            if beyond and type(access) is not OutOfRange:
                raise IndexError("an access names a row or group that does not exist")
            for judge in hooks[type(access)]:
                violation = judge(context, access)
                if violation:
                    return violation
        return None

    def _rows(self, live: list[tuple[ForwardRow, Life]]) -> Violation | None:
        for row, life in live:
            for judge in self._hooks["on_row"]:
                violation = judge(self.context, row, life)
                if violation:
                    return violation
        return None

    def _note(self, observed: object) -> None:
        self.digest = zlib.crc32(_encode(observed), self.digest)

    def drain(self, first_index: int, on_event: Callable[[int], None] = unobserved) -> Violation | None:
        """Step until every request has ended, close parked sessions, then check what is left over. A sleeping engine
        is woken first."""
        on_event(first_index)
        if self.asleep and self.apply(Wake(), first_index):
            return self.violation
        lives: list[Life] = list(self.context.reference.lives.values())
        bound = DRAIN_STEPS_PER_TOKEN * sum(life.total_length for life in lives) + 4
        for index in range(bound):
            view = self.context.before
            if not view.running and not view.waiting and not self.context.reference.pending:
                break
            on_event(first_index + index)
            if self.apply(Step(), first_index + index):
                return self.violation
        else:
            self.violation = self._stuck(bound)
            return self.violation
        for life in list(self.context.reference.lives.values()):
            if life.parked and self.apply(Abort(life.name), first_index):
                return self.violation
        # One more step lets the worker drop the rows of the requests that ended last.
        if self.apply(Step(), first_index) is None:
            self.violation = self._guarded(lambda: self._first("on_idle", self.context.before))
        return self.violation

    def _stuck(self, bound: int) -> Violation:
        view = self.context.before
        names = (*view.running, *view.waiting)
        return Liveness().violation(self.context, "drain", waiting=Requests(names) if names else None, steps=bound)

    def outcome(self, events: int) -> Outcome:
        """Return the result of this run."""
        exercised: dict[str, int] = {}
        for oracle in self.oracles:
            for name, times in oracle.exercised.items():
                exercised[name] = exercised.get(name, 0) + times
        reached, together = dict(+self.reached.counts), self._situations.together()
        reached |= as_reached(dict.fromkeys(self.defaults, self.steps)) if self.steps else {}
        return Outcome(self.violation, self.steps, events, exercised, reached, self.digest, together=together)
