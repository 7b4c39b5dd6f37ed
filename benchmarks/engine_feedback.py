"""An engine's own code coverage as feedback: `python benchmarks/engine_feedback.py --seeds 2 --without CAUSE,...`.

Compares the workload with `sources.Feedback` whose features are jumps between lines (arcs) of the engine's cache
modules, and pairs of arcs that few traces take. The engine has the fixes of all known causes but those of --without, so
that a failing trace has met one of these. Prints, for each source and seed: arcs, pairs and failing traces after
--steps steps. The tracer runs for both.

The script starts itself again in the engine's environment (`--inside`), where the traces run in one process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from hybridfuzz.harness.coverage.source import files_of
from hybridfuzz.harness.lockstep.run import run_trace
from hybridfuzz.harness.traces.outcome import Outcome
from hybridfuzz.targets.base.coverage_tool import with_coverage
from hybridfuzz.targets.base.overlay import patched
from hybridfuzz.targets.base.protocol import TargetFactory
from hybridfuzz.targets.base.registry import coverage_scope, load_factory, prepare
from hybridfuzz.targets.base.trace import Trace
from sources import Entry, Feedback, Source, Workload

if TYPE_CHECKING:
    from coverage import Coverage

RARE_PERCENT = 20
"""An arc is rare if fewer of the traces so far took it."""
Arc = tuple[str, int, int]


class ArcFeedback(Feedback):
    """Half of the traces are mutants of those that took an arc, or a pair of rare arcs, that none took before."""

    def __init__(self, factory: TargetFactory, seed: int) -> None:
        super().__init__(factory, seed)
        self.arcs: set[Arc] = set()
        self.traces = 0

    def learn(self, trace: Trace, outcome: Outcome) -> None:
        """Keep a trace that reached something new; one that failed would only fail again."""
        self.traces += 1
        rare = sorted(arc for arc in self.arcs if self.seen[arc] * 100 < RARE_PERCENT * self.traces)
        features: set[object] = {*self.arcs, *combinations(rare, 2)}
        new = features - self.seen.keys()
        self.seen.update(features)
        if new and not outcome.violation:
            # Its energy is that of its rarest feature: a sample of the new ones is enough.
            self.entries.append(Entry(trace, set(sorted(new, key=repr)[:50])))
            if len(self.entries) > self.kept_max:
                self.entries.remove(min(self.entries, key=self.energy))


def measure(source: Source, factory: TargetFactory, tracer: Coverage, files: dict[str, str], steps_min: int) -> str:
    """Return the cells of one source and seed."""
    taken: Counter[Arc] = Counter()
    failures: Counter[str] = Counter()
    steps = traces = 0
    pairs: set[tuple[Arc, Arc]] = set()
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
        taken.update(arcs)
        pairs.update(combinations(sorted(arc for arc in arcs if taken[arc] * 100 < RARE_PERCENT * traces), 2))
        if outcome.violation:
            failures[outcome.violation.signature] += 1
        if isinstance(source, ArcFeedback):
            source.arcs = arcs
        source.learn(trace, outcome)
    return (
        f"{steps:,} | {traces} | {len(taken):,} | {len(pairs):,} | {failures.total()} | {len(failures)} | "
        f"{time.process_time() - began:.0f}"
    )


def inside(target: str, modules: Sequence[str], seeds: int, steps: int) -> None:
    """Measure in the engine's environment."""
    from coverage import Coverage

    factory = load_factory(target)
    files = {os.path.realpath(path): name for name, path in files_of(modules).items()}
    tracer = Coverage(data_file=None, config_file=False, include=list(files), messages=False, branch=True)
    tracer.set_option("run:disable_warnings", ["no-data-collected"])
    print("| source | seed | steps | traces | arcs | pairs of rare arcs | failing | signatures | CPU s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for seed in range(1, seeds + 1):
        for name, kind in (("workload", Workload), ("arcs as feedback", ArcFeedback)):
            cells = measure(kind(factory, seed), factory, tracer, files, steps)
            print(f"| {name} | {seed} | {cells} |", flush=True)


def main() -> None:
    """Start again in the engine's environment, or measure there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="vllm@0.33.0")
    parser.add_argument("--without", default="", help="causes that are not fixed, separated by commas")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6000, help="steps for each source and seed")
    parser.add_argument("--inside", nargs="+", metavar="MODULE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.target, options.inside, options.seeds, options.steps)
        return
    from vllm_campaign import fixes_of

    launch = with_coverage(prepare(options.target, print), print)
    without = [cause for cause in options.without.split(",") if cause]
    launch = patched(launch, [fix for name, fix in fixes_of(launch.version).items() if name not in without])
    path = os.pathsep.join([launch.env["PYTHONPATH"], str(Path(__file__).parent)])
    arguments = ["--target", options.target, "--seeds", str(options.seeds), "--steps", str(options.steps)]
    command = [launch.python, __file__, *arguments, "--inside", *coverage_scope(options.target).modules]
    sys.exit(subprocess.run(command, env={**os.environ, **launch.env, "PYTHONPATH": path}, check=False).returncode)


if __name__ == "__main__":
    main()
