"""How much of the workers' time goes into failures, and which failure comes first."""

import pytest

from hybridfuzz.harness.campaign.triage import FINDING, FURTHER, GRACE, LEFT_BEHIND, Triage


class Clock:
    """Seconds of a campaign, and those that tasks have taken."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(share: float, monkeypatch: pytest.MonkeyPatch, jobs: int = 2) -> tuple[Triage[str], Clock]:
    clock = Clock()
    monkeypatch.setattr("hybridfuzz.harness.campaign.triage.time.monotonic", clock)
    return Triage(share, jobs, clock, {}), clock


def take(triage: Triage[str], clock: Clock, seconds: float) -> None:
    with triage.timed("reducing"):
        clock.now += seconds


def test_tasks_take_no_more_than_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    triage, clock = make(0.3, monkeypatch)
    for number in range(1000):
        triage.put(str(number), FURTHER, 0, number)
    assert triage.next() is None, "nothing is saved yet"
    for _ in range(2000):
        clock.now += 0.1
        if triage.next():
            take(triage, clock, 2.0)
    effort = triage.effort()
    assert sum(effort.values()) == pytest.approx(2 * clock.now)
    assert effort["reducing"] / sum(effort.values()) == pytest.approx(0.3, abs=0.01)


def test_a_task_that_runs_counts_already(monkeypatch: pytest.MonkeyPatch) -> None:
    triage, clock = make(0.3, monkeypatch)
    triage.put("first", FINDING, 0)
    triage.put("second", FINDING, 1)
    clock.now = 1.0
    assert triage.next() == "first"
    with triage.timed("identity"):
        clock.now = 10.0
        assert triage.next() is None


def test_the_whole_share_does_all_tasks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    triage, clock = make(1.0, monkeypatch)
    triage.put("first", FURTHER, 0)
    take(triage, clock, 100.0)
    assert triage.next() == "first"


def test_findings_come_first_and_traces_with_a_rare_symptom_before_others(monkeypatch: pytest.MonkeyPatch) -> None:
    triage, _ = make(1.0, monkeypatch)
    triage.put("left", LEFT_BEHIND, 0)
    triage.put("common", FURTHER, 7, 1)
    triage.put("rare", FURTHER, 0, 2)
    triage.put("explained", FINDING, 1, 0, 0)
    triage.put("third slice", FINDING, 0, 2, 0)
    triage.put("new", FINDING, 0, 0, 9)
    assert [triage.next() for _ in range(7)] == ["new", "third slice", "explained", "rare", "common", "left", None]


def test_without_traces_findings_are_finished_and_others_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    triage, clock = make(0.0, monkeypatch)
    triage.put("finding", FINDING, 0)
    triage.put("other", FURTHER, 0)
    triage.put("another", FURTHER, 1)
    assert triage.next() is None
    take(triage, clock, GRACE - 1)
    assert (triage.next(idle=True), triage.next(idle=True)) == ("finding", "other")
    take(triage, clock, 2)
    assert triage.next(idle=True) is None
    assert triage.pending == 1 and triage.findings == 0


def test_one_comparison_at_a_time_and_other_tasks_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one engine with all patches: a second comparison would wait for it."""
    triage, _ = make(1.0, monkeypatch)
    triage.put("comparison", FINDING, 0, compares=True)
    triage.put("another", FINDING, 1, compares=True)
    triage.put("reduction", FINDING, 2)
    assert (triage.pending, triage.findings) == (3, 3)
    assert triage.next() == "comparison"
    with triage.comparing():
        assert (triage.next(), triage.next()) == ("reduction", None)
    assert (triage.next(), triage.next()) == ("another", None)


def test_the_time_before_a_kill_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("hybridfuzz.harness.campaign.triage.time.monotonic", clock)
    clock.now = 50.0  # of the campaign before the kill
    triage: Triage[str] = Triage(0.3, 1, clock, {"fuzzing": 60.0, "reducing": 40.0})
    triage.put("task", FINDING, 0)
    assert triage.next() is None, "40 of 100 seconds are more than 30 %"
    clock.now += 50.0
    assert triage.next() == "task"
    none = {"confirming": 0.0, "identity": 0.0, "severity": 0.0}
    assert triage.effort() == {"fuzzing": 110.0, "reducing": 40.0, **none}
