"""Real models on a CPU, each kernel interpreted: the whole path of a GPU run but the GPU."""

from pathlib import Path

import pytest

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Arrive, Config, ExternalLoad, Group, Step, Trace
from hybridfuzz.targets.vllm.gpu.scaling import scaled

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]
CORPUS = Path(__file__).parents[4] / "corpus" / "vllm"
TARGET = "vllm@0.33.0@interpreter"


def test_a_known_cause_is_met_and_a_sound_trace_is_silent() -> None:
    """Cause 1 gives other log-probabilities; a prefix hit, drafts and a second request do not, nor do pages that a
    connector loads: the model computes the last tokens from states and keys of another engine."""
    config = Config(
        num_blocks=20,
        groups=(Group("mamba", 16), Group("attention", 16)),
        num_speculative_tokens=1,
        max_model_len=48,
        options={"runner": "v2", "mixer": "mamba2", "retention": "dense"},
    )
    sound = Trace(
        config,
        (
            Arrive("r0", (("a", 20),), 3),
            Step(drafts=1, right=1),
            Arrive("r1", (("a", 18), ("b", 3)), 2),
            Step(drafts=1),
        ),
    )
    options = {"runner": "v2", "mixer": "gdn", "connector": "store", "conv_layout": "DS"}
    groups = (Group("mamba", 16), Group("attention", 16))
    loaded = Trace(
        Config(num_blocks=24, groups=groups, max_model_len=64, options=options),
        (Arrive("r0", (("a", 35),), 2), ExternalLoad("r0", 35), Step(), Step()),
    )
    [path] = CORPUS.glob("0.33.0--one-token-prompt-v2--*.json")
    with WorkerClient(TARGET, prepare(TARGET, print), trace_seconds=500) as worker:
        worker.start()
        assert worker.run(sound).violation is None
        outcome = worker.run(loaded)
        assert outcome.violation is None
        assert "loaded from outside the pool" in outcome.reached
        violation = worker.run(scaled(load_trace(path), 16)).violation
    assert violation is not None
    assert violation.signature == "S6-step-logprobs"
