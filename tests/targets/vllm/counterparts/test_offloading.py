"""vLLM's own OffloadingConnector on the released vLLM: manager, jobs and fences, on a queue that copies late."""

from collections import Counter
from pathlib import Path

import pytest

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.trace import Abort, AnyEvent, Arrive, Config, Evict, ExternalLoad, Group, Step, Trace

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]
DATA = Path(__file__).parents[3] / "data"
STEPS = (Step(),) * 8
LOADED = "request computed after it waited for a load"


def run(worker: WorkerClient, *events: AnyEvent, **options: str) -> Outcome:
    """The host gets the first blocks of request `x`; then the pool's cache is emptied."""
    groups = (Group("mamba", 8), Group("attention", 8))
    options = {"runner": "v2", "connector": "offloading", **options}
    config = Config(num_blocks=40, groups=groups, options=options, max_model_len=64)
    first = (Arrive("x", (("d", 30),), 4), *STEPS, *STEPS, Evict(40))
    outcome = worker.run(Trace(config, (*first, *events)))
    assert outcome.violation is None, outcome.violation.message
    return outcome


@pytest.mark.parametrize("runner", ["v2", "v1"])
@pytest.mark.parametrize("eviction", ["lru", "arc"])
def test_a_request_loads_what_an_earlier_one_left(worker: WorkerClient, runner: str, eviction: str) -> None:
    outcome = run(worker, Arrive("y", (("d", 30),), 4), *STEPS, runner=runner, eviction=eviction)
    assert outcome.reached["stored outside the pool"]
    assert outcome.reached[LOADED] == 1
    assert outcome.reached["loaded from outside the pool"] == 4  # a state and three attention blocks


def test_a_load_joins_the_step_of_its_request(worker: WorkerClient) -> None:
    outcome = run(worker, Arrive("y", (("d", 30),), 4), *STEPS, offload="sync")
    assert outcome.reached["load joined the step of its request"] == 1


def test_nothing_is_left_of_an_aborted_request_whose_load_is_under_way(worker: WorkerClient) -> None:
    """M9 counts the jobs, the fenced blocks and the chunks in use once all is over."""
    outcome = run(
        worker, Arrive("y", (("d", 30),), 4), ExternalLoad("y", 1, delay=4), Step(), Step(), Abort("y"), Step()
    )
    assert outcome.reached["aborted while a load was under way"] == 1


def test_a_state_that_is_loaded_for_a_hit_inside_a_block_is_published_on_a_copy(worker: WorkerClient) -> None:
    """Trace 2 of seed 5, reduced: no request has the copy in its table, and the loaded block had the key at no time."""
    outcome = worker.run(load_trace(DATA / "vllm-loaded-key-on-a-copy.json"))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached[LOADED] and outcome.reached["hit inside a block"]


@pytest.mark.parametrize("runner", ["v2", "v1"])
def test_random_traces_are_silent_and_reach_the_states_of_the_tier(worker: WorkerClient, runner: str) -> None:
    reached: Counter[str] = Counter()
    overrides = {"runner": runner, "connector": "offloading", "mamba_cache_mode": "align"}
    for ran in worker.fuzz(Fuzz(5, 0, 30, overrides)):
        assert ran.outcome.violation is None, ran.outcome.violation.message
        reached.update(ran.outcome.reached)
    states = (LOADED, "stored outside the pool", "content outside the pool evicted")
    assert [state for state in states if not reached[state]] == []
