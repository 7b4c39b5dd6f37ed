"""The evidence of planted bugs: what is necessary, where runs part, and that a reduction keeps to its cause."""

import pytest
from msgspec import structs
from support import arrive, make_trace

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.group.causes.evidence import Evidence
from hybridfuzz.harness.group.causes.investigate import Investigation
from hybridfuzz.harness.group.causes.same_cause import likeness
from hybridfuzz.harness.group.causes.weights import SAME
from hybridfuzz.harness.group.reduction.still_fails import names_of, relation, same_symptom
from hybridfuzz.harness.group.reduction.variants import neighbours, switched
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.verdict import Past, Prefix, Quoted, Request, StateOf, Value, Zeroed
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.record.activity import Observation, record_activity
from hybridfuzz.harness.record.history import History
from hybridfuzz.harness.record.recorder import record_history
from hybridfuzz.targets.base.protocol import TargetFactory
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import Trace


class InProcess:
    """An engine without a worker process."""

    def __init__(self, factory: TargetFactory) -> None:
        self.factory = factory

    def run(self, trace: Trace) -> Outcome:
        return run_trace(self.factory, trace)

    def observe(self, trace: Trace, *, lines: bool = False, most: int | None = None) -> Observation:
        return record_activity(self.factory, trace, lines=lines, most=most)

    def explain(self, trace: Trace) -> tuple[Outcome, History]:
        return record_history(self.factory, trace)


def failing(factory: TargetFactory, most: int) -> list[tuple[Trace, Violation]]:
    """The first failing traces of seed 1."""
    found = []
    for index in range(400):
        trace = draw_trace(factory.capabilities, 1, index)
        if violation := run_trace(factory, trace).violation:
            found.append((trace, violation))
            if len(found) == most:
                break
    return found


def evidence(slug: str, most: int = 2) -> list[Evidence]:
    factory = load_factory(f"hybrid:{slug}")
    seen = []
    for trace, violation in failing(factory, most):
        investigation = Investigation(InProcess(factory), factory.capabilities, 30.0)
        best = investigation.reduce(trace, violation)
        assert len(best.events) <= len(trace.events)
        if one := investigation.evidence(best):
            seen.append(one)
    return seen


@pytest.fixture(scope="module")
def accepted() -> list[Evidence]:
    return evidence("accepted-count-zero")


def test_traces_of_one_bug_are_more_like_each_other_than_like_those_of_another(accepted: list[Evidence]) -> None:
    [one, other] = accepted
    for foreign in evidence("finished-row-not-cleared", 1):
        strange = max(likeness(foreign, each) for each in accepted)
        assert strange < SAME
        assert strange < likeness(one, other)


def test_evidence_names_necessary_switches_and_places_in_the_engine(accepted: list[Evidence]) -> None:
    for one in accepted:
        assert set(one.switches) <= set(one.values)
        assert one.places and all(place.file.startswith("hybrid/") for place in one.places)
        assert one.needed and set(one.needed) <= {*one.facts, *one.traits}
        assert one.complete and one.runs > 1


def test_nothing_runs_twice() -> None:
    factory = load_factory("hybrid:accepted-count-zero")
    [(trace, violation)] = failing(factory, 1)
    investigation = Investigation(InProcess(factory), factory.capabilities, 30.0)
    best = investigation.reduce(trace, violation)
    runs = investigation.runs
    assert investigation.result(best)
    assert investigation.runs == runs


def test_a_run_that_fails_otherwise_while_it_is_watched_is_no_evidence() -> None:
    """All findings on SGLang were one for it: the recorder itself failed in each watched run."""

    class Disturbed(InProcess):
        def observe(self, trace: Trace, *, lines: bool = False, most: int | None = None) -> Observation:
            seen = super().observe(trace, lines=lines, most=most)
            assert seen.outcome.violation
            other = structs.replace(seen.outcome.violation, oracle="CRASH", field="AttributeError-__lt__")
            return structs.replace(seen, outcome=structs.replace(seen.outcome, violation=other))

    factory = load_factory("hybrid:accepted-count-zero")
    [(trace, violation)] = failing(factory, 1)
    best = Investigation(InProcess(factory), factory.capabilities, 30.0).reduce(trace, violation)
    assert Investigation(InProcess(factory), factory.capabilities, 30.0).evidence(best)
    assert Investigation(Disturbed(factory), factory.capabilities, 30.0).evidence(best) is None


def test_a_reduction_keeps_request_and_relation() -> None:
    trace = make_trace(arrive("r7", 4), arrive("r1", 4))
    wanted = resumes("r7", StateOf(Prefix("r7"), 3))
    accepts = same_symptom(wanted, trace)
    assert relation(wanted) == (
        "SN: OWN resumes from the state of OWN after N tokens in block N (column N), expected the state of OWN after N "
        "tokens"
    )
    assert accepts(resumes("r7", StateOf(Prefix("r7"), 5)))
    assert accepts(structs.replace(wanted, details={**wanted.details, "past": Past("never")}))
    assert not accepts(structs.replace(wanted, request="r1"))
    assert not accepts(resumes("r7", Zeroed()))
    assert not accepts(resumes("r7", StateOf(Prefix("r1"), 3)))
    assert not accepts(structs.replace(wanted, field="conv"))


def resumes(request: str, found: Value) -> Violation:
    """A request that continues from `found`."""
    wanted, past = StateOf(Prefix(request), 4), Past("written", Request(request), 1)
    return Violation(
        "S3", "temporal", expected=wanted, observed=found, request=request, block=2, step=9, relation="resumes",
        details={"column": 0, "past": past},
    )  # fmt: skip


@pytest.mark.parametrize(("own", "other"), [("alice", "bob"), ("req-1", "req-2"), ("block", "state"), ("r0", "r1")])
def test_a_relation_knows_requests_of_any_name(own: str, other: str) -> None:
    """Once only r0 and s0 were requests: "bob" stayed in the relation, "req-1" became "req-N"."""
    assert relation(resumes(own, StateOf(Prefix(other), 3))) == relation(resumes("r7", StateOf(Prefix("r1"), 3)))
    raised = Violation(
        "CRASH", "KeyError-pop", relation="raised", event=4, event_kind="step",
        details={"who": "engine", "error": Quoted(f"KeyError: '{other}'"), "where": Quoted("sched.py:12 in pop")},
    )  # fmt: skip
    assert relation(raised, names_of(make_trace(arrive(own, 4), arrive(other, 4)))) == (
        "CRASH: the engine raised KeyError: 'OTHER' at sched.py:N in pop (event N, step)"
    )


def test_variants_differ_in_one_property() -> None:
    factory = load_factory("hybrid")
    trace = draw_trace(factory.capabilities, 1, 3)
    for other in switched(trace.config, factory.capabilities):
        assert other.config != trace.config
    for near in neighbours(trace, "r0"):
        changed = len(trace.events) - len(near.trace.events)
        assert (
            changed == 1 or sum(one != other for one, other in zip(trace.events, near.trace.events, strict=True)) == 1
        )
