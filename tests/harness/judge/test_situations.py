"""Situations that come together in one event, and the species that a process reports."""

from collections import Counter

import pytest
from support import arrive, make_trace, steps

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.situations import NAMES, REPORTS, Situations, SpeciesReporter, digest, members, pairs
from hybridfuzz.harness.judge.state_catalogue import REQUIRES
from hybridfuzz.targets.base.registry import load_factory

HIT, CHUNK, STEP = (NAMES.index(name) for name in ("prefix hit", "chunked prefill", "event: step"))


def test_what_came_in_one_event() -> None:
    counts = Counter[str]()
    situations = Situations(counts)
    counts.update({"prefix hit": 1, "observed: pool": 1, "preempted": 0})
    situations.after_event("step")
    counts.update({"prefix hit": 2, "chunked prefill": 1})
    situations.after_event("step")
    situations.after_event("step")
    assert situations.together() == sorted([sorted([HIT, STEP]), sorted([CHUNK, HIT, STEP]), [STEP]])


def test_every_situation_of_a_run_is_in_the_catalogue() -> None:
    """A name that is not would end a campaign."""
    factory = load_factory("hybrid")
    outcomes = [run_trace(factory, draw_trace(factory.capabilities, 2, index)) for index in range(60)]
    assert {name for outcome in outcomes for name in outcome.reached} <= REQUIRES.keys()
    assert all(number < len(NAMES) for outcome in outcomes for row in outcome.together for number in row)


def test_equal_runs_show_the_same() -> None:
    trace = make_trace(arrive("r0", 20), *steps(5), arrive("r1", 20), *steps(5))
    one, other = (run_trace(load_factory("hybrid"), trace) for _ in range(2))
    assert one.together == other.together
    assert any(HIT in row and STEP in row for row in one.together)


def test_pairs() -> None:
    assert {first: members(row) for first, row in enumerate(pairs([[1, 2, 5], [2, 7]])) if row} == {
        1: [2, 5],
        2: [5, 7],
    }


def test_a_species_is_reported_with_the_first_traces_that_show_it() -> None:
    reporter = SpeciesReporter()
    assert [len(reporter.report([[1, 2], [1, 2]])) for _ in range(REPORTS + 2)] == [1] * REPORTS + [0, 0]
    assert reporter.report([[1, 2, 3]]) == [digest(1, 3), digest(2, 3)]


def test_a_digest_is_that_of_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a longer catalogue would make all species new."""
    before = digest.__wrapped__(0, 1)
    monkeypatch.setattr("hybridfuzz.harness.judge.situations.NAMES", ("new", *NAMES))
    assert digest.__wrapped__(1, 2) == before
    assert 0 <= before < 1 << 63
