"""Kills campaigns at random moments and compares their totals with those of an undisturbed one.

    python benchmarks/kill_drills.py --drills 200 --seed 1

Each drill starts `hybridfuzz fuzz` on a broken target, disturbs it once or more (SIGKILL, SIGTERM, SIGINT or SIGHUP to
the coordinator, SIGKILL to a worker or to both, a full disk, the output folder removed), gives the same command again
until it ends by its own limit, and compares trace and step counts, what was exercised and reached, and every finding
with its count. After every process the files of each finding must agree, and every exit but SIGKILL must have left
report, JUnit and SARIF.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from hybridfuzz.harness.draw.files import load_trace

TARGET = "hybrid:null-as-state-slot"
COUNTED = ("traces", "steps", "exercised", "reached", "done", "beyond")
KINDS = (
    "coordinator SIGKILL", "coordinator SIGTERM", "coordinator SIGINT", "coordinator SIGHUP", "worker SIGKILL",
    "coordinator and worker SIGKILL", "full disk", "folder removed",
)  # fmt: skip
MOMENTS_SECONDS = 4.0
ATTEMPTS_MAX = 5


def words(folder: Path, traces: int) -> list[str]:
    """The command; the same for every attempt of a drill."""
    fixed = ["--seed", "1", "--jobs", "2", "--reduce", "1s", "--no-canary", "--target", TARGET]
    outputs = ["--junit", str(folder / "junit.xml"), "--sarif", str(folder / "x.sarif")]
    command = [sys.executable, "-m", "hybridfuzz.harness.cli", "fuzz", *fixed, *outputs]
    return [*command, "--traces", str(traces), "-o", str(folder / "out")]


def totals(folder: Path) -> dict[str, Any]:
    """What has to be equal. Losses of workers are flaky findings that an undisturbed campaign does not have."""
    summary = json.loads((folder / "out" / "campaign.json").read_text())
    findings = {
        one["signature"]: one["count"] for one in summary["findings"] if not one["signature"].startswith("CRASH-SIG")
    }
    return {**{name: summary[name] for name in COUNTED}, "findings": findings}


def children(pid: int) -> list[int]:
    """Return the ids of the processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def kill(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def disturb(kind: str, process: subprocess.Popen[bytes], folder: Path, rng: random.Random) -> None:
    """Do what the kind of drill says to a running campaign."""
    who, _, name = kind.rpartition(" ")
    if kind == "folder removed":
        shutil.rmtree(folder / "out", ignore_errors=True)
    elif who:
        number = getattr(signal, name, signal.SIGKILL)
        workers = children(process.pid)
        if "worker" in who and workers:
            kill(rng.choice(workers), number)
        if "coordinator" in who:
            kill(process.pid, number)


def attempt(kind: str, folder: Path, traces: int, rng: random.Random) -> int:
    """Run the command once; "" for `kind` leaves it alone. Returns its exit status, negative for a signal."""
    limit = rng.choice([200, 2_000, 8_000]) if kind == "full disk" else 0

    def no_room() -> None:
        if limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    log = (folder / "log").open("ab")
    with log, subprocess.Popen(words(folder, traces), stdout=log, stderr=log, preexec_fn=no_room) as process:  # noqa: PLW1509
        if kind and kind != "full disk":
            try:
                process.wait(rng.uniform(0.2, MOMENTS_SECONDS))
            except subprocess.TimeoutExpired:
                disturb(kind, process, folder, rng)
        return process.wait(120)


def check_files(folder: Path) -> list[str]:
    """Return how files of one finding contradict each other, and what the state says that the disk does not."""
    wrong = []
    for path in (folder / "out" / "findings").glob("*.json"):
        events, text = len(load_trace(path).events), path.with_suffix(".txt")
        if text.exists() and not re.search(rf"^{events} events\.", text.read_text(), re.MULTILINE):
            wrong.append(f"{text.name} is not about {path.name}")
        if path.with_suffix(".history").exists() and not text.exists():
            wrong.append(f"{path.name} has a history without a text")
    return wrong


def drill(kind: str, folder: Path, traces: int, wanted: dict[str, Any], rng: random.Random) -> list[str]:
    """Return what went wrong; nothing if all is well."""
    wrong: list[str] = []
    for number in range(ATTEMPTS_MAX):
        (folder / "junit.xml").unlink(missing_ok=True)
        logged = (folder / "log").stat().st_size if number else 0
        status = attempt(kind if number < 2 else "", folder, traces, rng)
        log = (folder / "log").read_bytes()[logged:]
        wrong += check_files(folder)
        if status in (0, 3) or (status < 0 and status != -signal.SIGKILL and log):  # no log: Python had not started
            wrong.append(f"exit status {status}")
        missing = [name for name in ("junit.xml", "x.sarif", "out/report.html") if not (folder / name).exists()]
        no_room = kind == "full disk" and number < 2
        if status in (1, 5) and b"fuzzing " in log and missing and not no_room:
            wrong.append(f"attempt {number}, exit status {status}: no {', '.join(missing)}: {log.decode()[-600:]}")
        state = folder / "out" / "campaign.json"
        if status == 1 and state.exists() and json.loads(state.read_text())["exit_reason"] == "traces":
            break
    else:
        return [*wrong, "the campaign never ended"]
    if totals(folder) != wanted:
        wrong.append(f"totals differ: {totals(folder)}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of drills, by commas")
    parser.add_argument("--traces", type=int, default=60)
    args = parser.parse_args()
    rng, began, kinds = random.Random(args.seed), time.monotonic(), args.kinds.split(",")
    ran: Counter[str] = Counter()
    bad: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "whole"
        whole.mkdir()
        attempt("", whole, args.traces, rng)
        wanted = totals(whole)
        print(f"undisturbed: {wanted['traces']} traces, {wanted['steps']} steps, {wanted['findings']}", flush=True)
        for number in range(args.drills):
            kind, folder = kinds[number % len(kinds)], Path(name) / str(number)
            folder.mkdir()
            wrong = drill(kind, folder, args.traces, wanted, rng)
            ran[kind] += 1
            bad += [f"drill {number} ({kind}): {one}" for one in wrong]
            for one in wrong:
                print(bad[-1] if one == wrong[-1] else f"drill {number} ({kind}): {one}", flush=True)
            if wrong:
                print((folder / "log").read_text()[-400:], flush=True)
            shutil.rmtree(folder)
    for kind, count in ran.items():
        print(f"{count:4} x {kind}")
    print(f"{args.drills} drills in {time.monotonic() - began:.0f} s, {len(bad)} faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
