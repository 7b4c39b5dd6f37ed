"""The time limit of a trace: an engine that waits for a processor does not hang."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import arrive, make_trace, steps

from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.registry import prepare

TRACE = make_trace(arrive("r0", 30, new=8), *steps(12))
OTHERS = 4
LIMIT = 2.5
"""Seconds: more than the target computes, and less than that takes where four others compute."""


@pytest.fixture
def crowded() -> Iterator[int]:
    """A processor on which others compute."""
    if not Path("/proc/self/schedstat").exists() or not hasattr(os, "sched_setaffinity"):
        pytest.skip("the kernel does not tell for how long a process waited")
    processor = min(os.sched_getaffinity(0))
    command = [sys.executable, "-c", "while True: pass"]
    # In sessions of their own, as workers are: a kernel may divide its time among sessions first.
    others = [subprocess.Popen(command, start_new_session=True) for _ in range(OTHERS)]
    try:
        for other in others:
            os.sched_setaffinity(other.pid, {processor})
        yield processor
    finally:
        for other in others:
            other.kill()
            other.wait()


def run(name: str, processor: int) -> tuple[str, float]:
    """Run the trace on this processor. Return the signature of the failure and the seconds that it took."""
    spec = f"python:fake_targets:{name}"
    with WorkerClient(spec, prepare(spec, print), LIMIT) as worker:
        worker.start()
        os.sched_setaffinity(worker.pid, {processor})
        began = time.monotonic()
        violation = worker.run(TRACE).violation
        return violation.signature if violation else "", time.monotonic() - began


@pytest.fixture(autouse=True)
def _paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[2]}:{os.environ.get('PYTHONPATH', '')}")


def test_a_busy_machine_is_no_hang(crowded: int) -> None:
    """On two processors with forty processes a trace of vLLM took longer than a minute."""
    signature, seconds = run("COMPUTES", crowded)
    assert seconds > LIMIT, "the processor was not crowded"
    assert signature == ""


def test_an_engine_that_computes_for_ever_hangs_on_a_busy_machine_too(crowded: int) -> None:
    signature, _ = run("COMPUTES_FOR_EVER", crowded)
    assert signature == "HANG-step-time-limit"
