"""Options of the scheduler on the released vLLM: resets while it pauses, spaced prefills, pipeline stages, KV events.
Each runs random traces, which must be silent with the fixes of all known causes."""

from collections import Counter

import pytest

from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.trace import Arrive, Config, Group, Preempt, ResetPrefixCache, Step, Trace, TraceError

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]


@pytest.mark.parametrize(
    ("overrides", "state"),
    [
        ({"reset": "paused", "enable_prefix_caching": "true"}, "prefix cache reset"),
        ({"prefills": "spaced"}, "prompts and decodes in one step"),
        ({"admission": "chunk"}, "preempted during prefill"),
        ({"pipeline": "sync", "async_depth": "1", "num_speculative_tokens": "0"}, "planned ahead of execution"),
        ({"reports": "all", "enable_prefix_caching": "true"}, "cached block evicted"),
    ],
)
@pytest.mark.parametrize("runner", ["v2", "v1"])
def test_random_traces_are_silent(worker: WorkerClient, runner: str, overrides: dict[str, str], state: str) -> None:
    reached: Counter[str] = Counter()
    for ran in worker.fuzz(Fuzz(5, 0, 20, {"runner": runner, **overrides})):
        assert ran.outcome.violation is None, ran.outcome.violation.message
        reached.update(ran.outcome.reached)
    assert reached[state]


@pytest.mark.parametrize("depth", ["1", "2"])
def test_asynchronous_stages_are_silent_on_v2(worker: WorkerClient, depth: str) -> None:
    overrides = {"pipeline": "async", "async_depth": depth, "runner": "v2"}
    reached: Counter[str] = Counter()
    for ran in worker.fuzz(Fuzz(5, 0, 20, overrides)):
        assert ran.outcome.violation is None, ran.outcome.violation.message
        reached.update(ran.outcome.reached)
    assert reached["planned ahead of execution"]
    assert reached["all drafts accepted"]


def test_stages_are_refused_where_vllm_has_none(worker: WorkerClient) -> None:
    """vLLM refuses them there: "Async scheduling is not supported by the V1 model runner with pipeline parallelism".
    Two steps in flight are `max_concurrent_batches` of two stages with asynchronous scheduling."""
    overrides = {"pipeline": "async", "async_depth": "1", "num_speculative_tokens": "0"}
    for more, reason in (
        ({"runner": "v1"}, "stages on the V1 runner"),
        ({"pipeline": "sync", "async_depth": "2"}, "pipeline=async"),
        ({"pipeline": "sync", "num_speculative_tokens": "1"}, "without drafts"),
    ):
        with pytest.raises(TraceError, match=reason):
            list(worker.fuzz(Fuzz(5, 0, 1, {**overrides, **more})))


def test_output_of_two_steps_is_stale_behind_two_resets(worker: WorkerClient) -> None:
    """The second reset comes while output from before the first one is in flight. Where the stale share was added up
    instead of counted again, vLLM's assertion failed."""
    options = {"runner": "v2", "pipeline": "async"}
    config = Config(
        num_blocks=40, groups=(Group("mamba", 8), Group("attention", 8)), options=options, max_model_len=64,
        async_depth=2,
    )  # fmt: skip
    reset = ResetPrefixCache(preempt_running=True)
    outcome = worker.run(Trace(config, (Arrive("x", (("d", 20),), 8), *[Step()] * 4, reset, Step(), reset, Step())))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["preempted with a step in flight"] == 2


@pytest.mark.parametrize(("preempt_running", "served"), [(True, False), (False, True)])
def test_a_pause_lets_requests_finish_or_stops_them(worker: WorkerClient, preempt_running: bool, served: bool) -> None:
    options = {"runner": "v2", "reset": "paused"}
    config = Config(num_blocks=40, groups=(Group("mamba", 8), Group("attention", 8)), options=options, max_model_len=64)
    events = (Arrive("x", (("d", 20),), 4), Step(), ResetPrefixCache(preempt_running))
    outcome = worker.run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert bool(outcome.reached.get("preempted")) is not served


@pytest.mark.parametrize(("admission", "preempted"), [("prompt", 1), ("chunk", 2)])
def test_a_prompt_starts_if_all_of_it_or_its_first_chunk_fits(
    worker: WorkerClient, admission: str, preempted: int
) -> None:
    """The prompt that was preempted starts again beside the other one if only its first chunk has to fit, and is
    preempted once more."""
    groups = (Group("mamba", 8), Group("attention", 8))
    options = {"runner": "v2", "admission": admission}
    config = Config(
        num_blocks=10, groups=groups, options=options, max_model_len=48, max_num_batched_tokens=32, max_num_seqs=2,
        long_prefill_token_threshold=8,
    )  # fmt: skip
    events = (Arrive("x", (("d", 40),), 1), Arrive("y", (("e", 40),), 1), *([Step()] * 8))
    outcome = worker.run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["preempted during prefill"] == preempted


def test_a_request_is_preempted_while_its_step_is_in_flight(worker: WorkerClient) -> None:
    """The event did nothing: the target looked for vLLM's argument in the signature of its own wrapper."""
    groups = (Group("mamba", 8), Group("attention", 8))
    config = Config(num_blocks=40, groups=groups, options={"runner": "v2"}, max_model_len=64, async_depth=1)
    outcome = worker.run(Trace(config, (Arrive("x", (("d", 20),), 4), Step(), Preempt("x"), Step())))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["preempted with a step in flight"] == 1
