"""A client never takes the reply to one request for the reply to another, and loses none with its process."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import arrive, make_trace, steps

from hybridfuzz.harness import cli
from hybridfuzz.harness.draw.trace_files import encode_trace, load_trace
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import prepare

TRACE = make_trace(arrive("r0", 3), *steps(3))
CLEAN, FAILING = "hybrid", "hybrid:null-as-state-slot"


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[WorkerClient]:
    with WorkerClient(request.param, prepare(request.param, print)) as worker:
        worker.start()
        yield worker


@pytest.mark.parametrize("started", [CLEAN], indirect=True)
def test_a_process_that_runs_ahead_is_not_asked(started: WorkerClient) -> None:
    """`verify-fix` left its campaign in the middle of a batch; what it ran next was judged by the batch's results."""
    next(started.fuzz(Fuzz(0, 0, 5, {})))
    with pytest.raises(AssertionError, match="abandoned"):
        started.run(TRACE)
    started.start()
    assert started.run(TRACE).steps >= 3


@pytest.mark.parametrize("started", [FAILING], indirect=True)
def test_a_process_waits_after_a_violation(started: WorkerClient) -> None:
    """The trace that runs between two of a batch has its own result, and the batch goes on."""
    indexes = []
    for ran in started.fuzz(Fuzz(0, 0, 12, {})):
        indexes.append(ran.index)
        if ran.outcome.violation:
            assert ran.trace and started.run(ran.trace).violation == ran.outcome.violation
    assert indexes == [*range(12)]


@pytest.mark.parametrize("started", [CLEAN], indirect=True)
def test_a_process_that_has_answered_everything_is_free(started: WorkerClient) -> None:
    assert len([*started.fuzz(Fuzz(0, 0, 3, {}))]) == 3
    assert started.run(TRACE).steps >= 3


WEDGED, LATE = "python:wedged:FACTORY", "python:fake_targets:LATE"
SHORT, LONG = make_trace(arrive("r0", 3, new=1), *steps(1)), make_trace(arrive("r0", 3, new=9), *steps(6))


@pytest.fixture
def wedged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A target that does not start again after its crash; removing the file heals it."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
    monkeypatch.setenv("HYBRIDFUZZ_TEST_FLAG", str(tmp_path / "flag"))
    monkeypatch.setattr("hybridfuzz.harness.workers.worker_client.RESTART_WAITS", (0.0,))
    return tmp_path / "flag"


def test_a_crash_is_an_outcome_although_no_process_starts_any_more(wedged: Path) -> None:
    with WorkerClient(WEDGED, prepare(WEDGED, print)) as worker:
        worker.start()
        violation = worker.run(LONG).violation
        assert violation is not None
        assert violation.signature == "CRASH-step-exit-3"
        for _ in range(2):
            with pytest.raises(TargetError, match="the device does not answer"):
                worker.run(SHORT)
        wedged.unlink()
        assert worker.run(SHORT).violation is None


def test_a_crash_while_fuzzing_keeps_its_trace_although_no_process_starts_any_more(wedged: Path) -> None:
    request = Fuzz(0, 0, 20, {})
    with WorkerClient(WEDGED, prepare(WEDGED, print)) as worker:
        worker.start()
        failed = next(ran for ran in worker.fuzz(request) if ran.outcome.violation)
        assert failed.outcome.violation
        assert failed.outcome.violation.signature == "CRASH-exit-3"
        assert "the device does not answer" in failed.outcome.violation.message
        wedged.unlink()
        assert failed.trace == worker.draw(request.seed, failed.index, request.overrides)


def test_a_campaign_saves_the_crash_after_which_its_target_does_not_start(
    wedged: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended with status 2 and an empty folder. A replay of several traces goes on with what it can say."""
    out = str(tmp_path / "out")
    fixed = ("--seed", "1", "--traces", "20", "--jobs", "1", "--no-canary")
    assert cli.main(["fuzz", "--target", WEDGED, *fixed, "-o", out, "--json"]) == 1
    printed = capsys.readouterr()
    result = json.loads(printed.out.splitlines()[-1])
    [finding] = result["findings"]
    assert (finding["signature"], result["exit_reason"]) == ("CRASH-exit-3", "error")
    assert load_trace(finding["trace"]).events
    assert "the campaign ended early: target 'python:wedged:FACTORY'" in printed.err
    wedged.unlink()
    (tmp_path / "z.json").write_bytes(encode_trace(TRACE))
    files = (finding["trace"], str(tmp_path / "z.json"))
    assert cli.main(["replay", *files, "--target", WEDGED, "--json"]) == 1
    first, second = json.loads(capsys.readouterr().out.splitlines()[-1])["results"]
    assert first["signature"].startswith("CRASH-")
    assert "the device does not answer" in second["refused"]
    wedged.unlink()
    assert cli.main(["replay", finding["trace"], "--target", WEDGED]) == 1
    assert "no explanation: target" in capsys.readouterr().out


@pytest.mark.parametrize("started", ["python:fake_targets:TALKATIVE"], indirect=True)
def test_a_worker_says_what_it_waits_for(wedged: Path, started: WorkerClient) -> None:
    """Nothing but "0 traces" was shown for 80 seconds while kernels were compiled."""
    del wedged
    said: list[str] = []
    started.on_busy = said.append
    assert [ran.index for ran in started.fuzz(Fuzz(0, 0, 1, {}))] == [0]
    assert said == ["compiling kernel 1, copy", "opening an engine (large)", ""]
    assert started.run(SHORT).violation is None
    assert len(said) == 6


@pytest.mark.parametrize("started", [LATE], indirect=True)
def test_a_refusal_ends_only_a_request_that_does_not_take_it(wedged: Path, started: WorkerClient) -> None:
    del wedged
    with pytest.raises(TargetError, match="need a licence"):
        for _ in started.fuzz(Fuzz(0, 0, 20, {"num_blocks": 61})):
            pass
    ran = [*started.fuzz(Fuzz(0, 0, 3, {"num_blocks": 61}, takes_unopened=True))]
    assert [one.outcome.refused for one in ran] == ["pools of an odd size need a licence"] * 3
    assert all(one.trace and not one.outcome.steps for one in ran)


COLLECTED = """
import gc
from hybridfuzz.targets.base.registry import load_factory

GOOD, IMPORTED = load_factory("hybrid"), gc.isenabled()

class Factory:
    name, capabilities, supports = "collected", GOOD.capabilities, staticmethod(GOOD.supports)

    def open(self, config):
        raise RuntimeError(f"imported {IMPORTED}, opened {gc.isenabled()}")

FACTORY = Factory()
"""


def test_garbage_is_collected_behind_the_import_of_a_target_and_not_during_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "collected.py").write_text(COLLECTED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with WorkerClient("python:collected:FACTORY", Launch(sys.executable, {}), trace_seconds=60) as worker:
        worker.start()
        violation = worker.run(TRACE).violation
    assert violation and "imported False, opened True" in violation.message
