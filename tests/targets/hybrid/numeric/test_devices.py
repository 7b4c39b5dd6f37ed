"""The same trace on every device: clean, the same tokens, and on a GPU from captured graphs.

The interpreter runs in a process of its own: whether Triton compiles is settled when it is imported.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from support import arrive, make_trace

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.observe import Numeric
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import DummyRun, Group, Sleep, Step, Trace, Wake

GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]
CUDA = pytest.param("cuda", marks=GPU)

MIXERS = ("mamba2", "gated_delta_net")
TRACE = make_trace(
    arrive("r0", 9, new=4),
    arrive("r1", ("d", 9), ("e", 2), new=3),
    Step(drafts=2, right=1),
    Step(drafts=2, right=2),
    Step(drafts=1, right=0),
    DummyRun(2),
    groups=(Group("mamba", 8), Group("attention", 4)),
    num_speculative_tokens=2,
    max_model_len=32,
    graph_sizes=(1, 2),
)
DELTA_TRACE = make_trace(
    arrive("r0", 9, new=3),
    Step(drafts=2, right=1),
    Step(drafts=2, right=2),
    groups=(Group("mamba", 8), Group("attention", 4)),
    mamba_cache_mode="all",
    num_speculative_tokens=2,
    max_model_len=16,
    graph_sizes=(1,),
    options={"mixer": "gated_delta_net"},
)


def choices(device: str, trace: Trace) -> list[list[tuple[int, ...]]]:
    """Return the tokens chosen by the read-out, by step and row."""
    target = load_factory(f"hybrid@{device}").open(trace.config)
    records = [record for event in trace.events for record in target.apply(event).records]
    return [[tuple(row.choices) for row in record.rows] for record in records if isinstance(record, Numeric)]


@pytest.mark.interpreter
@pytest.mark.skipif(find_spec("triton") is None, reason="no triton here")
@pytest.mark.parametrize("name", ["TRACE", "DELTA_TRACE"])
def test_interpreted_kernels_choose_the_tokens_of_the_twins(name: str) -> None:
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}; import test_devices as t; print(t.choices('interpreter', t.{name}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    wanted = choices("cpu", globals()[name])
    assert any(map(any, wanted))
    assert ran.stdout.strip() == str(wanted)


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("index", range(4))
def test_compiled_kernels_choose_the_tokens_of_the_twins(device: str, mixer: str, index: int) -> None:
    factory = load_factory(f"hybrid@{device}")
    overrides = {"state_dtype": "fp32", "mixer": mixer}
    trace = draw_trace(factory.capabilities, 31, index, overrides, factory.supports)
    assert choices(device, trace) == choices("cpu", trace)


@pytest.mark.parametrize("device", [CUDA])
@pytest.mark.parametrize("mixer", MIXERS)
@pytest.mark.parametrize("mode", ["align", "all", "none"])
def test_drawn_traces_are_clean(device: str, mode: str, mixer: str) -> None:
    factory = load_factory(f"hybrid@{device}")
    for index in range(6):
        overrides = {"mamba_cache_mode": mode, "mixer": mixer}
        trace = draw_trace(factory.capabilities, 32, index, overrides, factory.supports)
        outcome = run_trace(factory, trace)
        assert outcome.violation is None, outcome.violation.message


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_decodes_and_dummy_runs_share_graphs_and_sleep_drops_them(device: str) -> None:
    target = load_factory(f"hybrid@{device}").open(TRACE.config)
    captured = []
    events = [arrive("r0", 9, new=9), *[Step()] * 4, DummyRun(1), Step(), Sleep(), Wake(), *[Step()] * 4]
    for event in events:
        target.apply(event)
        if not isinstance(event, Sleep):
            captured.append(len(target.device_state.launcher.captured))  # type: ignore[attr-defined]
    assert captured[1:7] == [0, 0, 1, 1, 1, 1], (
        "both chunks of the prompt are eager, decodes and dummy runs use one graph"
    )
    assert captured[7:9] == [0, 0], "new bytes, new graphs; the request starts again with a prefill"
    assert captured[-1] == 1
