"""The lockstep: dead names are no-ops, sub-lists are legal, runs repeat, crashes are findings."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec.structs import replace
from support import CLEAN, Tampered, arrive, broken, change_view, check_sentence, drawn, make_trace, steps, watch

from hybridfuzz.harness.judge.engines import RefusedError
from hybridfuzz.harness.judge.lockstep import Lockstep
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.record.activity import record_activity
from hybridfuzz.harness.record.recorder import record_history
from hybridfuzz.targets.base.observe import Delivered, Effect, Forward, ForwardRow, Planned, PlannedRow, Record
from hybridfuzz.targets.base.protocol import Target, TargetError, TargetFactory
from hybridfuzz.targets.base.proxy import FactoryProxy, TargetProxy
from hybridfuzz.targets.base.trace import (
    Abort,
    AnyEvent,
    Arrive,
    CaptureGraphs,
    Config,
    DummyRun,
    Event,
    Evict,
    Preempt,
    ResetPrefixCache,
    Sleep,
    Step,
    Trace,
    TraceError,
    Wake,
)
from hybridfuzz.targets.hybrid.host.scheduler import Scheduler
from hybridfuzz.targets.hybrid.target import HybridTarget
from hybridfuzz.targets.hybrid.worker.model_runner import ModelRunner


def outcome_of(events: Sequence[AnyEvent], trace: Trace) -> Any:
    return run_trace(CLEAN, msgspec.structs.replace(trace, events=tuple(events)))


@pytest.mark.parametrize(
    "event",
    [
        Preempt("ghost"),
        Abort("ghost"),
        Preempt("r0"),
        Abort("r0"),
        Step(chunks={"ghost": 3}, per_request={"ghost": (2, 1)}),
        Wake(),
        Evict(5),
        ResetPrefixCache(True),
        CaptureGraphs(),
        DummyRun(3),
    ],
    ids=lambda event: repr(event)[:40],
)
@pytest.mark.parametrize("drafts", [0, 2])
def test_events_on_dead_names_or_nothing_do_nothing(event: AnyEvent, drafts: int) -> None:
    """Before anything arrived, every one of them is without effect."""
    config = {"num_speculative_tokens": drafts}
    watched = watch(make_trace(event, **config))
    assert watched.outcome.violation is None
    assert not [one for one in watched.of(Planned) if one.rows]


def test_events_on_ended_requests_change_nothing() -> None:
    """A trace with events that name a finished, an aborted and an unknown request runs as without."""
    plain = (arrive("r0", 12, new=2), *steps(6), arrive("r1", 20, new=6), *steps(3))
    noise = (Preempt("r0"), Abort("r0"), Abort("ghost"), Preempt("ghost"))
    bare = run_trace(CLEAN, make_trace(*plain))
    noisy = run_trace(CLEAN, make_trace(*plain[:8], *noise, *plain[8:], *noise))
    assert bare.violation is noisy.violation is None
    assert (bare.digest, bare.steps) == (noisy.digest, noisy.steps)


class TwoStepsAtOnce(TargetProxy):
    """Takes two steps for each step event, as an engine that waits for transfers does."""

    def apply(self, event: Event) -> Effect:
        first = super().apply(event)
        if not isinstance(event, Step):
            return first
        return replace(first, records=[*first.records, *super().apply(event).records])


def test_a_step_is_judged_by_the_plan_before_it_in_the_same_event() -> None:
    """The second request hits the state that the first step of the event has written. (Seen with a KV connector on
    vLLM: S5, an early hit.)"""
    trace = make_trace(arrive("r0", 16, new=1), arrive("r1", 20, new=1), Step(), max_num_seqs=1)
    lockstep = Lockstep(TwoStepsAtOnce(CLEAN.open(trace.config)), trace.config, CLEAN.capabilities.observes)
    for index, event in enumerate(trace.events):
        assert lockstep.apply(event, index) is None, lockstep.violation
    assert lockstep.steps == 2
    assert lockstep.reached.counts["prefix hit"]


def test_a_name_is_used_once() -> None:
    again = (arrive("r0", 12), *steps(4), arrive("r0", 30, new=9), *steps(4))
    once = (arrive("r0", 12), *steps(8))
    assert run_trace(CLEAN, make_trace(*again)).digest == run_trace(CLEAN, make_trace(*once)).digest


def test_a_request_that_cannot_fit_never_arrived() -> None:
    too_long = (arrive("big", 63, new=9), arrive("r0", 12), *steps(4))
    fitting = (arrive("r0", 12), *steps(4))
    assert run_trace(CLEAN, make_trace(*too_long)).digest == run_trace(CLEAN, make_trace(*fitting)).digest


@pytest.mark.parametrize("index", range(30))
def test_every_sub_list_of_a_legal_trace_is_legal(index: int) -> None:
    """Reduction relies on it: with any events dropped, a trace is still clean on the clean target."""
    trace = drawn(4711, index)
    source = random.Random(index)
    for keep in (0.25, 0.5, 0.75, 0.9):
        events = [event for event in trace.events if source.random() < keep]
        outcome = outcome_of(events, trace)
        assert outcome.violation is None, (keep, outcome.violation.message)


@pytest.mark.parametrize("index", range(8))
def test_equal_traces_have_equal_outcomes(index: int) -> None:
    """Digest, counts, reached states, step by step."""
    trace = drawn(4711, index)
    assert run_trace(CLEAN, trace) == run_trace(CLEAN, trace)


def test_different_behaviour_has_a_different_digest() -> None:
    trace = drawn(4711, 3)
    more = msgspec.structs.replace(trace.config, num_blocks=trace.config.num_blocks + 1)
    assert run_trace(CLEAN, trace).digest != run_trace(CLEAN, Trace(more, trace.events)).digest


def free_in_another_order(record: Record) -> Record:
    if not isinstance(record, Planned):
        return record
    return replace(record, view=replace(record.view, free=record.view.free[::-1]))


def preempts_ghosts(record: Record) -> Record:
    return replace(record, preempted=("ghost",)) if isinstance(record, Planned) else record


def pads_elsewhere(record: Record) -> Record:
    rows = [*record.rows, ForwardRow(None, 9, (), 0, ())] if isinstance(record, Forward) else ()
    return replace(record, rows=rows) if isinstance(record, Forward) else record


def delivers_nothing_to_ghosts(record: Record) -> Record:
    return replace(record, outputs=[*record.outputs, ("ghost", ())]) if isinstance(record, Delivered) else record


@pytest.mark.parametrize("change", [free_in_another_order, preempts_ghosts, pads_elsewhere, delivers_nothing_to_ghosts])
def test_what_is_observed_is_in_the_digest(change: Callable[[Record], Record]) -> None:
    """Decisions, forwards and deliveries, even where no oracle objects: determinism is judged by it."""
    trace = make_trace(arrive("r0", 20, new=2), *steps(4))
    outcome = run_trace(Tampered(lambda records: [change(one) for one in records]), trace)
    assert outcome.violation is None
    assert outcome.digest != run_trace(CLEAN, trace).digest


def test_dummy_runs_are_steps() -> None:
    trace = make_trace(arrive("r0", 12, new=2), *steps(6))
    more = make_trace(*trace.events, DummyRun(1), DummyRun(1))
    assert run_trace(CLEAN, more).steps == run_trace(CLEAN, trace).steps + 2


def test_what_was_exercised_is_the_sum_over_all_oracles() -> None:
    """Several judge the same rule, each from its own observations."""
    trace = drawn(4711, 3)
    lockstep = Lockstep(CLEAN.open(trace.config), trace.config, CLEAN.capabilities.observes)
    for index, event in enumerate(trace.events):
        assert lockstep.apply(event, index) is None
    counted: Counter[str] = Counter()
    for oracle in lockstep.oracles:
        counted.update(oracle.exercised)
    assert lockstep.outcome(0).exercised == dict(counted)
    assert sum("M8" in oracle.ids() for oracle in lockstep.oracles) > 1


class Crashes(ModelRunner):
    """The worker dies in its third step."""

    def zero_blocks(self, plan: Any, records: Any) -> None:
        if plan.step == 2:
            raise IndexError("block 99 of 12\nmore")
        super().zero_blocks(plan, records)


def test_a_crash_is_a_finding() -> None:
    trace = make_trace(arrive("r0", 20, new=4), *steps(6))
    outcome = run_trace(broken(Crashes), trace)
    violation = outcome.violation
    assert violation is not None
    assert violation.signature == "CRASH-step-IndexError-zero_blocks"
    assert violation.event == 3
    assert outcome.events == 4
    assert "IndexError: block 99 of 12 at" in violation.message
    assert "\n" not in violation.message
    assert "Traceback" in violation.observed_words


def test_an_exception_without_a_message_shows_its_line() -> None:
    """As an assertion: pytest would give this one a message."""

    class Asserts(ModelRunner):
        def zero_blocks(self, plan: Any, records: Any) -> None:
            if plan.step == 2:
                raise AssertionError
            super().zero_blocks(plan, records)

    violation = run_trace(broken(Asserts), make_trace(arrive("r0", 20, new=4), *steps(6))).violation
    assert violation and "raised AssertionError: raise AssertionError at" in violation.message


def test_the_target_is_closed_after_a_crash_and_after_a_run() -> None:
    closed = []

    class Closes(HybridTarget):
        runner_class = Crashes

        def close(self) -> None:
            closed.append(self)

    trace = make_trace(arrive("r0", 20, new=4), *steps(6))
    run_trace(broken(Closes), trace)
    run_trace(broken(Closes), make_trace(arrive("r0", 3)))
    assert len(closed) == 2


class Shaky(FactoryProxy):
    """The correct target, one of whose methods raises outside of events, from its `first` call on."""

    def __init__(self, method: str, factory: TargetFactory = CLEAN, first: int = 0, error: type = RuntimeError) -> None:
        super().__init__(factory)
        self.capabilities = replace(factory.capabilities, engine=())
        self.method, self.first, self.error = method, first, error
        self.opened: list[int] = []
        self.closed: list[int] = []

    def open(self, config: Config) -> Target:
        number = len(self.opened)
        self.opened.append(number)
        if self.method == "open" and number >= self.first:
            raise self.error("no open")
        target = super().open(config)
        close, calls = target.close, iter(range(1000))

        def shaky(*arguments: object) -> Any:
            if next(calls) >= self.first:
                raise self.error(f"no {self.method}")
            return original(*arguments)

        def closing() -> None:
            self.closed.append(number)
            close()

        target.close = closing  # type: ignore[method-assign]
        if self.method != "open":
            original = getattr(target, self.method)
            setattr(target, self.method, shaky)
        return target


@pytest.mark.parametrize("ranks", ["1", "2"])
@pytest.mark.parametrize("method", ["open", "view", "close"])
def test_what_is_raised_outside_of_events_is_a_finding(method: str, ranks: str) -> None:
    """All of it was an internal error, and nothing was saved."""
    trace = make_trace(arrive("r0", 20, new=1), *steps(3), options={"dp": ranks})
    factory = Shaky(method)
    outcome = run_trace(factory, trace)
    assert outcome.violation is not None
    kind = "close" if method == "close" else "open"
    assert outcome.violation.signature.startswith(f"CRASH-{kind}-RuntimeError-")
    assert f"RuntimeError: no {method} at " in outcome.violation.message
    assert outcome.violation.message.endswith("(while it was closed)" if kind == "close" else "(while it was opened)")
    assert outcome.violation.event == (len(trace.events) if method == "close" else 0)
    assert ("rank 0: " in outcome.violation.message) == (method == "close" and ranks == "2")
    for again in (record_history(Shaky(method), trace)[0], record_activity(Shaky(method), trace).outcome):
        assert again.violation is not None
        assert again.violation.message == outcome.violation.message


def test_what_is_raised_at_the_very_end_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle may read the engine once more when all is done."""
    trace = make_trace(arrive("r0", 20, new=1), *steps(3))
    lockstep = Lockstep(CLEAN.open(trace.config), trace.config, CLEAN.capabilities.observes)
    first = lockstep._first

    def unreadable(hook: str, record: object) -> Violation | None:
        if hook == "on_idle":
            raise RuntimeError("no bytes")
        return first(hook, record)

    monkeypatch.setattr(lockstep, "_first", unreadable)
    violation = lockstep.drain(0)
    assert violation is not None
    assert violation.signature == "CRASH-step-RuntimeError-unreadable"


