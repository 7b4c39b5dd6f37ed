"""The Hypothesis face: green on the correct target, and on a mutant a reduced trace and a command."""

import json
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

import pytest
from hypothesis import settings
from support import CLEAN

from hybridfuzz.harness.draw.hypothesis_rules import ServingRules
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.hypothesis_machine import PROFILE_VARIABLE, HybridCacheMachine, ViolationError, profile
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import Event, Step

FEW = settings(profile("gate"), max_examples=12, stateful_step_count=30)
MUTANT = "hybrid:zero-list-never-drained"
SHOWS_IT = {"groups": [{"kind": "attention", "block_size": 8}]}
"""A model without states."""


def machine(folder: Path, target: str, **overrides: object) -> type[unittest.TestCase]:
    """A test case that leaves its findings in a folder of the test."""

    class Here(HybridCacheMachine):
        directory = folder

    return Here.for_target(target, overrides, FEW)


def failure(case: type[unittest.TestCase]) -> str:
    """The report of the only failure, "" if it passed."""
    result = unittest.TestResult()
    case("runTest").run(result)
    assert result.testsRun == 1
    return "".join(report for _, report in [*result.failures, *result.errors])


def test_clean_target_passes(tmp_path: Path) -> None:
    assert failure(machine(tmp_path, "hybrid")) == ""
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return the failure text of a run on a mutant, and its trace's path."""
    folder = tmp_path_factory.mktemp("findings")
    said = failure(machine(folder, MUTANT, **SHOWS_IT))
    [path] = folder.glob("*.json")
    return said, path


def test_mutant_fails_with_a_replay_line(report: tuple[str, Path]) -> None:
    said, path = report
    assert ViolationError.__name__ in said
    assert "M9: the list of blocks to zero has" in said
    assert re.search(rf"^\s+replay: hybridfuzz replay {path} --target {MUTANT}$", said, re.MULTILINE)


def test_the_trace_on_disk_is_reduced_and_replays(report: tuple[str, Path]) -> None:
    """It fails on the mutant with the signature in its name, and is clean on the correct target."""
    _, path = report
    trace = load_trace(path)
    violation = run_trace(load_factory(MUTANT), trace).violation
    assert violation is not None
    assert violation.signature == path.stem
    assert len(trace.events) <= 6
    assert run_trace(CLEAN, trace).violation is None


def test_overrides_fix_the_configuration() -> None:
    """Every drawn configuration obeys them."""
    seen = []

    class Looks(HybridCacheMachine):
        def happen(self, event: object) -> None:
            seen.append(self.config)
            super().happen(event)  # type: ignore[arg-type]

    case = Looks.for_target("hybrid", {"mamba_cache_mode": "none", "enable_prefix_caching": False}, FEW)
    assert failure(case) == ""
    assert seen
    assert {config.mamba_cache_mode for config in seen if config} == {"none"}


def test_rules_of_ones_own_may_use_happen() -> None:
    """A subclass adds a rule; its events run in lockstep like all others."""
    from hypothesis.stateful import rule

    taken = []

    class Mine(HybridCacheMachine):
        @rule()
        def two_steps(self) -> None:
            for _ in range(2):
                self.happen(Step())
            taken.append(len(self.events))

    assert failure(Mine.for_target("hybrid", run=FEW)) == ""
    assert taken


def rules_run(case: type[HybridCacheMachine], target: str = "hybrid", **overrides: object) -> set[str]:
    """Return the kinds of events that many examples of a machine draw. They are not applied: that takes too long."""
    seen: set[str] = set()

    class Looks(case):  # type: ignore[valid-type, misc]
        def happen(self, event: Event) -> None:
            seen.add(str(event.__struct_config__.tag))
            ServingRules.happen(self, event)

    assert failure(Looks.for_target(target, overrides, settings(FEW, max_examples=250))) == ""
    return seen


def test_there_is_a_rule_for_each_kind_of_event() -> None:
    """Every kind that the built-in target knows is a rule of its own name, and happens; wake belongs to sleep."""
    known = load_factory("hybrid").capabilities.events - {"wake"}
    names = {rule.function.__name__ for rule in HybridCacheMachine.setup_state().rules}
    assert known <= names
    assert known <= rules_run(HybridCacheMachine)


def test_a_subclass_switches_a_rule_off() -> None:
    class Calm(HybridCacheMachine):
        preempt = None
        abort = None

    seen = rules_run(Calm)
    assert "step" in seen
    assert not seen & {"preempt", "abort"}


def test_a_subclass_replaces_a_rule() -> None:
    """A rule of the same name takes the place of the inherited one."""
    from hypothesis.stateful import rule

    taken = []

    class Mine(HybridCacheMachine):
        @rule()
        def evict(self) -> None:
            taken.append(1)

    assert "evict" not in rules_run(Mine)
    assert taken


def test_a_subclass_adds_an_invariant() -> None:
    """It is checked between rules, with the target at hand, and fails the run."""
    from hypothesis.stateful import invariant

    class Strict(HybridCacheMachine):
        @invariant()
        def few_events(self) -> None:
            assert len(self.events) < 5, "too many events"

    assert "too many events" in failure(Strict.for_target("hybrid", run=FEW))


def test_hypothesis_does_not_shrink() -> None:
    """Our own reducer does: a failing example is not run hundreds of times."""
    assert {phase.name for phase in profile().phases} == {"explicit", "reuse", "generate"}


def settings_under_ci(environment: dict[str, str]) -> dict[str, object]:
    """Return a machine's settings in a process with $CI set."""
    script = (
        "import json; from hybridfuzz.harness.hypothesis_machine import HybridCacheMachine as M; import hypothesis; "
        "s = M.for_target('hybrid').settings; d = hypothesis.settings.default; "
        "print(json.dumps([s.derandomize, s.database is not None, s.max_examples, d.derandomize]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "CI": "true", **environment}, capture_output=True, check=True
    )
    names = ("derandomize", "database", "examples", "hypothesis_neutered")
    return dict(zip(names, json.loads(ran.stdout), strict=True))


def test_ci_does_not_neuter_the_night_job() -> None:
    """Hypothesis's automatic CI profile (fixed seed, no database) is on, and the nightly profile is not touched."""
    assert settings_under_ci({PROFILE_VARIABLE: "nightly"}) == {
        "derandomize": False,
        "database": True,
        "examples": 1000,
        "hypothesis_neutered": True,
    }


def test_the_gate_profile_is_derandomized() -> None:
    """Whoever asks gets the same examples."""
    gate = settings_under_ci({PROFILE_VARIABLE: "gate"})
    assert gate["derandomize"]
    assert not gate["database"]


def test_there_is_no_other_profile() -> None:
    with pytest.raises(KeyError):
        profile("weekly")
