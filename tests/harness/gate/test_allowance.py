"""A run of the gate keeps to its budget and half a minute, on a clock of the test; what it has found is never lost."""

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support import arrive, make_trace, steps

from hybridfuzz.harness.gate import pytest_session
from hybridfuzz.harness.gate.allowance import (
    ENDING_SECONDS,
    GRACE_SECONDS,
    SORTING_SECONDS,
    WALL,
    Allowance,
)
from hybridfuzz.harness.gate.causes import NO_TIME, Causes, ItemFailure
from hybridfuzz.harness.gate.settings import GateSettings, combine
from hybridfuzz.harness.gate.verdicts import ItemVerdict, Verdicts
from hybridfuzz.harness.group.known.fixes import Fixes
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.results import Ran
from hybridfuzz.harness.workers.worker_client import Stopped, WorkerClient
from hybridfuzz.harness.workers.worker_process import Lost
from hybridfuzz.targets.base.registry import load_factory, prepare

pytest_plugins = ["pytester"]

TRACE = make_trace(arrive("r0", 3, new=9), *steps(2))
CLEAN = Outcome(None, 2, 2, {}, {}, 0)


class Clock:
    """A clock that goes when the test says so."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def verdicts(tmp_path: Path, clock: Clock) -> Callable[[str], Verdicts]:
    """Verdicts on the built-in target with a budget, whose worker is never started."""

    def make(budget: str) -> Verdicts:
        settings = settings_in(tmp_path, budget)
        launch = prepare("hybrid", print)
        seconds = settings.budget + GRACE_SECONDS
        gate = Verdicts(settings, 0, Fixes(launch, launch), (), allowance=Allowance(seconds, clock))
        gate.allowance.waited = lambda: 0.0
        return gate

    return make


def settings_in(folder: Path, budget: str) -> GateSettings:
    return combine({"target": "hybrid", "budget": budget, "out": folder / "out"}, folder)


def failing(item: str) -> ItemVerdict:
    del item
    return ItemVerdict("failed")


def cut_off(item: str) -> ItemVerdict:
    raise Stopped


def test_no_item_begins_after_the_end(clock: Clock) -> None:
    allowance = Allowance(90.0, clock)
    clock.now += 90 - ENDING_SECONDS - 1
    assert allowance.allows_item and allowance.left == 1
    clock.now += 60
    assert not allowance.allows_item and allowance.left == 0


def test_time_without_a_processor_does_not_count_up_to_a_limit(clock: Clock) -> None:
    allowance = Allowance(90.0, clock, waited=lambda: 200.0)
    clock.now += 200
    assert allowance.left == 90 - ENDING_SECONDS
    clock.now += WALL * 90 - 200 - 1
    assert allowance.left == 0
    allowance = Allowance(90.0, clock, waited=lambda: 1000.0)
    clock.now += WALL * 90 - 1
    assert allowance.left == 1


def test_after_other_processes_time_is_left_for_the_causes(clock: Clock) -> None:
    allowance = Allowance(90.0, clock)
    clock.now += 85
    allowance.give(SORTING_SECONDS)
    assert allowance.left == SORTING_SECONDS
    allowance.give(SORTING_SECONDS / 2)
    assert allowance.left == SORTING_SECONDS


@pytest.mark.parametrize(("left", "kept"), [(60.0, SORTING_SECONDS), (10.0, 5.0)])
def test_a_failure_keeps_time_to_tell_causes_apart(clock: Clock, left: float, kept: float) -> None:
    allowance = Allowance(left + ENDING_SECONDS, clock)
    allowance.keep_for_causes()
    clock.now += left - kept - 1
    assert allowance.allows_item
    clock.now += 1
    assert not allowance.allows_item
    allowance.keep_for_causes()
    assert not allowance.allows_item, "a second failure gives no time back"


def test_a_run_takes_its_budget_and_half_a_minute(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, clock: Clock, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It searched for five times its budget, and had the engine's start, the corpus and the causes beside that."""

    def fuzz(worker: WorkerClient, request: Fuzz) -> list[Ran]:
        clock.now += 1
        return [Ran(request.first, CLEAN, TRACE)]

    monkeypatch.setenv("HYBRIDFUZZ_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(WorkerClient, "fuzz", fuzz)
    monkeypatch.setattr(pytest_session, "Allowance", partial(Allowance, clock=clock))
    monkeypatch.setattr(Verdicts, "_queued", lambda gate: 0.0)
    began = clock.now
    result = pytester.runpytest("--hybridfuzz-target=hybrid", "--hybridfuzz-budget=2s", "-k", "search")
    assert clock.now - began <= 2 + GRACE_SECONDS
    ran = round(2 + GRACE_SECONDS - ENDING_SECONDS)
    late = 50 - ran
    result.assert_outcomes(passed=ran, skipped=late)
    result.stdout.fnmatch_lines(
        [
            f"50 traces ({ran} clean, {late} stopped early)*",
            f"stopped early: there was no time for {late} traces of 50 *",
        ]
    )


def test_an_item_that_is_cut_off_is_named(verdicts: Callable[[str], Verdicts]) -> None:
    verdict = verdicts("1s").in_time("search/0007", cut_off)
    assert verdict.state == "skipped"
    assert verdict.warning.endswith("again: pytest --hybridfuzz-target hybrid hybridfuzz::search/0007")


def test_a_hang_that_is_cut_off_before_it_is_run_again_fails(verdicts: Callable[[str], Verdicts]) -> None:
    gate = verdicts("1s")

    def hanging(item: str) -> ItemVerdict:
        gate._worker.last_lost = Lost("HANG", "time-limit", "did not end within 20 s", "")
        raise Stopped

    verdict = gate.in_time("search/0007", hanging)
    assert verdict.state == "failed"
    assert verdict.text.startswith("HANG: the target did not end within 20 s; no time was left to run it again")


def test_what_may_hang_is_waited_for_and_nothing_else(verdicts: Callable[[str], Verdicts], clock: Clock) -> None:
    """A trace that hangs from the end of a run on would be taken for one that was only late."""
    gate = verdicts("1s")
    assert gate._may_stop()
    seen = []

    def check(item: str) -> ItemVerdict:
        clock.now += 100
        seen.append(gate._may_stop())
        gate._worker.last_lost = Lost("HANG", "time-limit", "did not end within 60 s", "")
        seen.append(gate._may_stop())
        return ItemVerdict("clean")

    gate.in_time("search/0000", check)
    assert seen == [False, True] and gate._may_stop()


def test_after_a_failure_the_next_items_leave_time_for_its_cause(
    verdicts: Callable[[str], Verdicts], clock: Clock
) -> None:
    gate = verdicts("60s")
    assert gate.in_time("search/0000", failing).state == "failed"
    clock.now += 90 - ENDING_SECONDS - SORTING_SECONDS
    assert gate.in_time("search/0001", failing).state == "skipped"


def test_a_failure_for_which_no_time_is_left_is_saved_and_told(tmp_path: Path) -> None:
    launch = prepare("hybrid", print)
    failures = [
        ItemFailure(f"search/{number}", Violation("M4", "dead-write", "M4: wrong"), TRACE, "2 events")
        for number in range(3)
    ]
    worker = WorkerClient("hybrid", launch)
    for able in (None, load_factory("hybrid").capabilities):
        [cause] = Causes(settings_in(tmp_path, "1s"), Fixes(launch, launch), worker, able, 0.0).sorted(failures)
        assert len(cause.items) == 3
        assert f"; {NO_TIME}\n" in cause.text and "\nand 2 more items; in all 3 M4-dead-write" in cause.text
        assert (tmp_path / "out/findings/M4-dead-write.json").exists()


def test_a_worker_that_does_not_end_is_stopped(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Here on the clock of the machine: with a second for the items."""
    monkeypatch.setenv("HYBRIDFUZZ_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
    monkeypatch.setattr(pytest_session, "whole", lambda budget: ENDING_SECONDS + 1)
    monkeypatch.setattr("hybridfuzz.harness.gate.verdicts.PATIENCE_RUNS", 0)
    began = time.monotonic()
    result = pytester.runpytest(
        "--hybridfuzz-target=python:fake_targets:HANG", "--hybridfuzz-budget=0.08s", "-k", "search or fits"
    )
    assert time.monotonic() - began < 10
    assert result.ret == 0
    result.stdout.fnmatch_lines(["* stopped early), *"])
