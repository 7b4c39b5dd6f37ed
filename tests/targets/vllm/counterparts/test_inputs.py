"""Images, adapters, salts, ReplaySSM, the layout of windows and sampling parameters on the released vLLM. Random traces
of each must be silent with the fixes of all known causes; what they would see is in docs/reference/vllm-breaks.md."""

from collections import Counter
from pathlib import Path

import pytest

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Arrive, Config, Group, ResetEncoderCache, ResetPrefixCache, Step, Trace

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]
DATA = Path(__file__).parents[3] / "data"
GROUPS = [{"kind": kind, "block_size": 8} for kind in ("mamba", "attention", "attention")]
DRAFTER = {"groups": [*GROUPS[:2], {**GROUPS[2], "draft": True}], "num_speculative_tokens": 2, "runner": "v2"}
"""A drafter with a group of its own."""
REPLAY = {"runner": "v1", "mixer": "mamba2", "replay": "3", "num_speculative_tokens": "0", "connector": "none"}


@pytest.mark.parametrize(
    "overrides",
    [
        {"inputs": "images", "runner": "v1"},
        {"inputs": "images", "runner": "v2"},
        {"inputs": "adapters", "runner": "v1"},
        {"inputs": "adapters", "runner": "v2"},
        {"conv_layout": "DS"},
        {"sampling": "varied", "runner": "v1", "num_speculative_tokens": "0"},
        {"sampling": "varied", "runner": "v1", "num_speculative_tokens": "3"},
        {"sampling": "varied", "runner": "v2", "num_speculative_tokens": "0"},
        {"sampling": "varied", "runner": "v2", "num_speculative_tokens": "3"},
        {"inputs": "images", "connector": "store"},
        {"inputs": "adapters", "connector": "transfer"},
        {"inputs": "images", **DRAFTER},
        {"inputs": "adapters", **DRAFTER},
        {"inputs": "adapters", "runner": "v1", "graphs": "decode"},
        {"inputs": "adapters", "runner": "v2", "graphs": "decode"},
        REPLAY,
    ],
)
def test_random_traces_are_silent(worker: WorkerClient, overrides: dict[str, object]) -> None:
    reached: Counter[str] = Counter()
    for ran in worker.fuzz(Fuzz(6, 0, 10, {"enable_prefix_caching": "true", **overrides})):
        assert ran.outcome.violation is None, ran.outcome.violation.message
        reached.update(ran.outcome.reached)
    assert reached["prefix hit"]


@pytest.mark.parametrize(
    ("first", "second", "hits"),
    [
        ("image.b", "image.b", True),
        ("image.b", "image.c", False),
        ("adapter.b", "adapter.b", True),
        ("adapter.b", "adapter.c", False),
        ("adapter.b", "a", False),
        ("salt.b", "salt.b", True),
        ("salt.b", "salt.c", False),
    ],
)
def test_equal_tokens_hit_only_with_equal_content(worker: WorkerClient, first: str, second: str, hits: bool) -> None:
    kind = "images" if first.startswith("image") else "adapters"
    groups = (Group("mamba", 8), Group("attention", 8))
    config = Config(num_blocks=40, groups=groups, options={"runner": "v2", "inputs": kind}, max_model_len=64)
    events = (
        Arrive("x", ((first, 7), ("d", 13)), 2),
        *(Step(),) * 4,
        Arrive("y", ((second, 7), ("d", 13)), 2),
        *(Step(),) * 4,
    )
    outcome = worker.run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert bool(outcome.reached.get("prefix hit")) is hits
    assert bool(outcome.reached.get("hit behind an image")) is (hits and kind == "images")


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_images_are_encoded_again_behind_a_reset_of_the_encoder_cache(
    worker: WorkerClient, runner: str, depth: int
) -> None:
    """Before an image, inside one that is computed in part, with and without a step in flight, and as part of a pause
    that clears the caches. A worker that lost an image which the scheduler counts as encoded would compute the tokens
    without it (M5, S6)."""
    options = {"runner": runner, "inputs": "images", "reset": "paused"}
    groups = (Group("mamba", 8), Group("attention", 8))
    config = Config(40, groups, max_model_len=64, max_num_batched_tokens=8, async_depth=depth, options=options)
    events = (
        Arrive("x", (("image.b", 7), ("d", 13)), 6),
        Arrive("y", (("d", 3), ("image.c", 7), ("image.b", 5)), 6),
        *(Step(), ResetEncoderCache()) * 2,
        *(Step(budget=2), ResetEncoderCache()) * 6,
        Step(),
        ResetPrefixCache(preempt_running=True),
        *(Step(),) * 12,
    )
    outcome = worker.run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["encoder cache reset beside images"] >= 8


@pytest.mark.parametrize("runner", ["v1", "v2"])
def test_decodes_with_an_adapter_replay_a_graph_that_applies_it(worker: WorkerClient, runner: str) -> None:
    """Beside a request without one. A graph without adapters would compute other content (S6)."""
    options = {"runner": runner, "inputs": "adapters", "graphs": "decode"}
    groups = (Group("mamba", 8), Group("attention", 8))
    config = Config(num_blocks=40, groups=groups, options=options, max_model_len=64, graph_sizes=(4,))
    events = (Arrive("x", (("adapter.b", 9),), 6), Arrive("y", (("a", 9),), 6), *(Step(),) * 8)
    outcome = worker.run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["padding rows"]


def test_random_sampling_is_the_same_in_each_run() -> None:
    """Trace 665 of seed 310 on the unpatched release: cause 4 gives a request a stale state, and random sampling, which
    has one choice with the right one, has several. The trace failed in about half of its runs."""
    trace = load_trace(DATA / "vllm-random-choice.json")
    with WorkerClient("vllm@0.33.0", prepare("vllm@0.33.0", print), trace_seconds=300) as worker:
        worker.start()
        found = [worker.run(trace) for _ in range(8)]
    assert {one.violation and one.violation.signature for one in found} == {"S6-step-sampled"}
    assert len({one.digest for one in found}) == 1
