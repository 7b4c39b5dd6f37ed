"""One Ray worker against two, and two against `--jobs 2` without Ray; runs alternate, so that load hits all alike.

    python benchmarks/cluster_scaling.py [--target hybrid] [--seconds 30] [--rounds 3]

Wall-clock rates mean something on an idle machine only; the load average stands beside them. (CPU time of Ray's own
processes is not counted here: they are no children of the campaign.) Ray gives its workers a niceness of 15; beside
other work that alone would decide, so here they have none.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple


class Way(NamedTuple):
    """A way to run the campaign."""

    name: str
    arguments: tuple[str, ...]


WAYS = (
    Way("1 Ray worker", ("--cluster", "local:1")),
    Way("2 Ray workers", ("--cluster", "local:2")),
    Way("--jobs 2", ("--jobs", "2")),
)


class Measured(NamedTuple):
    """One run."""

    traces_per_second: float
    load: float


def measure(way: Way, target: str, seconds: float, seed: int) -> Measured:
    """Run a campaign. The rate counts from the first worker that is ready to the end."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "hybridfuzz.harness.cli", "fuzz", "--target", target, "--seed", str(seed)]
        command += ["--time", f"{seconds}s", "--no-canary", "--json", "-o", str(Path(folder) / "out"), *way.arguments]
        environment = {"RAY_worker_niceness": "0", **os.environ}
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        summary = json.loads(ran.stdout.splitlines()[-1])
    return Measured(summary["traces"] / summary["seconds"], os.getloadavg()[0])


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="hybrid")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    runs: dict[str, list[Measured]] = {way.name: [] for way in WAYS}
    for number in range(arguments.rounds):
        for way in WAYS:
            runs[way.name].append(measure(way, arguments.target, arguments.seconds, number + 1))
            time.sleep(1)
    print("| | traces/s | load average |")
    print("| --- | ---: | ---: |")
    middle = {
        name: Measured(*(statistics.median(values) for values in zip(*several, strict=True)))
        for name, several in runs.items()
    }
    for name, one in middle.items():
        print(f"| {name} | {one.traces_per_second:.1f} | {one.load:.1f} |")
    one, two, here = (middle[way.name].traces_per_second for way in WAYS)
    print(f"\n2 Ray workers: {two / one:.2f} times 1 Ray worker, {two / here - 1:+.1%} against --jobs 2")


if __name__ == "__main__":
    main()