def test_an_engine_that_cannot_be_closed_does_not_hide_a_violation() -> None:
    trace = make_trace(arrive("r0", 20, new=4), *steps(6))
    violation = run_trace(Shaky("close", broken(Crashes)), trace).violation
    assert violation is not None
    assert violation.signature == "CRASH-step-IndexError-zero_blocks"


def test_all_engines_are_closed_whichever_breaks() -> None:
    trace = make_trace(arrive("r0", 20, new=1), *steps(3), options={"dp": "3"})
    factory = Shaky("open", first=2)
    assert run_trace(factory, trace).violation
    assert (factory.opened, factory.closed) == ([0, 1, 2], [0, 1])


@pytest.mark.parametrize("ranks", ["1", "2"])
@pytest.mark.parametrize("method", ["open", "view"])
def test_a_configuration_that_is_refused_late_is_no_finding(method: str, ranks: str) -> None:
    """The trace is refused, by the reason that the target gives, and the campaign goes on with others."""
    trace = make_trace(arrive("r0", 20, new=1), options={"dp": ranks})
    factory = Shaky(method, error=TargetError)
    with pytest.raises(RefusedError, match=f"^no {method}$"):
        run_trace(factory, trace)
    assert len(factory.opened) == 1


def test_only_a_trace_is_refused_in_an_event() -> None:
    """TraceError says that a trace does not fit. TargetError is for opening: later it is a finding, or one trace could
    end a campaign.
    """

    class Raises(HybridTarget):
        error: ClassVar[Exception]

        def run_step(self, event: Step) -> Any:
            raise self.error

    class RefusesTrace(Raises):
        error = TraceError("no such event here")

    class RefusesLate(Raises):
        error = TargetError("no engine here")

    trace = make_trace(arrive("r0", 3), Step())
    with pytest.raises(TraceError, match="no such event here"):
        run_trace(broken(RefusesTrace), trace)
    violation = run_trace(broken(RefusesLate), trace).violation
    assert violation and "TargetError: no engine here" in violation.message


