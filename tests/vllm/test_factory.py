"""What the vLLM target says of itself where vLLM is not installed, and one engine where it is."""

from importlib.util import find_spec

import msgspec
import pytest
from hybridfuzz.harness.lockstep import run_trace
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.trace import Arrive, Config, DummyRun, Group, Preempt, Step, Trace
from hybridfuzz.targets.vllm.factory import VllmFactory, make_factory

CONFIG = Config(num_blocks=40, groups=(Group("mamba", 8), Group("attention", 8)), options={"runner": "v2"})
_SPEC = find_spec("vllm")
HAS_VLLM = _SPEC is not None and _SPEC.origin is not None  # this very folder passes for a namespace package


def config(runner: str, **changes: object) -> Config:
    return msgspec.structs.replace(CONFIG, options={"runner": runner}, **changes)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (config("v2", async_depth=1, num_speculative_tokens=2), ""),
        (config("v1", async_depth=1), ""),
        (config("v1", async_depth=1, num_speculative_tokens=2), "asynchronous"),
        (config("v1", num_speculative_tokens=2, eagle_block_drop=True), "drafter"),
    ],
)
def test_combinations_that_no_engine_offers_are_refused_with_a_reason(wanted: Config, reason: str) -> None:
    answer = VllmFactory("vllm").supports(wanted)
    assert reason in answer
    assert bool(answer) == bool(reason)


def test_capabilities_name_only_groups_that_vllm_forms() -> None:
    for mamba, attention in VllmFactory("vllm").capabilities.group_counts:
        assert min(mamba, attention) == 1


@pytest.mark.skipif(HAS_VLLM, reason="vLLM is installed here")
def test_opening_without_vllm_says_what_to_do() -> None:
    with pytest.raises(TargetError, match="vllm@0"):
        make_factory("vllm").open(CONFIG)


@pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed here")
@pytest.mark.engine
@pytest.mark.parametrize("runner", ["v2", "v1"])
@pytest.mark.parametrize("changes", [{}, {"num_speculative_tokens": 2}, {"async_depth": 1}])
@pytest.mark.parametrize("mode", ["align", "none"])
def test_a_sound_engine_is_silent(runner: str, changes: dict[str, int], mode: str) -> None:
    wanted = config(runner, mamba_cache_mode=mode, enable_prefix_caching=mode != "none", **changes)
    events = (
        Arrive("x", (("d", 20),), 10),
        Arrive("y", (("d", 20), ("e", 5)), 10),
        *[Step(drafts=2, right=index % 3) for index in range(4)],
        Preempt("x"),
        Arrive("z", (("d", 20), ("~", 5)), 10),
        *[Step(drafts=2, right=index % 3) for index in range(30)],
        DummyRun(1),
    )
    outcome = run_trace(make_factory("vllm"), Trace(wanted, events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.exercised["S3"] > 0
