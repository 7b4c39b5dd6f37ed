"""Ranks in lockstep: each is judged, idle ones run dummies while others work, and no request is lost."""

from pathlib import Path

import pytest
from cli_process import Cli
from support import CLEAN, arrive, drawn, make_trace, steps

from hybridfuzz.harness.draw.adapt import port
from hybridfuzz.harness.draw.trace_files import encode_trace
from hybridfuzz.harness.group.reduction.reduce import reduce_trace
from hybridfuzz.harness.judge.lockstep import Lockstep
from hybridfuzz.harness.judge.ranks import Ranks, home, on_ranks, run_ranks
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.record.recorder import record_history
from hybridfuzz.targets.base.observe import Delivered, Effect, Forward
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import Event, TraceError


def named(rank: int, ranks: int = 2) -> str:
    """A request that lives there."""
    return next(name for name in (f"r{number}" for number in range(100)) if home(name, ranks) == rank)


UNEVEN = make_trace(
    arrive(named(0), 9, new=1), arrive(named(1), 9, new=6), *steps(6), graph_sizes=(1, 2, 4), options={"dp": "2"}
)
"""Rank 0 runs dry while rank 1 works. No event asks for a dummy run."""


class Recorded:
    """A factory that keeps the records of all engines that it opened."""

    def __init__(self) -> None:
        self.name, self.capabilities, self.supports = "recorded", CLEAN.capabilities, CLEAN.supports
        self.effects: list[list[Effect]] = []

    def open(self, config):  # type: ignore[no-untyped-def]
        target, effects = CLEAN.open(config), []
        apply = target.apply
        self.effects.append(effects)

        def recording(event: Event) -> Effect:
            effects.append(apply(event))
            return effects[-1]

        target.apply = recording
        return target

    def of(self, rank: int, kind: type) -> list[object]:
        return [one for effect in self.effects[rank] for one in effect.records if isinstance(one, kind)]


def test_an_idle_rank_takes_part_with_dummy_runs() -> None:
    factory = Recorded()
    assert run_trace(factory, UNEVEN).violation is None
    dummies = [[record.dummy for record in factory.of(rank, Forward)] for rank in (0, 1)]
    assert dummies[0][0] is False
    assert dummies[0].count(True) >= 4
    assert True not in dummies[1], "the busy rank runs none"


def test_each_request_is_served_on_its_own_rank_and_nowhere_else() -> None:
    factory = Recorded()
    run_trace(factory, UNEVEN)
    for rank in (0, 1):
        served = {name for record in factory.of(rank, Delivered) for name, _ in record.outputs}
        assert served == {named(rank)}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("index", range(4))
def test_drawn_traces_are_clean_on_every_rank(ranks: int, index: int) -> None:
    outcome = run_trace(CLEAN, on_ranks(drawn(41, index), ranks))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.steps


def test_a_bug_of_dummy_runs_shows_without_any_dummy_event() -> None:
    violation = run_trace(load_factory("hybrid:finished-row-not-cleared"), UNEVEN).violation
    assert violation is not None
    assert violation.signature == "M4-dummy_run-mamba-dead-write"
    assert violation.message.startswith("M4: rank 0: ")
    assert run_trace(load_factory("hybrid:finished-row-not-cleared"), on_one_rank()).violation is None


def on_one_rank():  # type: ignore[no-untyped-def]
    """The same events on a single engine, which never runs dry."""
    return make_trace(*UNEVEN.events, graph_sizes=(1, 2, 4))


def test_two_processes_that_vote_do_what_one_process_does() -> None:
    """Each "process" is a generator of votes here; both must vote equally often and end clean."""
    together = run_ranks(CLEAN, UNEVEN)
    log: list[bool] = []
    whole = Recorded()
    run_ranks(whole, UNEVEN, vote=lambda work: log.append(work) or work)
    for rank in (0, 1):
        answers = iter(log)
        outcome = run_ranks(CLEAN, UNEVEN, (rank,), lambda work, answers=answers: next(answers))
        assert outcome.violation is None
        assert next(answers, None) is None, "it voted as often as the whole did"
    assert together.violation is None


def test_a_violation_keeps_on_voting_but_does_nothing() -> None:
    target = CLEAN.open(UNEVEN.config)
    ranks = Ranks({0: Lockstep(target, UNEVEN.config, CLEAN.capabilities.observes)}, 2, lambda work: work)
    ranks.apply(UNEVEN.events[0], 0)
    ranks.violation = run_trace(load_factory("hybrid:finished-row-not-cleared"), UNEVEN).violation
    assert ranks.step(UNEVEN.events[2], 2) is False


def test_what_one_engine_shows_as_well_is_reduced_to_one() -> None:
    factory = load_factory("hybrid:chunk-continuation-stale-for-new")
    alone = make_trace(arrive("r0", 9, new=2), *steps(3))
    signature = run_trace(factory, alone).violation.signature  # type: ignore[union-attr]
    both = on_ranks(alone, 2)
    assert run_trace(factory, both).violation.signature == signature  # type: ignore[union-attr]
    small = reduce_trace(both, signature, lambda trace: run_trace(factory, trace), seconds=20)
    assert "dp" not in small.config.options


def test_an_explanation_is_about_the_rank_that_broke() -> None:
    outcome, history = record_history(load_factory("hybrid:finished-row-not-cleared"), UNEVEN)
    assert outcome.violation is not None
    assert outcome.violation.rank == 0
    assert {turn.request for turn in history.request_steps} == {named(0)}


def test_what_only_several_ranks_show_has_no_script_and_says_so(hybridfuzz: Cli, tmp_path: Path) -> None:
    (tmp_path / "uneven.json").write_bytes(encode_trace(UNEVEN))
    ran = hybridfuzz("repro", "uneven.json", "--target", "hybrid:finished-row-not-cleared", "-o", "repro")
    assert ran.status == 2
    assert "needs several ranks" in ran.out
    assert (tmp_path / "repro" / "REPORT.md").exists()


def test_a_ported_trace_keeps_its_ranks() -> None:
    assert port(UNEVEN, CLEAN)[0].config.options["dp"] == "2"


@pytest.mark.parametrize("ranks", ["0", "9", "two", "-1"])
def test_numbers_of_ranks_that_are_none(ranks: str) -> None:
    with pytest.raises(TraceError, match="between 1 and 8"):
        run_trace(CLEAN, make_trace(arrive("r0", 3), options={"dp": ranks}))