def test_a_contradictory_configuration_is_refused() -> None:
    with pytest.raises(TraceError, match="num_blocks=2 cannot hold"):
        run_trace(CLEAN, make_trace(num_blocks=2))


class Drips(Scheduler):
    """A running request computes nothing but one token over and over."""

    def settle(self, row: Any, sampled: Any) -> tuple[list[int], bool]:
        request = self.requests.get(row.name)
        if request is not None and request.epoch == row.epoch:
            self.preempt(request)
        return [], False


def test_draining_is_bounded() -> None:
    """Work without an end is a finding after a bounded number of steps."""
    trace = make_trace(arrive("r0", 20, new=4), mamba_cache_mode="none")
    outcome = run_trace(broken(Drips), trace)
    assert outcome.violation is not None
    assert outcome.violation.signature == "M8-step-drain"
    assert outcome.violation.event >= len(trace.events)
    assert outcome.steps <= 3 * 24 + 6


def test_draining_ends_everything() -> None:
    """A trace may stop anywhere: what is unfinished is finished, asleep or not."""
    events = (arrive("r0", 20, new=20), arrive("r1", 30, new=9), Step(), Sleep())
    watched = watch(make_trace(*events, async_depth=1))
    assert watched.outcome.violation is None
    _, _, view = watched.history[-1]
    assert not view.running
    assert not view.waiting
    assert any(isinstance(event, Wake) for event, _, _ in watched.history)


