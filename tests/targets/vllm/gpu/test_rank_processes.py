"""Data-parallel ranks in processes of their own, with real models: vLLM's own coordination between them, causes that
only a dummy run beside a working rank shows, and processes that die. Kernels are interpreted; where two GPUs and a vLLM
are, compiled, too."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from msgspec import structs

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.workers.descendants import descendants
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Arrive, Config, DummyRun, Group, Step, Trace
from hybridfuzz.targets.vllm.gpu.scaling import scaled

pytestmark = [pytest.mark.xdist_group("engine")]
CORPUS = Path(__file__).parents[4] / "corpus" / "vllm"
CAN_COMPILE = torch.cuda.device_count() > 1 and find_spec("vllm") is not None
COMPILED = [pytest.mark.gpu, pytest.mark.skipif(not CAN_COMPILE, reason="fewer than two GPUs here, or no vLLM")]
TARGETS = (
    pytest.param("vllm@0.33.0@interpreter", marks=pytest.mark.engine, id="interpreter"),
    pytest.param("vllm@cuda", marks=COMPILED, id="cuda"),
)


@pytest.fixture(scope="module", params=TARGETS)
def worker(request: pytest.FixtureRequest) -> Iterator[WorkerClient]:
    """Importing vLLM takes most of the time, here and in the other ranks."""
    target: str = request.param
    with WorkerClient(target, prepare(target, print), trace_seconds=600) as client:
        client.start()
        yield client


def beside(runner: str, ranks: int = 2) -> Trace:
    """A request decodes beside a rank with three rows, with four, beside an idle one; then dummy runs beside it, and a
    second request whose prompt meets the other rank's fourth step, in which that computes a prompt, too."""
    config = Config(
        num_blocks=24,
        groups=(Group("mamba", 16), Group("attention", 16)),
        max_model_len=64,
        max_num_seqs=4,
        graph_sizes=(1, 2, 4),
        options={"runner": runner, "mixer": "mamba2", "graphs": "decode", "ranks": str(ranks)},
    )
    first = (Arrive("x", (("d", 5),), 4), Step(), Step(pad_to=3), Step(pad_to=4), Step(), Step(), DummyRun(2))
    second = (Arrive("y", (("d", 5),), 2), Step(pad_to=4), Step(pad_to=1), Step(), DummyRun(4))
    return Trace(config, (*first, *second))


def other_ranks(worker: WorkerClient) -> list[int]:
    """The processes below a worker that hold another rank."""
    found = []
    for one in descendants(worker.pid):
        command = Path(f"/proc/{one}/cmdline").read_bytes()
        found += [one] if b"rank_main" in command else []
    return found


def soon(condition: Callable[[], object], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.parametrize("runner", ["v2", pytest.param("v1", marks=pytest.mark.exhaustive)])
def test_ranks_agree_on_graphs_by_vllm_s_own_coordination(worker: WorkerClient, runner: str) -> None:
    """Two steps are padded to the larger rank's graph, none beside an idle rank. The trace means the same each time."""
    outcome = worker.run(beside(runner), twice=True)
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["padding rows"] == 2
    assert outcome.reached["dummy run after requests"] == 2


@pytest.mark.parametrize("cause", ["dummy-run-as-prompt-v1", "session-dummy-run"])
def test_a_dummy_run_beside_a_working_rank_shows_its_cause(worker: WorkerClient, cause: str) -> None:
    """Causes 5 and 18, on the stock release. Whatever a dummy run changes is seen by its bytes, too."""
    [path] = CORPUS.glob(f"0.33.0--{cause}--*.json")
    trace = scaled(load_trace(path), 16)
    options = {**trace.config.options, "data_parallel": "1", "ranks": "2"}
    violation = worker.run(structs.replace(trace, config=structs.replace(trace.config, options=options))).violation
    assert violation is not None
    assert violation.signature == "M4-dummy_run-mamba-dead-write"


@pytest.mark.exhaustive
def test_a_rank_that_dies_takes_its_worker_with_it_and_shows_nothing_about_the_trace(worker: WorkerClient) -> None:
    """As for a worker that something else killed, the trace runs once more."""
    if not worker.spec.endswith("@interpreter"):
        pytest.skip("a trace of compiled kernels may have ended before")
    trace = beside("v2")
    assert worker.run(trace).violation is None
    [rank], before = other_ranks(worker), worker.pid
    killer = threading.Timer(0.5, os.kill, (rank, signal.SIGKILL))
    killer.start()
    assert worker.run(trace).violation is None
    assert worker.pid != before
    assert rank not in other_ranks(worker)


def test_ranks_end_with_their_worker(worker: WorkerClient) -> None:
    assert worker.run(beside("v2")).violation is None
    [rank] = other_ranks(worker)
    os.kill(worker.pid, signal.SIGKILL)
    soon(lambda: not Path(f"/proc/{rank}/cmdline").exists() or not Path(f"/proc/{rank}/cmdline").read_bytes())
