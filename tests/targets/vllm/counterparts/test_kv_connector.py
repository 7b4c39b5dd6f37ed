"""KV connectors on the released vLLM: loads that requests wait for, that break off or that are never used; blocks that
are held until they are sent. The connector is ours (`targets/vllm/kv_connector.py`), everything that uses it vLLM's."""

from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from hybridfuzz.harness.group.known.fixes import Fixes
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.coverage_tool import with_coverage
from hybridfuzz.targets.base.trace import Abort, AnyEvent, Arrive, Config, ExternalLoad, Group, ResetPrefixCache, Step
from hybridfuzz.targets.base.trace import Trace as Made

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]
TARGET = "vllm@0.33.0"
STEPS = (Step(),) * 12


@pytest.fixture(scope="module")
def worker(fixes: Fixes) -> Iterator[WorkerClient]:
    with WorkerClient(TARGET, with_coverage(fixes.launch, print), 300.0) as worker:
        worker.start()
        yield worker


def run(worker: WorkerClient, *events: AnyEvent, connector: str = "store", load_failure: str = "recompute") -> Outcome:
    """A connector may hold the beginning of request `x`, 30 tokens and 4 new ones."""
    options = {"runner": "v2", "connector": connector, "load_failure": load_failure}
    groups = (Group("mamba", 8), Group("attention", 8))
    config = Config(num_blocks=40, groups=groups, options=options, max_model_len=64)
    outcome = worker.run(Made(config, (Arrive("x", (("d", 30),), 4), *events)))
    assert outcome.violation is None, outcome.violation.message
    return outcome


@pytest.mark.parametrize("runner", ["v2", "v1"])
@pytest.mark.parametrize("connector", ["store", "transfer", "sync"])
def test_random_traces_are_silent_and_reach_the_states_of_a_connector(
    worker: WorkerClient, runner: str, connector: str
) -> None:
    reached: Counter[str] = Counter()
    overrides = {"runner": runner, "connector": connector, "mamba_cache_mode": "align"}
    for ran in worker.fuzz(Fuzz(3, 0, 40, overrides)):
        assert ran.outcome.violation is None, ran.outcome.violation.message
        reached.update(ran.outcome.reached)
    assert reached["request computed after it waited for a load"]
    assert reached["stored outside the pool"]
    assert connector != "transfer" or reached["blocks held for a transfer after the end of their request"]
    assert bool(reached["load joined the step of its request"]) == (connector == "sync")


MAMBA, WIDE = {"kind": "mamba", "block_size": 4}, {"kind": "attention", "block_size": 8}
NARROW = {**WIDE, "block_size": 4}
LOADED = "request computed after it waited for a load"


@pytest.mark.parametrize(
    ("overrides", "states"),
    [
        ({"groups": [MAMBA, WIDE]}, (LOADED,)),
        ({"groups": [MAMBA, WIDE], "prefix_match_unit": "2", "mixer": "gdn"}, (LOADED, "hit inside a block")),
        (
            {"groups": [MAMBA, WIDE, {**WIDE, "draft": True}], "num_speculative_tokens": 2, "runner": "v2"},
            (LOADED, "proposals written by the drafter"),
        ),
        ({"groups": [MAMBA, NARROW, {**NARROW, "window": 8}]}, (LOADED, "hit behind a sliding window")),
        (
            {"groups": [MAMBA, NARROW], "reset": "paused", "num_speculative_tokens": 0},
            (LOADED, "prefix cache reset", "turn resumed with kept caches"),
        ),
    ],
)
@pytest.mark.parametrize("connector", ["store", "transfer"])
def test_loads_beside_other_features(
    worker: WorkerClient, connector: str, overrides: dict[str, object], states: tuple[str, ...]
) -> None:
    reached: Counter[str] = Counter()
    fixed = {"mamba_cache_mode": "align", "graphs": "none", "connector": connector}
    for first in (0, 20, 40):
        for ran in worker.fuzz(Fuzz(4, first, 20, {**fixed, **overrides})):
            assert ran.outcome.violation is None, ran.outcome.violation.message
            reached.update(ran.outcome.reached)
        if all(reached[state] for state in states):
            break
    assert [state for state in states if not reached[state]] == []


SCHEDULER = "vllm/v1/core/sched/scheduler.py"
PATHS = (
    "self.deferred_frees.append((self.sched_step_seq, blocks))",
    "self.deferred_frees.append((fence_seq, blocks[::-1]))",
    "self.kv_cache_manager.block_pool.free_blocks(reversed(blocks))",
    "# computed blocks so it is not adopted from the cache.",
    "# clearing avoids the `load_kv_async` assert below.",
    "# Reconcile to the boundary every group agrees on.",
    "self.failed_recving_kv_req_ids.add(req_id)",
    "# reallocated, so the skipped blocks need no handling.)",
)
"""Statements of the scheduler, or comments above them: frees that wait for a step in flight, of requests and of copies;
a local hit inside a block that gives way to a load or is kept; a hit of attention alone without a load; a load that
failed. (A load that ends after its request is a reached state.)"""


def test_random_traces_run_the_schedulers_paths_for_connectors(fixes: Fixes, worker: WorkerClient) -> None:
    source = Path(fixes.launch.tree, SCHEDULER).read_text(encoding="utf-8").splitlines()
    places = {path: [number for number, line in enumerate(source, 1) if line.strip() == path] for path in PATHS}
    assert [path for path, found in places.items() if len(found) != 1] == []
    missing = {path: found[0] + path.startswith("#") for path, found in places.items()}
    fixed = {"mamba_cache_mode": "align", "prefix_match_unit": "4", "load_failure": "recompute"}
    for first, (connector, ahead) in product((0, 8, 16, 24), (("store", "1"), ("transfer", "1"), ("store", "0"))):
        overrides = {**fixed, "connector": connector, "async_depth": ahead}
        for done in worker.fuzz(Fuzz(6, first, 8, overrides, modules=(SCHEDULER,))):
            assert done.outcome.violation is None, done.outcome.violation.message
            missing = {path: line for path, line in missing.items() if line not in done.lines.get(SCHEDULER, ())}
        if not missing:
            break
    assert not missing


