"""Targets that turn against their worker: the fault is theirs and is named. Exit status 4 is hybridfuzz's alone."""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from cli_process import Cli, Ran, ended
from support import arrive, make_trace, steps

from hybridfuzz.harness.draw.trace_files import encode_trace
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.launch import Launch


def fuzz(hybridfuzz: Cli, name: str, *more: str) -> Ran:
    fixed = ["--seed", "4", "--jobs", "1", "--reduce", "1s", "--no-canary", "--traces", "3", "--json"]
    return hybridfuzz("fuzz", "--target", f"python:hostile_targets:{name}", *fixed, *more)


@pytest.mark.parametrize(
    ("name", "status", "signature", "words"),
    [
        ("OPENS_NONE", 6, "ADAPTER-open-NotATarget-open", "hostile_targets: open() returned None, which has no layout"),
        ("OPENS_SELF", 6, "ADAPTER-open-NotATarget-open", "open() returned a int, which has no layout, apply, view"),
        ("OPENS_HALF", 6, "RECORD-arrive-Effect", "hostile_targets reported Effect = a NoneType, expected an Effect"),
        # No event is named if the copy speaks up behind the reply to it.
        ("FORKS_BACK", 1, "PROTOCOL", "forked its worker, and the copy came back"),
        pytest.param("FORGES_INTERNAL", 1, "PROTOCOL-step-reply", "hybridfuzz is broken", marks=pytest.mark.exhaustive),
        ("FORGES_DONE", 1, "PROTOCOL-step-reply", "made its worker answer nonsense"),
        pytest.param(
            "REPLACES_DONE",
            1,
            "PROTOCOL",
            "made its worker answer Supported, expected Done",
            marks=pytest.mark.exhaustive,
        ),
    ],
)
def test_a_finding(hybridfuzz: Cli, name: str, status: int, signature: str, words: str) -> None:
    ran = fuzz(hybridfuzz, name)
    assert ran.status == status, ran.err
    assert "internal error" not in ran.err + ran.out
    finding = ran.json["findings"][0]
    assert finding["signature"].startswith(signature)
    assert words in finding["message"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SUPPORTS_RAISES", "supports() raised KeyError: 'no such model\\nsecond line' at hostile_targets.py:"),
        ("SUPPORTS_SEVEN", "supports() returned a int, expected a text"),
        ("SUPPORTS_LEAVES", "ended its process with exit status 9 while "),
        ("REPLACES_RUN", "it replaced hybridfuzz.harness.workers.request_loop.run_taken"),
    ],
)
def test_an_error_of_the_target(hybridfuzz: Cli, name: str, words: str) -> None:
    for ran in (fuzz(hybridfuzz, name), fuzz(hybridfuzz, name, "--source", "hypothesis")):
        assert ran.status == 2, ran.err
        assert f"target 'python:hostile_targets:{name}'" in ran.error
        assert words in ran.error


def test_replies_that_a_target_cannot_replace(hybridfuzz: Cli) -> None:
    ran = fuzz(hybridfuzz, "REPLACES_REPLIES")
    assert ran.status in (0, 3), ran.err
    assert ran.json["findings"] == []


@pytest.mark.parametrize("name", ["OPENS_NONE", "OPENS_HALF", "FORKS_BACK", "REPLACES_RUN", "FORGES_INTERNAL"])
@pytest.mark.parametrize("command", ["replay", "reduce", "repro"])
def test_single_traces(hybridfuzz: Cli, tmp_path: Path, command: str, name: str) -> None:
    """Commands that run one trace, too."""
    (tmp_path / "trace.json").write_bytes(encode_trace(make_trace(arrive("r0", 9), *steps(6))))
    ran = hybridfuzz(command, "trace.json", "--target", f"python:hostile_targets:{name}")
    assert ran.status in (0, 1, 2, 6), ran
    assert "internal error" not in ran.err + ran.out


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("DAEMON_DIES", "CRASH-step-exit-3"),
        ("DAEMON_HANGS", "HANG-step-time-limit"),
        ("DAEMON_STAYS", ""),
    ],
)
def test_what_a_worker_started_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, signature: str
) -> None:
    """A daemon kept the pipe open: the client waited for a dead worker, and the daemon lived on."""
    flag = tmp_path / "flag"
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=os.pathsep)
    monkeypatch.setenv("HYBRIDFUZZ_TEST_FLAG", str(flag))
    began = time.monotonic()
    with WorkerClient(f"python:hostile_targets:{name}", Launch(sys.executable, {}), trace_seconds=60) as client:
        client.start()
        client.trace_seconds = 3 if "time-limit" in signature else 60
        outcome = client.run(make_trace(arrive("r0", 9), *steps(6)))
        waited = time.monotonic() - began
    assert (outcome.violation.signature if outcome.violation else "") == signature
    assert waited < 45, "not the whole time limit"
    daemon = int(flag.read_text())
    try:
        assert ended(daemon), "the daemon lives on"
    finally:
        with suppress(ProcessLookupError):
            os.kill(daemon, signal.SIGKILL)