@pytest.mark.parametrize(
    ("events", "wakes"),
    [((), 0), ((Step(),), 0), ((Sleep(),), 1), ((Sleep(), Preempt("r0")), 1), ((Sleep(), Wake()), 1)],
    ids=str,
)
def test_only_a_sleeping_engine_is_woken_and_only_once(events: tuple[AnyEvent, ...], wakes: int) -> None:
    """By the trace, or else before draining."""
    watched = watch(make_trace(arrive("r0", 20, new=20), *events))
    assert watched.outcome.violation is None
    assert sum(isinstance(event, Wake) for event, _, _ in watched.history) == wakes


@pytest.mark.parametrize("session", [False, True])
@pytest.mark.parametrize("name", ["r0", "ghost"])
def test_a_step_for_a_request_that_is_not_there_is_found(name: str, session: bool) -> None:
    """It ended, its session waits for the next turn, or it never arrived."""

    def add_row(records: list[Record]) -> list[Record]:
        return [
            msgspec.structs.replace(one, rows=[PlannedRow(name, 13, 1, 0, False, 0)])
            if isinstance(one, Planned) and not one.rows
            else one
            for one in records
        ]

    trace = make_trace(Arrive("r0", (("d", 12),), 2, session=session), *steps(6))
    assert run_trace(CLEAN, trace).violation is None
    violation = run_trace(Tampered(add_row), trace).violation
    assert violation is not None
    assert (violation.signature, violation.request) == ("M9-step-ended", name)
    assert violation.event < len(trace.events)
    assert f"for {name}" in violation.message


def test_on_event_is_called_before_each_event() -> None:
    """So that the death of a worker has an address."""
    seen: list[int] = []
    trace = make_trace(arrive("r0", 20, new=4), *steps(6))
    run_trace(broken(Crashes), trace, seen.append)
    assert seen == [0, 1, 2, 3]


@pytest.mark.parametrize(("events", "unfinished"), [(steps(4), False), ((Step(),), True), ((Sleep(),), True)], ids=str)
def test_draining_counts_on(events: tuple[AnyEvent, ...], unfinished: bool) -> None:
    """From the index behind the last event, once before anything is woken or closed and then for each step."""
    seen: list[int] = []
    trace = make_trace(arrive("r0", 12, new=3), *events)
    assert run_trace(CLEAN, trace, seen.append).violation is None
    count = len(trace.events)
    assert seen[: count + 1] == list(range(count + 1))
    assert seen[count + 1 :] == list(range(count, seen[-1] + 1)) * unfinished
    assert (seen[-1] > count) == unfinished


