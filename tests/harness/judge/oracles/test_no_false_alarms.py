"""The other half of the proof: no oracle speaks where nothing is wrong, and each had its say."""

from collections import Counter

import pytest
import test_oracle_block_accounting
import test_oracle_content
import test_oracle_prefix_cache
import test_oracle_progress
import test_oracle_tables
from support import CLEAN, ORACLE_IDS, drawn

from hybridfuzz.harness.judge.oracles import ORACLES, Oracle, applicable
from hybridfuzz.harness.judge.oracles.liveness import STALL_STEPS_MAX
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.trace import Arrive, Config, Event, Group, Step, Trace

SEED = 20261120
PARTS, TRACES_PER_PART = 6, 25
MODULES = (
    test_oracle_prefix_cache,
    test_oracle_block_accounting,
    test_oracle_progress,
    test_oracle_content,
    test_oracle_tables,
)


@pytest.mark.parametrize("part", range(PARTS))
def test_clean_target_is_silent_and_everything_is_exercised(part: int) -> None:
    """150 drawn traces in all: no violation, and in each 25 of them every oracle had work to do."""
    exercised: Counter[str] = Counter()
    for index in range(part * TRACES_PER_PART, (part + 1) * TRACES_PER_PART):
        outcome = run_trace(CLEAN, drawn(SEED, index))
        assert outcome.violation is None, f"trace {index}: {outcome.violation.message}"
        exercised.update(outcome.exercised)
    assert {oracle for oracle, times in exercised.items() if times} == ORACLE_IDS


def test_every_oracle_is_sabotaged_at_least_twice() -> None:
    counts = Counter(case.oracle for module in MODULES for case in module.CASES)
    assert counts.keys() == ORACLE_IDS
    assert min(counts.values()) >= 2


def test_ids_are_those_of_the_design() -> None:
    """Each oracle has an id, a title and a contract."""
    assert {one for oracle in ORACLES for one in oracle.ids()} == ORACLE_IDS | {"S9", "D2"}
    for oracle in ORACLES:
        assert oracle.title
        assert len(oracle.ids()) == len(oracle.rules), "a rule for each id"
        assert all(rule.text.endswith((".", ".)")) for rule in oracle.rules)


def test_embedded_target_can_be_judged_by_all() -> None:
    assert set(applicable(CLEAN.capabilities)) == ORACLE_IDS


def test_an_oracle_without_its_observations_is_not_applicable() -> None:
    """A target that shows nothing is judged by what needs nothing."""
    import msgspec

    blind = msgspec.structs.replace(CLEAN.capabilities, observes=frozenset())
    assert set(applicable(blind)) == {"M8", "S6"}


def test_exercised_starts_at_zero_for_every_id() -> None:
    for oracle in ORACLES:
        one: Oracle = oracle()
        assert one.exercised == dict.fromkeys(oracle.ids(), 0)


def test_requests_whose_grammars_fail_one_after_another_are_no_stall() -> None:
    """M8 took seventeen steps without a row, in which each of four requests got its error, for a stall."""
    config = Config(num_blocks=60, groups=(Group("mamba", 4), Group("attention", 4)))
    events: list[Event] = []
    for number in range(4):
        events += [Arrive(f"r{number}", (("a", 6),), 3, bad_grammar=5), *[Step()] * 4]
    outcome = run_trace(CLEAN, Trace(config, tuple(events)))
    assert outcome.violation is None and outcome.steps > 2 * STALL_STEPS_MAX
