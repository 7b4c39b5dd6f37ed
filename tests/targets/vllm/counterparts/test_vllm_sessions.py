"""Streaming input sessions on the released vLLM: turns that keep their blocks, clients that time out, a turn behind
accepted drafts. The clients are ours (`targets/vllm/sessions.py`), everything that serves them is vLLM's."""

from collections import Counter

import pytest

from hybridfuzz.harness.draw.workload import with_ratios
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.trace import Abort, AnyEvent, Arrive, Config, Group, ResetPrefixCache, Resume, Step, Trace

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]
STEPS = (Step(),) * 6


def run(worker: WorkerClient, *events: AnyEvent, num_blocks: int = 40, runner: str = "v2") -> Outcome:
    """The first turn of session `x` has a prompt of 20 tokens and 4 new ones."""
    groups = (Group("mamba", 8), Group("attention", 8))
    config = Config(num_blocks=num_blocks, groups=groups, options={"runner": runner}, max_model_len=64)
    outcome = worker.run(Trace(config, (Arrive("x", (("d", 20),), 4, session=True), *STEPS, *events)))
    assert outcome.violation is None, outcome.violation.message
    return outcome


@pytest.mark.parametrize("runner", ["v2", "v1"])
def test_a_turn_goes_on_from_the_blocks_of_the_last_one(worker: WorkerClient, runner: str) -> None:
    reached = run(
        worker, Resume("x", (("e", 9),), 3), *STEPS, Resume("x", (("f", 1),), 2), *STEPS, runner=runner
    ).reached
    assert reached["turn resumed with kept caches"] == 2


def test_a_turn_waits_with_its_blocks_behind_others(worker: WorkerClient) -> None:
    others = [Arrive(f"r{index}", (("e", 9),), 4) for index in range(3)]
    outcome = run(worker, *others, Step(), Step(), Resume("x", (("e", 9),), 3), Step(budget=2), *STEPS)
    assert outcome.reached["resumed turn waits while holding its caches"]


def test_a_client_times_out_where_blocks_are_few_and_sends_everything_again(worker: WorkerClient) -> None:
    outcome = run(worker, *STEPS, Resume("x", (("e", 9),), 3), *STEPS, num_blocks=14)
    assert not outcome.reached.get("turn resumed with kept caches")
    assert outcome.reached["prefix hit"] == 1


def test_a_client_that_timed_out_leaves_no_step_without_a_next_one(worker: WorkerClient) -> None:
    """Its last step in flight ends behind the plan of the next one, as a server's does: results that were processed
    before it had made the V1 runner correct accepted drafts twice, and blocks published wrong states."""
    groups = (Group("mamba", 8), Group("attention", 8))
    config = Config(
        num_blocks=9, groups=groups, conv_width=4, num_speculative_tokens=1, max_model_len=24, max_num_seqs=3,
        async_depth=1, options={"runner": "v1"},
    )  # fmt: skip
    events = (
        Arrive("r0", (("a", 1),), 2, session=True, stop_at=1), Arrive("r3", (("a", 4), ("~", 3)), 4), Step(), Step(),
        Resume("r0", (("a", 13),), 3),
    )  # fmt: skip
    assert worker.run(Trace(config, events)).violation is None


def test_an_idle_session_is_closed(worker: WorkerClient) -> None:
    assert run(worker, Abort("x"), *STEPS).reached["session closed while parked"] == 1


def test_a_reset_is_refused_while_an_idle_session_holds_blocks(worker: WorkerClient) -> None:
    outcome = run(worker, ResetPrefixCache(True), Resume("x", (("e", 9),), 3), *STEPS)
    assert outcome.reached["turn resumed with kept caches"] == 1


@pytest.mark.parametrize(("runner", "reset"), [("v2", "paused"), ("v1", "direct")])
def test_random_traces_are_silent_and_reach_the_states_of_sessions(
    worker: WorkerClient, runner: str, reset: str
) -> None:
    reached: Counter[str] = Counter()
    # With drafts, a ring or a stop token a session's blocks are given back when its turn ends: causes 17, 22 and 31.
    keeps = {"num_speculative_tokens": "0", "replay": "0", "connector": "none"}
    workload = with_ratios({"stop_token": "0"})
    for ran in worker.fuzz(Fuzz(12, 0, 40, {**keeps, "runner": runner, "reset": reset}, workload=workload)):
        assert ran.outcome.violation is None, ran.outcome.violation.message
        reached.update(ran.outcome.reached)
    assert reached["turn resumed with kept caches"]
    assert reached["caches of a parked session evicted"]
    assert reached["prefix cache reset"]