def test_a_slow_engine_is_given_time_to_drain() -> None:
    """Three steps for each token."""

    class Dawdles(HybridTarget):
        asked = 0

        def run_step(self, event: Step) -> list[Record]:
            self.asked += 1
            busy = self.scheduler.running or self.scheduler.waiting
            return [] if busy and self.asked % 3 else super().run_step(event)

    assert run_trace(broken(Dawdles), make_trace(arrive("r0", 3, new=40))).violation is None


@pytest.mark.parametrize(("calls", "signature"), [(3, ""), (9, "M8-step-drain")])
def test_draining_waits_for_what_is_in_flight(calls: int, signature: str) -> None:
    """Nobody runs or waits any more, but the device takes its time with the last step; not for ever."""
    held: list[Record] = []
    left = iter(range(calls))

    def late(records: list[Record]) -> list[Record]:
        held.extend(one for one in records if one.step == 3 and not isinstance(one, Planned))
        kept = [one for one in records if one not in held]
        return [*held, *kept] if held and next(left, 0) == calls - 1 else kept

    trace = make_trace(arrive("r0", 20, new=9), *steps(4), Abort("r0"), async_depth=1)
    factory = Tampered(late)
    violation = run_trace(factory, trace).violation
    assert (violation.signature if violation else "") == signature
    seen = [one.step for _, records, _ in factory.opened[0].history for one in records if isinstance(one, Forward)]
    assert seen == [0, 1, 2, 3][: 3 if violation else 4]
    if violation:
        check_sentence(violation)


def test_what_is_left_in_the_end_is_told() -> None:
    """By `drain` and in the outcome."""
    trace = make_trace(arrive("r0", 12))
    leaks = change_view(leftovers=lambda view: {"requests": 1})
    lockstep = Lockstep(leaks.open(trace.config), trace.config, CLEAN.capabilities.observes)
    assert lockstep.apply(trace.events[0], 0) is None
    violation = lockstep.drain(1)
    assert violation is not None
    assert violation.signature == "M9-step-requests"
    assert run_trace(leaks, trace).violation == violation


def test_what_happens_while_draining_is_found() -> None:
    """On waking, in a step, on closing a session, in the step behind it."""

    class Breaks(HybridTarget):
        def apply(self, event: Event) -> Effect:
            if isinstance(event, breaks):
                raise RuntimeError(type(event).__name__)
            return super().apply(event)

    session = Arrive("r0", (("d", 12),), 2, session=True)
    for breaks, events in (
        (Wake, (arrive("r0", 12), Sleep())),
        (Step, (arrive("r0", 12),)),
        (Step, (Preempt("ghost"),)),
        (Abort, (session, *steps(4))),
    ):
        trace = make_trace(*events)
        lockstep = Lockstep(broken(Breaks).open(trace.config), trace.config, CLEAN.capabilities.observes)
        assert not any(lockstep.apply(event, index) for index, event in enumerate(trace.events))
        violation = lockstep.drain(len(trace.events))
        assert violation is not None
        assert violation.signature.startswith(f"CRASH-{breaks.__name__.lower()}-RuntimeError")
        assert violation.event == len(trace.events)


def test_a_trace_ends_at_its_first_violation() -> None:
    trace = make_trace(arrive("r0", 20, new=4), *steps(6))
    target = broken(Crashes).open(trace.config)
    lockstep = Lockstep(target, trace.config, CLEAN.capabilities.observes)
    for index, event in enumerate(trace.events):
        if lockstep.apply(event, index):
            break
    with pytest.raises(AssertionError, match="first violation"):
        lockstep.apply(Step(), 9)


def test_what_a_target_does_not_show_is_not_judged() -> None:
    """Fewer observations, fewer oracles: they are absent, not at rest."""
    factory = Tampered(observes=frozenset({"pool", "tables"}))
    exercised = run_trace(factory, drawn(4711, 2)).exercised
    assert set(exercised) == {"M1", "M2", "M6", "M8", "S5", "S6"}


def test_arrive_is_seen_by_reference_and_target_alike() -> None:
    """Every request that fits exists on both sides from its arrival on."""
    trace = drawn(4711, 5)
    target = CLEAN.open(trace.config)
    lockstep = Lockstep(target, trace.config, CLEAN.capabilities.observes)
    for index, event in enumerate(trace.events):
        assert lockstep.apply(event, index) is None
        if isinstance(event, Arrive):
            view = target.view()
            assert set(lockstep.context.reference.lives) == {*view.waiting, *view.running}
