"""An engine's own code coverage as feedback: `python benchmarks/engine_feedback.py --without CAUSE,... -o DIR`.

Compares the workload with `sources.Feedback` whose features are jumps between lines (arcs) of the engine's cache
modules, and pairs of arcs of which each is taken by less than --rare percent of the traces. The engine has the fixes of
all known causes but those of --without, so that a failing trace has met one of these. Prints, for each source and seed,
arcs, failing traces and CPU time after --steps steps (the tracer runs for both), then the causes: each failing trace is
run with each cause alone.

The script starts itself again in the engine's environment (`--inside`), where the traces run in one process. DIR gets
the failing traces.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from heapq import nsmallest
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from sources import Entry, Feedback, Source, Workload
from vllm_campaign import fixes_of

from hybridfuzz.harness.draw.files import load_trace, save_trace
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.record.engine_source import files_of
from hybridfuzz.harness.workers.client import WorkerClient
from hybridfuzz.targets.base.coverage_tool import with_coverage
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.overlay import patched
from hybridfuzz.targets.base.protocol import TargetFactory
from hybridfuzz.targets.base.registry import coverage_scope, load_factory, prepare
from hybridfuzz.targets.base.trace import Trace

if TYPE_CHECKING:
    from coverage import Coverage

Arc = tuple[str, int, int]


class ArcFeedback(Feedback):
    """Half of the traces are mutants of those that took an arc, or a pair of rare arcs, that none took before."""

    def __init__(self, factory: TargetFactory, seed: int, rare_percent: int) -> None:
        super().__init__(factory, seed)
        self.rare_percent = rare_percent
        self.arcs: set[Arc] = set()
        self.traces = 0

    def learn(self, trace: Trace, outcome: Outcome) -> None:
        """Keep a trace that reached something new; one that failed would only fail again."""
        self.traces += 1
        rare = sorted(arc for arc in self.arcs if self.seen[arc] * 100 < self.rare_percent * self.traces)
        features: set[object] = {*self.arcs, *combinations(rare, 2)}
        new = features - self.seen.keys()
        self.seen.update(features)
        if new and not outcome.violation:
            # Its energy is that of its rarest feature: a sample of the new ones is enough.
            self.entries.append(Entry(trace, set(nsmallest(50, new, key=repr))))
            if len(self.entries) > self.kept_max:
                self.entries.remove(min(self.entries, key=self.energy))


def measure(
    source: Source, factory: TargetFactory, tracer: Coverage, files: dict[str, str], steps_min: int
) -> tuple[str, list[Trace]]:
    """Return the cells of one source and seed, and its failing traces."""
    taken: set[Arc] = set()
    failing: list[Trace] = []
    signatures: set[str] = set()
    steps = traces = 0
    began = time.process_time()
    while steps < steps_min:
        trace = source.draw()
        tracer.start()
        outcome = run_trace(factory, trace)
        tracer.stop()
        data = tracer.get_data()
        arcs = {(files[file], *arc) for file in data.measured_files() for arc in data.arcs(file) or ()}
        tracer.erase()
        steps, traces = steps + outcome.steps, traces + 1
        taken |= arcs
        if outcome.violation:
            signatures.add(outcome.violation.signature)
            failing.append(trace)
        if isinstance(source, ArcFeedback):
            source.arcs = arcs
        source.learn(trace, outcome)
    seconds = time.process_time() - began
    return f"{steps:,} | {traces} | {len(taken):,} | {len(failing)} | {len(signatures)} | {seconds:.0f}", failing


def inside(target: str, modules: Sequence[str], seeds: int, steps: int, rare_percent: int, folder: Path) -> None:
    """Measure in the engine's environment."""
    from coverage import Coverage

    factory = load_factory(target)
    files = {os.path.realpath(path): name for name, path in files_of(modules).items()}
    tracer = Coverage(data_file=None, config_file=False, include=list(files), messages=False, branch=True)
    tracer.set_option("run:disable_warnings", ["no-data-collected"])
    print("| source | seed | steps | traces | arcs | failing | signatures | CPU s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for seed in range(1, seeds + 1):
        for name, source in (("workload", Workload(factory, seed)), ("arcs", ArcFeedback(factory, seed, rare_percent))):
            cells, failing = measure(source, factory, tracer, files, steps)
            print(f"| {name} | {seed} | {cells} |", flush=True)
            for number, trace in enumerate(failing):
                save_trace(trace, folder / f"{name}-{seed}-{number}.json")


def causes_of(target: str, launch: Launch, causes: Sequence[str], folder: Path) -> dict[str, set[str]]:
    """Return the causes that the failing traces of each source and seed have met."""
    met: dict[str, set[str]] = {}
    fixes = fixes_of(launch.version)
    for cause in causes:
        others = patched(launch, [fix for name, fix in fixes.items() if name != cause])
        with WorkerClient(target, others, trace_seconds=300) as worker:
            worker.start()
            for path in sorted(folder.glob("*.json")):
                if worker.run(load_trace(path)).violation:
                    met.setdefault(path.stem.rpartition("-")[0], set()).add(cause)
    return met


def main() -> None:
    """Start again in the engine's environment, or measure there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="vllm@0.33.0")
    parser.add_argument("--without", default="", help="causes that are not fixed, separated by commas")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6000, help="steps for each source and seed")
    parser.add_argument("--rare", type=int, default=20, help="percent of the traces below which an arc is rare")
    parser.add_argument("-o", dest="out", type=Path, required=True)
    parser.add_argument("--inside", nargs="+", metavar="MODULE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.target, options.inside, options.seeds, options.steps, options.rare, options.out)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    release = prepare(options.target, print)
    launch = with_coverage(release, print)
    without = [cause for cause in options.without.split(",") if cause]
    launch = patched(launch, [fix for name, fix in fixes_of(launch.version).items() if name not in without])
    path = os.pathsep.join([launch.env["PYTHONPATH"], str(Path(__file__).parent)])
    arguments = ["--target", options.target, "--seeds", str(options.seeds), "--steps", str(options.steps)]
    arguments += ["--rare", str(options.rare), "-o", str(options.out.absolute())]
    command = [launch.python, __file__, *arguments, "--inside", *coverage_scope(options.target).modules]
    ran = subprocess.run(command, env={**os.environ, **launch.env, "PYTHONPATH": path}, check=False)
    if ran.returncode:
        sys.exit(ran.returncode)
    for source, causes in sorted(causes_of(options.target, release, without, options.out).items()):
        print(f"{source}: {len(causes)} causes: {', '.join(sorted(causes))}")


if __name__ == "__main__":
    main()
