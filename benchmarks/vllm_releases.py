"""Packaged traces of historical bugs on every vLLM release, and random steps on each: the tables of vllm-releases.md.

    python benchmarks/vllm_releases.py --out cells.json       each trace on each release; prints the table
    python benchmarks/vllm_releases.py --out cells.json --releases 0.16.0 0.17.1 --traces '*null*'
    python benchmarks/vllm_releases.py --steps 20000          random traces: signatures and how often each was seen
    python benchmarks/vllm_releases.py --steps 20000 --fixes --releases 0.16.0 --config mamba_cache_mode=align

A trace is one of corpus/vllm of a release before 0.28, or of the V1 runner; not of the V2 runner, which starts at 0.25.
--out keeps all cells: a later run adds to them or replaces them. A cell is the signature, "-" for a silent release, or
"refused" where the release cannot be configured so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections import Counter
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path

from hybridfuzz.harness.draw.trace_files import load_trace, save_trace
from hybridfuzz.harness.group.known.fixes import BUILTIN, apply_fixes, read_fixes
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.pip import version_numbers
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import TraceError

CORPUS = Path(__file__).parents[1] / "corpus" / "vllm"
RELEASES = (
    "0.14.1", "0.15.1", "0.16.0", "0.17.1", "0.18.1", "0.19.1", "0.20.2", "0.21.0", "0.22.1", "0.23.0", "0.24.0",
    "0.25.1", "0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0",
)  # fmt: skip
SILENT, REFUSED = "-", "refused"

Cells = dict[str, dict[str, str]]
"""Trace -> release -> cell."""


def historical(pattern: str) -> list[Path]:
    """Return the packaged traces of releases before 0.28 and those of the V1 runner whose names match, none of V2."""
    found = []
    for path in sorted(CORPUS.glob("*--*--*.json")):
        release, cause, _ = path.stem.split("--")
        old = version_numbers(release) < version_numbers("0.28.0") and not cause.endswith("-v2")
        if path.match(pattern) and (old or cause.endswith("-v1")):
            found.append(path)
    return found


def shown(worker: WorkerClient, path: Path) -> str:
    """Return what a trace shows on a release."""
    try:
        violation = worker.run(load_trace(path)).violation
    except (TargetError, TraceError):
        return REFUSED
    return violation.signature if violation else SILENT


def launch_of(spec: str, fixes: bool) -> Launch:
    """Return the launch of a release, with all of its packaged patches if `fixes`."""
    launch = prepare(spec, lambda _: None)
    if not fixes:
        return launch
    applied = apply_fixes(launch, read_fixes(BUILTIN, spec), spec, datetime.date.today())
    for title, problem in applied.problems.items():
        print(f"    {title} is not applied: {problem}", flush=True)
    return applied.launch


def fuzz(
    worker: WorkerClient, steps: int, seed: int, overrides: dict[str, object], keep: Path | None
) -> tuple[int, Counter[str]]:
    """Run random traces until `steps` steps have run; return their number and the signatures with their counts.

    Failing traces are saved to the folder `keep`.
    """
    found: Counter[str] = Counter()
    done = first = 0
    while done < steps:  # a batch ends with its first violation
        for ran in worker.fuzz(Fuzz(seed, first, steps, overrides)):
            done += ran.outcome.steps
            if ran.outcome.violation:
                found[ran.outcome.violation.signature] += 1
                print(f"        trace {first}: {ran.outcome.violation.message[:200]}", flush=True)
                if keep and ran.trace:
                    save_trace(ran.trace, keep / f"{worker.spec}-{first}--{ran.outcome.violation.signature}.json")
            first += 1
            if done >= steps:
                break
    return done, found


def table(cells: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return a row per trace: where it fails as its name says, and what the other releases show."""
    lines = ["| Trace | Fails | Elsewhere |", "| --- | --- | --- |"]
    for name, row in sorted(cells.items()):
        release, cause, signature = name.split("--")
        ordered = [(one, row[one]) for one in sorted(row, key=version_numbers)]
        runs = [(cell, [one for one, _ in run]) for cell, run in groupby(ordered, key=lambda pair: pair[1])]
        spans = [(cell, run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}") for cell, run in runs]
        bad = ", ".join(span for cell, span in spans if cell == signature)
        words = {SILENT: "silent", REFUSED: "refused"}
        others = "; ".join(f"{words.get(cell, cell)} {span}" for cell, span in spans if cell != signature)
        lines.append(f"| {cause} ({signature}, of {release}) | {bad} | {others} |")
    return lines


def run_traces(worker: WorkerClient, release: str, paths: list[Path], cells: Cells) -> None:
    """Fill in a release's cells."""
    for path in paths:
        cell = cells.setdefault(path.stem, {})[release] = shown(worker, path)
        print(f"    {path.stem.split('--')[1]:36} {cell}", flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", nargs="*", default=RELEASES, metavar="V")
    parser.add_argument("--traces", default="*", metavar="GLOB", help="names of trace files")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON file of all cells, kept between runs")
    parser.add_argument("--steps", type=int, default=0, help="run random traces instead, this many steps per release")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", nargs="*", default=[], metavar="K=V", help="settings that are not drawn")
    parser.add_argument("--fixes", action="store_true", help="apply the packaged patches of each release")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="save failing random traces there")
    arguments = parser.parse_args()
    overrides: dict[str, object] = dict(one.split("=", 1) for one in arguments.config)
    out: Path | None = arguments.out
    cells: Cells = json.loads(out.read_text(encoding="utf-8")) if out and out.exists() else {}
    for release in arguments.releases:
        began = time.monotonic()
        spec = f"vllm@{release}"
        print(f"{release}:", flush=True)
        with WorkerClient(spec, launch_of(spec, arguments.fixes), trace_seconds=300) as worker:
            worker.start()
            if arguments.steps:
                steps, found = fuzz(worker, arguments.steps, arguments.seed, overrides, arguments.keep)
                print(f"    {steps} steps", flush=True)
                for signature, count in found.most_common():
                    print(f"    {count:4} {signature}", flush=True)
            else:
                run_traces(worker, release, historical(arguments.traces), cells)
        print(f"    {time.monotonic() - began:.0f} s", flush=True)
        if out and not arguments.steps:
            out.write_text(json.dumps(cells, indent=1, sort_keys=True), encoding="utf-8")
    if not arguments.steps:
        print("\n".join(table(cells)))


if __name__ == "__main__":
    main()
