"""Reduction: the same bug, ever smaller, within its time."""

import time
from functools import cache
from statistics import median
from typing import Any

import msgspec
import pytest
from support import CLEAN, arrive, broken, drawn, make_trace, steps

from hybridfuzz.harness.group.reduction.reduce import (
    Reducer,
    reduce_trace,
    simpler_events,
    smaller_numbers,
    turn_begun_later,
    with_events,
)
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.workers.protocol import NodeLost
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import (
    Abort,
    Arrive,
    DummyRun,
    Event,
    Evict,
    ExternalLoad,
    Preempt,
    Reorder,
    ResetPrefixCache,
    Select,
    Step,
    Trace,
    TraceError,
    Truncate,
    check_config,
)
from hybridfuzz.targets.hybrid.mutants import MUTANTS
from hybridfuzz.targets.hybrid.worker.model_runner import ModelRunner

FIRST_MUTANTS = (
    "null-as-state-slot",
    "finished-row-not-cleared",
    "all-mode-partial-block",
    "all-spec-table-width",
    "stale-fp32-bytes-nan",
    "zero-list-never-drained",
)
SEED = 18


@cache
def first_failure(slug: str) -> tuple[Trace, str]:
    """The first trace of the seed that shows the mutant, and the signature."""
    factory = load_factory(f"hybrid:{slug}")
    for index in range(400):
        violation = run_trace(factory, drawn(SEED, index)).violation
        if violation is not None:
            return drawn(SEED, index), violation.signature
    raise AssertionError(f"{slug} was not found")


def size(trace: Trace) -> int:
    return len(trace.events)


@cache
def reduced(slug: str) -> tuple[Trace, list[Trace]]:
    """The end of the reduction, and every improvement on the way."""
    trace, signature = first_failure(slug)
    factory = load_factory(f"hybrid:{slug}")
    seen: list[Trace] = []
    best = reduce_trace(trace, signature, lambda one: run_trace(factory, one), seconds=60, on_better=seen.append)
    return best, seen


@pytest.mark.parametrize("slug", FIRST_MUTANTS)
def test_reduction_keeps_the_bug_and_only_the_bug(slug: str) -> None:
    """From whatever the seed finds first; same signature, still legal, clean on the correct target."""
    _, signature = first_failure(slug)
    best, seen = reduced(slug)
    violation = run_trace(load_factory(f"hybrid:{slug}"), best).violation
    assert violation is not None
    assert violation.signature == signature
    assert run_trace(CLEAN, best).violation is None
    assert seen[-1] == best
    assert [size(one) for one in seen] == sorted((size(one) for one in seen), reverse=True)
    assert size(best) <= 6


def test_mutants_reduce_to_a_median_of_six_events() -> None:
    sizes = sorted(size(reduced(slug)[0]) for slug in FIRST_MUTANTS)
    assert median(sizes) <= 6, sizes
    assert sizes[-2] <= 6, sizes


@pytest.mark.parametrize("slug", sorted(MUTANTS))
def test_every_mutant_is_found_from_random_traces(slug: str) -> None:
    assert first_failure(slug)


class LastStepFails(ModelRunner):
    """Fails in the seventh step, if r1 is in it."""

    def zero_blocks(self, plan: Any, records: Any) -> None:
        super().zero_blocks(plan, records)
        if plan.step >= 6 and "r1" in plan.rows:
            raise RuntimeError("no")


SLOW = make_trace(
    arrive("r0", 30, new=3), *steps(3), arrive("r1", 20, ("e", 5), new=20, priority=1), Abort("r0"),
    Preempt("r1"), *steps(3, drafts=2, right=1), DummyRun(2), *steps(9),
    num_speculative_tokens=3, num_blocks=99, async_depth=0,
)  # fmt: skip


def run_slow(trace: Trace) -> Outcome:
    return run_trace(broken(LastStepFails), trace)


def test_what_stands_behind_the_failure_is_cut_first() -> None:
    signature = run_slow(SLOW).violation.signature  # type: ignore[union-attr]
    seen: list[Trace] = []
    reduce_trace(SLOW, signature, run_slow, seconds=10, on_better=seen.append)
    assert size(seen[0]) < size(SLOW)


def test_names_and_numbers_get_simple() -> None:
    """One request is left, with short numbers, in a small configuration."""
    signature = run_slow(SLOW).violation.signature  # type: ignore[union-attr]
    best = reduce_trace(SLOW, signature, run_slow, seconds=20)
    arrivals = [event for event in best.events if isinstance(event, Arrive)]
    assert [event.name for event in arrivals] == ["r1"]
    assert arrivals[0].priority == 0
    assert len(arrivals[0].prompt) == 1
    assert {event for event in map(repr, best.events) if event.startswith("Step")} <= {repr(Step())}
    assert best.config.num_speculative_tokens == 0
    assert len(best.config.groups) == 1
    assert best.config.num_blocks < SLOW.config.num_blocks
    check_config(best.config)


def test_an_answer_becomes_prompt_and_saves_its_steps() -> None:
    """A boundary that two requests reach token by token, in phase: shorter answers alone would lose it."""

    def together(trace: Trace) -> Outcome:
        """Fail if two requests are still decoding and both have 20 tokens."""
        arrivals = [event for event in trace.events if isinstance(event, Arrive)]
        decoded = sum(isinstance(event, Step) for event in trace.events)
        lengths = [sum(tokens for _, tokens in event.prompt) + decoded for event in arrivals]
        met = lengths == [20, 20] and all(event.max_new_tokens > decoded for event in arrivals)
        violation = Violation("M1", "x", "together", event=len(trace.events) - 1) if met else None
        return Outcome(violation, decoded, 0, {}, {}, 0)

    trace = make_trace(arrive("r0", 4, new=30), arrive("r1", 2, ("~", 2), new=30), *steps(16))
    best = reduce_trace(trace, "M1-x", together, seconds=10)
    assert [type(event) for event in best.events] == [Arrive, Arrive]
    assert [event.max_new_tokens for event in best.events if isinstance(event, Arrive)] == [1, 1]


