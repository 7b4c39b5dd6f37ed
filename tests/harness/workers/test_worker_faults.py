"""A worker without memory, or without its device, is no bug of the engine, whoever says so."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import CLEAN, arrive, make_trace, steps

from hybridfuzz.harness.judge.environment_fault import FaultyEnvironment
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.workers import worker_process
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.observe import Effect
from hybridfuzz.targets.base.protocol import Target
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Config, Event

TRACE = make_trace(arrive("r0", 3), *steps(3))
LONG = make_trace(arrive("r0", 30, new=8), *steps(12))


@pytest.fixture(autouse=True)
def _paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("HYBRIDFUZZ_TEST_FLAG", str(tmp_path / "flag"))
    monkeypatch.setattr("hybridfuzz.harness.workers.worker_client.RESTART_WAITS", (0.0,))


def started(name: str) -> Iterator[WorkerClient]:
    spec = f"python:fake_targets:{name}"
    with WorkerClient(spec, prepare(spec, print)) as worker:
        worker.start()
        yield worker


@pytest.fixture
def no_memory() -> Iterator[WorkerClient]:
    yield from started("NO_MEMORY")


@pytest.fixture
def killed() -> Iterator[WorkerClient]:
    yield from started("KILLED")


class Failing:
    """The built-in target, which has no memory in one of its methods."""

    def __init__(self, method: str) -> None:
        self.name, self.capabilities, self.supports = "failing", CLEAN.capabilities, CLEAN.supports
        self._method = method

    def open(self, config: Config) -> Target:
        if self._method == "open":
            raise MemoryError
        target = CLEAN.open(config)

        def fail(*_: Event) -> Effect:
            raise MemoryError

        setattr(target, self._method, fail)
        return target


@pytest.mark.parametrize("method", ["open", "view", "apply", "close"])
def test_no_verdict_wherever_the_memory_ends(method: str) -> None:
    """It was "CRASH: the target raised MemoryError"."""
    with pytest.raises(FaultyEnvironment, match="out of memory"):
        run_trace(Failing(method), TRACE)


def test_a_trace_that_is_given_raises(no_memory: WorkerClient) -> None:
    before = no_memory.pid
    for ask in (no_memory.run, no_memory.explain, no_memory.observe):
        with pytest.raises(FaultyEnvironment, match="CUDA out of memory") as caught:
            ask(LONG)
        assert caught.value.fault.kind == "out of memory"
    assert no_memory.pid != before  # each ran again, in a new process


def test_a_drawn_trace_that_could_not_run_ends_the_request(no_memory: WorkerClient) -> None:
    with pytest.raises(FaultyEnvironment):
        list(no_memory.fuzz(Fuzz(2, 0, 4, {})))
    ran = list(no_memory.fuzz(Fuzz(2, 0, 4, {}, takes_unopened=True)))
    assert [one.index for one in ran] == [0, 1, 2, 3]
    assert all(one.outcome.fault and one.trace and not one.outcome.violation for one in ran)
    for one in no_memory.fuzz(Fuzz(2, 0, 4, {}, takes_unopened=True)):
        assert no_memory.draw(2, one.index, {}) == one.trace  # the process waits after each


def test_a_paused_worker_has_no_process(killed: WorkerClient, tmp_path: Path) -> None:
    (tmp_path / "flag").touch()
    pid = killed.pid
    killed.pause()
    assert not Path(f"/proc/{pid}").exists()
    assert killed.run(LONG).violation is None
    assert killed.pid != pid


class TestKilledByTheKernel:
    @pytest.fixture
    def _counted(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The kernel's counter as the worker's death would leave it."""
        monkeypatch.setattr(worker_process, "oom_kills", lambda: int((tmp_path / "flag").exists()))

    @pytest.mark.usefixtures("_counted")
    def test_is_out_of_memory(self, killed: WorkerClient) -> None:
        ran = next(ran for ran in killed.fuzz(Fuzz(1, 0, 8, {}, takes_unopened=True)) if ran.outcome.fault)
        assert str(ran.outcome.fault) == "out of memory: the kernel killed the worker"
        assert ran.trace is not None
        assert not (ran.lost or ran.flaky or ran.outcome.violation)

    def test_is_a_loss_without_the_kernels_sign(self, killed: WorkerClient) -> None:
        [ran] = [ran for ran in killed.fuzz(Fuzz(1, 0, 8, {}, takes_unopened=True)) if ran.lost]
        assert ran.flaky
        assert ran.flaky.field == signal.Signals.SIGKILL.name
