"""A long campaign on released vLLM in which every violation must be explained.

    python benchmarks/vllm_campaign.py --target vllm@0.33.0 --steps 50000 --seed 1 -o out

A violation ends its trace, the campaign goes on. Each violating trace is then run on copies of the same release in
which one cause named in docs/explanation/vllm.md is fixed (corpus/vllm/fixes): the copy on which it stays silent names
the cause. A trace that no fix silences is *unexplained*; it is saved, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections import Counter
from pathlib import Path

from hybridfuzz.harness.draw.trace_files import save_trace
from hybridfuzz.harness.group.known.fixes import BUILTIN, read_fixes
from hybridfuzz.harness.group.known.known_toml import fitting
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.patches import Patch
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Trace


def fixes_of(release: str, engine: str = "vllm") -> dict[str, Patch]:
    """Return the packaged fixes of an engine's release by the name of their cause."""
    known = fitting(read_fixes(BUILTIN, engine), engine, release, datetime.date.today())
    return {entry.title: entry.read_patch() for entry in known if entry.patch}


class Suspects:
    """Fixed copies of one release, each with a worker that is started when it is first needed."""

    def __init__(self, target: str, later: str) -> None:
        launch = prepare(target, print)
        fixes = fixes_of(launch.version)
        self.launches = {name: (target, patched(launch, [patch])) for name, patch in fixes.items()}
        self.workers: dict[str, WorkerClient] = {}
        if later:
            after = prepare(later, print)
            self.launches["silent on the later release"] = later, patched(after, [*fixes_of(after.version).values()])
        if len(fixes) > 1:
            self.launches["all fixes together"] = target, patched(launch, [*fixes.values()])

    def explain(self, trace: Trace) -> str:
        """The first suspect on which the trace is silent, or ""."""
        for name, (spec, launch) in self.launches.items():
            if name not in self.workers:
                self.workers[name] = WorkerClient(spec, launch, trace_seconds=300)
                self.workers[name].start()
            if self.workers[name].run(trace).violation is None:
                return name
        return ""

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers.values():
            worker.__exit__()


def overrides_of(text: str) -> dict[str, object]:
    """`key=value,...` as a mapping."""
    return dict(pair.split("=", 1) for pair in text.split(",")) if text else {}


def campaign(arguments: argparse.Namespace, suspects: Suspects, out: Path) -> dict[str, object]:
    """Run until the steps are done; returns what was counted."""
    launch = prepare(arguments.target, print)
    steps, traces, index = 0, 0, 0
    causes: Counter[str] = Counter()
    configurations: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    started = time.monotonic()
    with WorkerClient(arguments.target, launch, trace_seconds=300) as worker:
        worker.start()
        while steps < arguments.steps:
            for ran in worker.fuzz(Fuzz(arguments.seed, index, 25, overrides_of(arguments.config))):
                steps, traces, index = steps + ran.outcome.steps, traces + 1, ran.index + 1
                reached.update(ran.outcome.reached)
                violation = ran.outcome.violation
                if violation is None:
                    continue
                trace = ran.trace or worker.draw(arguments.seed, ran.index, overrides_of(arguments.config))
                cause = suspects.explain(trace)
                print(f"trace {ran.index}: {violation.signature}: {cause or 'UNEXPLAINED'}", flush=True)
                causes[f"{violation.signature}: {cause or 'UNEXPLAINED'}"] += 1
                configurations[f"{trace.config.options.get('runner')}/{cause}"] += 1
                if not cause:
                    save_trace(trace, out / f"unexplained-{violation.signature}-{ran.index}.json")
                    print(f"UNEXPLAINED trace {ran.index}: {violation.message}", flush=True)
            seconds = time.monotonic() - started
            print(f"{steps} steps, {traces} traces, {seconds:.0f} s, {sum(causes.values())} violations", flush=True)
    return {
        "target": arguments.target, "seed": arguments.seed, "config": arguments.config, "steps": steps,
        "traces": traces, "seconds": round(time.monotonic() - started), "violations": dict(causes),
        "by runner": dict(configurations), "reached": dict(reached),
    }  # fmt: skip


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="vllm@0.33.0")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--config", default="", help="key=value,... as for `hybridfuzz fuzz`")
    parser.add_argument("--later", default="", help="a later release, its causes fixed, as a further suspect")
    parser.add_argument("-o", dest="out", type=Path, default=Path("reports/out/vllm-campaign"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    suspects = Suspects(arguments.target, arguments.later)
    try:
        result = campaign(arguments, suspects, arguments.out)
    finally:
        suspects.close()
    (arguments.out / "campaign.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    return int(any("UNEXPLAINED" in cause for cause in result["violations"]))  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