@pytest.mark.parametrize("delay", [0, 1, 4])
def test_a_request_is_computed_behind_what_was_loaded_for_it(worker: WorkerClient, delay: int) -> None:
    outcome = run(worker, ExternalLoad("x", 30, delay=delay), *STEPS)
    assert outcome.reached["request computed after it waited for a load"] == 1
    assert outcome.reached["loaded from outside the pool"] == 4  # a state and three attention blocks


@pytest.mark.parametrize("runner", ["v2", "v1"])
def test_a_synchronous_load_is_over_before_the_forward(worker: WorkerClient, runner: str) -> None:
    """Within the step's budget; the second load of the step, and one that breaks off, are asynchronous."""
    options = {"runner": runner, "connector": "sync"}
    config = Config(num_blocks=40, groups=(Group("mamba", 8), Group("attention", 8)), options=options, max_model_len=64)
    arrivals = [Arrive(name, ((name, 30),), 4) for name in "xyz"]
    loads = [ExternalLoad("x", 30), ExternalLoad("y", 30), ExternalLoad("z", 9, breaks_off=True)]
    outcome = worker.run(Made(config, (*arrivals, *loads, *STEPS)))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["load joined the step of its request"] == 1
    assert outcome.reached["request computed after it waited for a load"] == 1
    assert outcome.reached["request computed after its load broke off"] == 1


def test_attention_alone_is_not_loaded(worker: WorkerClient) -> None:
    assert not run(worker, ExternalLoad("x", 30, states=False), *STEPS).reached.get("loaded from outside the pool")


@pytest.mark.parametrize(("delay", "state"), [
    (0, "request computed after its load broke off"), (1, "load tried again after it broke off"),
])  # fmt: skip
def test_a_request_is_computed_after_its_load_broke_off(worker: WorkerClient, delay: int, state: str) -> None:
    assert run(worker, ExternalLoad("x", 30, breaks_off=True, delay=delay), *STEPS).reached[state] == 1


def test_a_session_whose_load_broke_off_is_admitted_anew(worker: WorkerClient) -> None:
    """With a hit of the 24 tokens that `x` left: it passed for a session that kept its blocks, and S4 reported them."""
    session = Arrive("y", (("d", 44),), 4, session=True)
    outcome = run(worker, *STEPS, session, ExternalLoad("y", 44, breaks_off=True), *STEPS)
    assert outcome.reached["request computed after its load broke off"] == 1
    assert outcome.reached["prefix hit"]


def test_a_load_brings_what_a_sliding_window_lacks_of_the_hit(worker: WorkerClient) -> None:
    """`y` leaves no block of the window in the cache, so the hit is that of full attention.

    M6 reported the missing blocks, which the connector did not bring.
    """
    groups = (Group("mamba", 4), Group("attention", 4), Group("attention", 4, window=8))
    options = {"runner": "v2", "connector": "transfer", "retention": "default"}
    events = (Arrive("y", (("d", 4),), 1), Arrive("x", (("d", 9),), 1), ExternalLoad("x", 9), *STEPS)
    config = Config(num_blocks=20, groups=groups, options=options, max_model_len=16, max_num_seqs=1)
    outcome = worker.run(Made(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["hit extended by a load"] == 1


def test_a_load_brings_what_a_drafters_group_lacks_of_the_hit(worker: WorkerClient) -> None:
    """The hit of `x` is 8 tokens for the model's attention and less for the drafter's. M6 reported a missing block."""
    groups = (Group("mamba", 4), Group("attention", 8), Group("attention", 4, draft=True))
    options = {"runner": "v2", "connector": "transfer"}
    config = Config(
        num_blocks=16, groups=groups, options=options, max_model_len=24, max_num_seqs=1, num_speculative_tokens=1
    )
    events = (Arrive("y", (("d", 9),), 1), *STEPS, Arrive("x", (("d", 17),), 1), ExternalLoad("x", 17), *STEPS)
    outcome = worker.run(Made(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["hit extended by a load"] == 1


def test_a_policy_ends_the_request_with_an_error_instead(worker: WorkerClient) -> None:
    outcome = run(worker, ExternalLoad("x", 30, breaks_off=True), *STEPS, load_failure="fail")
    assert outcome.reached["request ended with an error by its load"] == 1


def test_blocks_of_an_aborted_request_stay_until_its_load_ends(worker: WorkerClient) -> None:
    outcome = run(worker, ExternalLoad("x", 30, delay=3), Step(), Step(), Abort("x"), *STEPS)
    assert outcome.reached["aborted while a load was under way"] == 1


def test_a_reset_is_refused_while_a_load_is_under_way(worker: WorkerClient) -> None:
    """vLLM raises, as it documents; the request is loaded all the same."""
    outcome = run(worker, ExternalLoad("x", 30, delay=3), Step(), Step(), ResetPrefixCache(True), *STEPS)
    assert outcome.reached["request computed after it waited for a load"] == 1


def test_blocks_are_held_until_they_are_sent(worker: WorkerClient) -> None:
    """And what was sent is stored outside the pool."""
    outcome = run(worker, Arrive("y", (("e", 9),), 12), *STEPS, connector="transfer")
    assert outcome.reached["blocks held for a transfer after the end of their request"]
