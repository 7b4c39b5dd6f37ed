"""vLLM's own SimpleCPUOffloadConnector on the released vLLM: lookups, pools, copy loops, on queues that copy late."""

from collections import Counter

import pytest

from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.trace import (
    Abort,
    AnyEvent,
    Arrive,
    Config,
    Evict,
    ExternalLoad,
    Group,
    ResetPrefixCache,
    Step,
    Trace,
)

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]
STEPS = (Step(),) * 8
LOADED = "request computed after it waited for a load"


def run(worker: WorkerClient, *events: AnyEvent, size: int = 40, **options: str) -> Outcome:
    """The host gets blocks of request `x`, lazily while `w` runs; then the pool's cache is emptied."""
    options = {"runner": "v2", "connector": "simple_cpu", **options}
    groups = (Group("mamba", 8), Group("attention", 8))
    config = Config(num_blocks=size, groups=groups, options=options, max_model_len=64)
    first = (Arrive("x", (("d", 30),), 4), *STEPS, Arrive("w", (("o", 9),), 8), *STEPS, *STEPS, Evict(size))
    outcome = worker.run(Trace(config, (*first, *events)))
    assert outcome.violation is None, outcome.violation.message
    return outcome


@pytest.mark.parametrize("runner", ["v2", "v1"])
@pytest.mark.parametrize("backend", ["cpu", "disk"])
def test_a_request_loads_what_an_earlier_one_left(worker: WorkerClient, runner: str, backend: str) -> None:
    outcome = run(worker, Arrive("y", (("d", 30),), 4), *STEPS, runner=runner, kv_offload_backend=backend)
    assert outcome.reached["stored outside the pool"]
    assert outcome.reached[LOADED] == 1
    assert outcome.reached["loaded from outside the pool"] == 4  # a state and three attention blocks


def test_lazily_blocks_are_stored_once_they_are_near_eviction(worker: WorkerClient) -> None:
    """All free blocks are near eviction here: twice the blocks of a step are kept in the host's memory."""
    outcome = run(worker, Arrive("y", (("d", 30),), 4), *STEPS, *STEPS, lazy_offload="yes")
    assert outcome.reached["stored outside the pool"]
    assert outcome.reached[LOADED] == 1


def test_a_hit_inside_a_block_is_loaded(worker: WorkerClient) -> None:
    outcome = run(worker, Arrive("y", (("d", 30), ("e", 3)), 4), *STEPS, prefix_match_unit="2")
    assert outcome.reached[LOADED] == 1
    assert outcome.reached["loaded from outside the pool"] == 5  # with the block in which the prompt of `x` ends


def test_nothing_is_left_of_an_aborted_request_whose_load_is_under_way(worker: WorkerClient) -> None:
    """M9 counts requests, transfers and pinned blocks once all is over."""
    late = ExternalLoad("y", 1, delay=4)
    outcome = run(worker, Arrive("y", (("d", 30),), 4), late, Step(), Step(), Abort("y"), Step())
    assert outcome.reached["aborted while a load was under way"] == 1


def test_a_reset_forgets_what_is_stored(worker: WorkerClient) -> None:
    outcome = run(worker, ResetPrefixCache(), Arrive("y", (("d", 30),), 4), *STEPS)
    assert not outcome.reached.get(LOADED)


@pytest.mark.parametrize("lazy", ["no", "yes"])
@pytest.mark.parametrize("runner", ["v2", "v1"])
def test_random_traces_are_silent_and_reach_the_states_of_the_host(
    worker: WorkerClient, runner: str, lazy: str
) -> None:
    reached: Counter[str] = Counter()
    overrides = {
        "runner": runner,
        "connector": "simple_cpu",
        "lazy_offload": lazy,
        "mamba_cache_mode": "align",
        "reports": "none",
    }
    for ran in worker.fuzz(Fuzz(5, 0, 30, overrides)):
        assert ran.outcome.violation is None, ran.outcome.violation.message
        reached.update(ran.outcome.reached)
    states = (LOADED, "stored outside the pool", "content outside the pool evicted")
    assert [state for state in states if not reached[state]] == []
