"""Packaged traces of historical bugs on every vLLM release, and random steps on each: the tables of vllm-releases.md.

    python benchmarks/vllm_releases.py                        each trace on each release
    python benchmarks/vllm_releases.py --releases 0.16.0 0.17.1
    python benchmarks/vllm_releases.py --steps 20000          random traces: signatures and how often each was seen

A trace is one of corpus/vllm of a release before 0.28. A cell is the signature, "-" for a silent release, or "refused"
where the release cannot be configured so. The first line of a release's row is the time that it took.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

from hybridfuzz.harness.traces.files import load_trace
from hybridfuzz.harness.workers.client import WorkerClient
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.targets.base.pip import version_numbers
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import TraceError

CORPUS = Path(__file__).parents[1] / "corpus" / "vllm"
RELEASES = (
    "0.14.1", "0.15.1", "0.16.0", "0.17.1", "0.18.1", "0.19.1", "0.20.2", "0.21.0", "0.22.1", "0.23.0", "0.24.0",
    "0.25.1", "0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0",
)  # fmt: skip


def historical() -> list[Path]:
    """Return the packaged traces of releases before 0.28."""
    return [
        path
        for path in sorted(CORPUS.glob("*--*--*.json"))
        if version_numbers(path.name.split("--")[0]) < version_numbers("0.28.0")
    ]


def shown(worker: WorkerClient, path: Path) -> str:
    """Return what a trace shows on a release."""
    try:
        violation = worker.run(load_trace(path)).violation
    except (TargetError, TraceError):
        return "refused"
    return violation.signature if violation else "-"


def fuzz(worker: WorkerClient, steps: int, seed: int, overrides: dict[str, object]) -> tuple[int, Counter[str]]:
    """Run random traces until `steps` steps have run; return their number and the signatures."""
    found: Counter[str] = Counter()
    done = first = 0
    while done < steps:  # a batch ends with its first violation
        for ran in worker.fuzz(Fuzz(seed, first, steps, overrides)):
            first += 1
            done += ran.outcome.steps
            if ran.outcome.violation:
                found[ran.outcome.violation.signature] += 1
            if done >= steps:
                break
    return done, found


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", nargs="+", default=RELEASES, metavar="V")
    parser.add_argument("--steps", type=int, default=0, help="run random traces instead, this many steps per release")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", nargs="*", default=[], metavar="K=V", help="settings that are not drawn")
    arguments = parser.parse_args()
    overrides: dict[str, object] = dict(one.split("=", 1) for one in arguments.config)
    for release in arguments.releases:
        began = time.monotonic()
        spec = f"vllm@{release}"
        with WorkerClient(spec, prepare(spec, lambda _: None), trace_seconds=300) as worker:
            worker.start()
            if arguments.steps:
                steps, found = fuzz(worker, arguments.steps, arguments.seed, overrides)
                print(f"{release}: {steps} steps in {time.monotonic() - began:.0f} s", flush=True)
                for signature, count in found.most_common():
                    print(f"    {count:4} {signature}", flush=True)
                continue
            cells = {path: shown(worker, path) for path in historical()}
        print(f"{release}: {time.monotonic() - began:.0f} s", flush=True)
        for path, cell in cells.items():
            print(f"    {path.stem.split('--')[1]:36} {cell}", flush=True)


if __name__ == "__main__":
    main()