def test_an_unforeseen_end_becomes_a_foreseen_one_at_the_same_place() -> None:
    """Or none; where an answer becomes prompt, its end stays where it is."""
    event = Arrive("r0", (("a", 9),), 8, stop_at=5)
    simpler = list(simpler_events(event))
    assert {Arrive("r0", (("a", 9),), 5), Arrive("r0", (("a", 9),), 8)} <= set(simpler)
    assert turn_begun_later(event, 4) == Arrive("r0", (("a", 9), ("~", 4)), 4, stop_at=1)
    assert turn_begun_later(event, 5) == event


def test_another_signature_does_not_count() -> None:
    """Half of the candidates fail, but in another way: none of them is taken."""
    original = run_slow(SLOW).violation
    assert original is not None

    def slides(trace: Trace) -> Outcome:
        outcome = run_slow(trace)
        if outcome.violation is None or trace.config != SLOW.config:
            return outcome
        return msgspec.structs.replace(outcome, violation=msgspec.structs.replace(original, field="another"))

    def never(trace: Trace) -> Outcome:
        return msgspec.structs.replace(run_slow(trace), violation=msgspec.structs.replace(original, field="another"))

    assert reduce_trace(SLOW, original.signature, never, seconds=2) == SLOW
    best = reduce_trace(SLOW, original.signature, slides, seconds=2)
    assert best.config != SLOW.config or best == SLOW


def test_refused_candidates_do_not_count() -> None:
    """A configuration that target or trace refuse is no smaller trace."""
    signature = run_slow(SLOW).violation.signature  # type: ignore[union-attr]

    def picky(trace: Trace) -> Outcome:
        if trace.config.num_speculative_tokens < 3:
            raise TargetError("drafts, please")
        if len(trace.config.groups) < 2:
            raise TraceError("groups, please")
        return run_slow(trace)

    best = reduce_trace(SLOW, signature, picky, seconds=10)
    assert best.config.num_speculative_tokens == 3
    assert len(best.config.groups) == 2
    assert size(best) < size(SLOW)


def test_a_candidate_whose_node_was_lost_is_tried_again() -> None:
    """It counted as one that does not fail, so that the trace stayed as long as it was."""
    signature, lost = run_slow(SLOW).violation.signature, True  # type: ignore[union-attr]

    def run(trace: Trace) -> Outcome:
        if lost:
            raise NodeLost("gone")
        return run_slow(trace)

    reducer = Reducer(SLOW, signature, run, 10.0, lambda trace: None)
    shorter = with_events(SLOW, SLOW.events[:-1])
    with pytest.raises(NodeLost):
        reducer.attempt(shorter)
    lost = False
    assert reducer.attempt(shorter)


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_the_time_budget_is_kept(seconds: float) -> None:
    """A slow target gets the best so far, not a finished reduction."""
    signature = run_slow(SLOW).violation.signature  # type: ignore[union-attr]

    def slow(trace: Trace) -> Outcome:
        time.sleep(0.05)
        return run_slow(trace)

    began = time.monotonic()
    best = reduce_trace(SLOW, signature, slow, seconds=seconds)
    assert time.monotonic() - began < seconds + 1
    if not seconds:
        assert best == SLOW


@pytest.mark.parametrize(("value", "least"), [(1, 1), (2, 1), (9, 1), (9, 0), (100, 4), (3, 5)])
def test_smaller_numbers_shrink_and_stay_in_range(value: int, least: int) -> None:
    numbers = smaller_numbers(value, least)
    assert all(least <= number < value for number in numbers)
    assert numbers == sorted(numbers)
    assert bool(numbers) == (value > least)


@pytest.mark.parametrize(
    "event",
    [
        Step(7, {"r0": 3}, 2, 1, {"r0": (2, 0), "r1": (1, 1)}, 4),
        arrive("r0", 9, ("~", 4), new=5, priority=2),
        Arrive("r0", (("a", 9),), 8, session=True, stop_at=5),
        DummyRun(5, uniform_decode=False),
        Evict(7),
        ExternalLoad("r0", 9, states=False, breaks_off=True, delay=3),
        Truncate("r0", 6),
        Select(("r0", "r1", "r2")),
        Reorder({"r0": "r1", "r1": "r0"}),
        ResetPrefixCache(preempt_running=True),
    ],
)
def test_simplifying_an_event_ends(event: Event) -> None:
    """Each simplification leads to an event with fewer of its own; the last has none."""
    assert any(one != event for one in simpler_events(event))  # type: ignore[arg-type]
    seen = set()
    while True:
        options = [one for one in simpler_events(event) if one != event]  # type: ignore[arg-type]
        if not options:
            break
        event = options[-1]
        assert repr(event) not in seen
        seen.add(repr(event))


@pytest.mark.parametrize("event", [-1, 0])
def test_a_reduced_trace_has_an_event(event: int) -> None:
    """A trace without events cannot be read. Whole runs (DETERMINISM) break without an event."""

    def always(trace: Trace) -> Outcome:
        return Outcome(Violation("DETERMINISM", "digest", "differs", event=event), 0, 0, {}, {}, 0)

    trace = make_trace(arrive("r0", 3), *steps(4))
    assert len(reduce_trace(trace, "DETERMINISM-digest", always, seconds=5.0).events) == 1
