"""Targets that crash, hang, talk nonsense: findings with a trace, never the end of a campaign."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_process import MUTANT, Cli, Ran, children, command, ended, wait_for
from support import arrive, make_trace, steps

from hybridfuzz.harness.draw.trace_files import encode_trace, load_trace
from hybridfuzz.harness.workers.worker_client import InternalError, WorkerClient
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.trace import DummyRun


def fuzz(hybridfuzz: Cli, name: str, *more: str, **env: str) -> Ran:
    fixed = ["--seed", "4", "--jobs", "1", "--reduce", "1s", "--no-canary", "--json"]
    return hybridfuzz("fuzz", "--target", f"python:fake_targets:{name}", *fixed, *more, env=env)


@pytest.mark.parametrize(
    ("name", "signature", "words", "more"),
    [
        ("SEGFAULT", "CRASH-step-SIGSEGV", "about to fall over", []),
        (
            "HANG",
            "HANG-step-time-limit",
            "did not end within",
            ["--timeout", "1s", "--traces", "1"],
        ),
        ("NONSENSE", "PROTOCOL-step-reply", "{not json", []),
        ("RAISES", "CRASH-step-IndexError-raise_error", "block 7 of 5", []),
        ("REFUSES_LATE", "CRASH-step-TargetError-refuse_late", "needs a licence for steps", []),
        ("INVALID", "CRASH-step-RuntimeError-raise_invalid", r"raised RuntimeError: \ud800 \x1b[31m at", []),
        ("LONG", "CRASH-step-RuntimeError-raise_long", "(cut: 3,000,000 characters)", []),
        ("UNPRINTABLE", "CRASH-step-Unprintable-raise_unprintable", "cannot be printed: ValueError", []),
        (
            "HUNGRY",
            "CRASH-step-memory-limit",
            "MiB of memory",
            ["--memory", "400MiB", "--traces", "1"],
        ),
    ],
)
def test_finding(hybridfuzz: Cli, tmp_path: Path, name: str, signature: str, words: str, more: list[str]) -> None:
    ran = fuzz(hybridfuzz, name, *(more or ["--traces", "2"]))
    assert ran.status == 1, ran.err
    result = ran.json
    [finding] = result["findings"]
    assert finding["signature"] == signature
    assert words in finding["message"]
    assert result["exit_reason"] == "traces"
    assert finding["count"] == result["traces"]
    trace = load_trace(tmp_path / finding["trace"])
    assert len(trace.events) == finding["events"]
    assert f"replay {finding['trace']} --target python:fake_targets:{name}" in ran.err
    assert words in (tmp_path / finding["trace"]).with_suffix(".txt").read_text()


def test_a_long_message_is_cut_wherever_it_goes(hybridfuzz: Cli, tmp_path: Path) -> None:
    """3 MB of message made 6 MB of log, text and page."""
    ran = fuzz(hybridfuzz, "LONG", "--traces", "1", "-o", "out", "--events", "events.ndjson", "--junit", "junit.xml")
    assert ran.status == 1
    sizes = {
        str(path): path.stat().st_size for path in tmp_path.rglob("*") if path.is_file() and "cache" not in str(path)
    }
    assert max(sizes.values()) < 100_000, sizes
    assert len(ran.out) + len(ran.err) < 40_000


def test_a_refusal_in_invalid_unicode_is_one_line(hybridfuzz: Cli) -> None:
    ran = fuzz(hybridfuzz, "RUDE", "--traces", "1")
    assert ran.status == 2
    assert r"no \ud800\x1b[31m licence" in ran.error


def test_the_time_limit_is_for_a_trace(hybridfuzz: Cli, tmp_path: Path) -> None:
    """In `fuzz` it was for a trace, and in a single run for each event."""
    (tmp_path / "slow.json").write_bytes(encode_trace(make_trace(arrive("r0", 3), *steps(20))))
    ran = hybridfuzz("replay", "slow.json", "--target", "python:fake_targets:SLOW", "--timeout", "1s")
    assert ran.status == 1, ran
    assert "HANG-step-time-limit" in ran.out
    assert "did not end within 2 s" in ran.out, "a clean trace is run twice"


def test_what_a_target_prints_does_no_harm(hybridfuzz: Cli) -> None:
    ran = fuzz(hybridfuzz, "NOISY", "--traces", "2")
    assert ran.status in (0, 3), ran.err
    assert ran.json["findings"] == []


def test_crash_that_does_not_repeat(hybridfuzz: Cli, tmp_path: Path) -> None:
    ran = fuzz(hybridfuzz, "ONCE", "--traces", "4", HYBRIDFUZZ_TEST_FLAG=str(tmp_path / "flag"))
    assert ran.status == 1
    [finding] = ran.json["findings"]
    assert finding["signature"] == "CRASH-exit-3"
    assert not finding["reproduced"]
    assert (tmp_path / finding["trace"]).exists()
    assert ran.json["traces"] == 4


def test_a_process_killed_from_outside_says_nothing_about_the_trace(hybridfuzz: Cli, tmp_path: Path) -> None:
    """It was lost while a finding was confirmed: the finding became "not reproduced"."""
    (tmp_path / "trace.json").write_bytes(encode_trace(make_trace(arrive("r0", 3), *steps(3))))
    environment = {"HYBRIDFUZZ_TEST_FLAG": str(tmp_path / "flag")}
    ran = hybridfuzz("replay", "trace.json", "--target", "python:fake_targets:KILLED", env=environment)
    assert (tmp_path / "flag").exists()
    assert ran.status == 0, ran


def test_nondeterminism(hybridfuzz: Cli) -> None:
    ran = fuzz(hybridfuzz, "FICKLE", "--traces", "1")
    assert ran.status == 1
    assert ran.json["findings"][0]["signature"] == "DETERMINISM-digest"


def start(environment: dict[str, str], folder: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("fuzz", "--seed", "1", "--jobs", "1", "-o", "out", "--no-canary", "--json", *more),
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_worker_killed(environment: dict[str, str], tmp_path: Path) -> None:
    """A loss that does not happen again is a flaky finding, and the campaign goes on."""
    with start(environment, tmp_path, "--traces", "80") as process:
        wait_for(process, "fuzzing hybrid")
        time.sleep(0.2)
        [worker] = children(process.pid)
        os.kill(worker, signal.SIGKILL)
        out, err = process.communicate()
    assert process.returncode == 1, err
    assert "flaky: CRASH-SIGKILL" in err
    [finding] = json.loads(out.splitlines()[-1])["findings"]
    assert (finding["signature"], finding["reproduced"], finding["shown"], finding["tried"]) == (
        "CRASH-SIGKILL",
        False,
        0,
        1,
    )
    assert "warning: worker 0, trace" in err
    assert "died of SIGKILL" in err
    assert '"lost_workers": 1' in out.splitlines()[-1]
    assert '"exit_reason": "traces"' in out.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(environment: dict[str, str], tmp_path: Path, number: int) -> None:
    with start(environment, tmp_path, "--time", "60s", "--target", MUTANT) as process:
        wait_for(process, "FOUND")
        workers = children(process.pid)
        process.send_signal(number)
        began = time.monotonic()
        out, err = process.communicate()
    assert time.monotonic() - began < 10
    assert process.returncode == 1, err
    assert '"exit_reason": "interrupted"' in out.splitlines()[-1]
    assert list((tmp_path / "out" / "findings").glob("*.json"))
    assert all(map(ended, workers))


def test_killed_campaign_leaves_findings_and_no_workers(
    environment: dict[str, str], tmp_path: Path, hybridfuzz: Cli
) -> None:
    with start(environment, tmp_path, "--time", "60s", "--target", MUTANT) as process:
        wait_for(process, "reduced to")
        [worker] = children(process.pid)
        process.kill()
    [first, *_] = list((tmp_path / "out" / "findings").glob("*.json"))
    assert hybridfuzz("replay", first, "--target", MUTANT).status == 1
    assert ended(worker)


def test_earlier_findings_are_shown(hybridfuzz: Cli) -> None:
    arguments = [
        "fuzz",
        "--no-canary",
        "--target",
        MUTANT,
        "--seed",
        "1",
        "--traces",
        "4",
        "-o",
        "out",
        "--reduce",
        "1s",
    ]
    assert "earlier findings" not in hybridfuzz(*arguments).out
    again = hybridfuzz(*arguments)
    assert "earlier findings in this folder" in again.out
    assert "replay out/findings/M4-" in again.out


def test_a_request_that_cannot_be_read_is_answered() -> None:
    """By an error at once; the worker used to wait for ever, and its client until the time limit."""
    with WorkerClient("hybrid", Launch(sys.executable, {}), trace_seconds=30) as client:
        client.start()
        with pytest.raises(InternalError, match="Expected `int` >= 1"):
            client.run(make_trace(arrive("r0", 5), DummyRun(0)))
        assert client.run(make_trace(arrive("r0", 5), DummyRun(1))).violation is None
