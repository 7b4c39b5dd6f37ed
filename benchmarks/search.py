"""How fast different sources of traces find the mutants: `python benchmarks/search.py [--only SLUG,...]`.

    workload    the product's: swarm, tight pools, shared prefixes, lengths at block boundaries
    uniform     plain uniform random events and configurations
    hypothesis  the state machine of `harness/hypothesis_machine.py` with Hypothesis's default settings
    feedback    the workload, half of the traces mutated from those that reached new states

Same target, same oracles. CPU seconds of one process each; traces (Hypothesis: examples) until the first violation.
Ratios are geometric means over mutants and seeds, against the workload; a run that found nothing counts what it
spent, which is a lower bound.
"""

from __future__ import annotations

import argparse
import time
import unittest
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import hypothesis
from recorded import Ask, Record
from sources import Feedback, Source, Uniform, Workload

from hybridfuzz.harness import hypothesis_machine
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.measure.detection.matrix import chosen_mutants
from hybridfuzz.harness.measure.detection.statistics import Detection, ratio, summarise
from hybridfuzz.harness.measure.detection.tables import pair
from hybridfuzz.targets.base.protocol import TargetFactory
from hybridfuzz.targets.base.registry import load_factory

SOURCES: dict[str, Callable[[TargetFactory, int], Source]] = {
    "workload": Workload,
    "uniform": Uniform,
    "feedback": Feedback,
}


def detect(ask: Ask, seconds: float) -> Detection:
    """One run; the variant is the source."""
    mutant, seed, source = ask.mutant, ask.seed, ask.variant
    if source == "hypothesis":
        return detect_with_hypothesis(mutant, seed, seconds)
    factory = load_factory(f"hybrid:{mutant}")
    traces = SOURCES[source](factory, seed)
    count = steps = 0
    began = time.process_time()
    while (spent := time.process_time() - began) < seconds:
        trace = traces.draw()
        outcome = run_trace(factory, trace)
        traces.learn(trace, outcome)
        count, steps = count + 1, steps + outcome.steps
        if outcome.violation:
            return found(mutant, seed, count, steps, time.process_time() - began, outcome.violation)
    return Detection(mutant, seed, count, steps, spent)


def found(mutant: str, seed: int, traces: int, steps: int, seconds: float, violation: Violation) -> Detection:
    """A run that ended with a violation."""
    return Detection(mutant, seed, traces, steps, seconds, violation.signature, violation.oracle, violation.message)


class Enough(KeyboardInterrupt):
    """Ends Hypothesis at once: it lets KeyboardInterrupt through."""


def detect_with_hypothesis(mutant: str, seed: int, seconds: float) -> Detection:
    """Runs of the machine, one seed after another, until a violation or the end of the time. No reduction."""
    began, counts, caught = time.process_time(), [0, 0], []

    class Machine(hypothesis_machine.HybridCacheMachine):
        def judge(self, violation: Violation | None) -> None:
            if violation:
                caught.append(violation)
                raise Enough

        def teardown(self) -> None:
            if not caught:
                super().teardown()
            if self.config is not None:
                counts[0] += 1
                counts[1] += self.lockstep.steps
            if time.process_time() - began > seconds:
                raise Enough

    run = hypothesis.settings(database=None, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
    case = Machine.for_target(f"hybrid:{mutant}", run=run)
    number = 0
    while not caught and time.process_time() - began < seconds:
        test = case("runTest")
        hypothesis.seed(seed * 1000 + number)(type(test).runTest)
        number += 1
        try:
            result = unittest.TestResult()
            test.run(result)
            assert result.wasSuccessful(), result.errors + result.failures
        except Enough:
            pass
    spent = time.process_time() - began
    if caught:
        return found(mutant, seed, counts[0] + 1, counts[1], spent, caught[0])
    return Detection(mutant, seed, counts[0], counts[1], spent)


def table(runs: dict[str, list[Detection]], mutants: Sequence[str]) -> str:
    """Markdown: per mutant and source found, traces and CPU seconds, ratios to the first source; then over all."""
    first, *others = runs
    lines = [
        f"| mutant | {first}: found, traces, CPU s | "
        + " | ".join(f"{source}: found, traces, CPU s | ratio of traces, CPU s" for source in others)
        + " |",
        "| --- | --- |" + " --- | --- |" * len(others),
    ]
    for mutant in mutants:
        mine = {source: [run for run in some if run.mutant == mutant] for source, some in runs.items()}
        cells = [spent(mine[first])]
        for source in others:
            traces, seconds = ratios(mine[source], mine[first])
            cells += [spent(mine[source]), f"x{traces:.2g}, x{seconds:.2g}"]
        lines.append(f"| {mutant} | " + " | ".join(cells) + " |")
    lines.append("")
    for source, some in runs.items():
        caught = sum(any(run.found for run in some if run.mutant == mutant) for mutant in mutants)
        every = sum(all(run.found for run in some if run.mutant == mutant) for mutant in mutants)
        traces, seconds = ratios(some, runs[first])
        lines.append(
            f"- {source}: {caught} of {len(mutants)} mutants found at least once, {every} with every seed; "
            f"traces x{traces:.2f}, CPU seconds x{seconds:.2f} of {first}"
        )
    return "\n".join(lines)


def spent(runs: Sequence[Detection]) -> str:
    """One mutant, one source: runs that found it, medians and worst."""
    row = summarise(runs[0].mutant, "", runs)
    return f"{row.found}/{row.runs}, {pair(row.traces)}, {pair(row.seconds)}"


def ratios(runs: Sequence[Detection], base: Sequence[Detection]) -> tuple[float, float]:
    """Geometric means of traces and of CPU seconds, run by run."""
    traces = ratio([run.traces for run in runs], [run.traces for run in base], 1)
    return traces, ratio([run.seconds for run in runs], [run.seconds for run in base], 0.01)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", default="workload,uniform,hypothesis,feedback")
    parser.add_argument("--only", default="", help="mutants, separated by commas (all)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="CPU seconds for each run")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--record", type=Path, help="keep the runs in this file, and go on from those in it")
    options = parser.parse_args()
    mutants = list(chosen_mutants("hybrid", [slug for slug in options.only.split(",") if slug]))
    record = Record(options.record)
    sources = options.sources.split(",")
    asked = [Ask(mutant, seed, source) for source in sources for mutant in mutants for seed in range(options.seeds)]
    with ProcessPoolExecutor(options.jobs) as executor:
        runs = record.measure(asked, detect, options.seconds, executor)
    by_source = {
        source: [run for ask, run in zip(asked, runs, strict=True) if ask.variant == source] for source in sources
    }
    print(table(by_source, mutants))


if __name__ == "__main__":
    main()
