"""The figures of the documentation that need no engine: `make bench`, or `python benchmarks/run.py [--seconds N]`.

Steps a second of the embedded target in lockstep, from the seeded source and from Hypothesis, in
CPU seconds of one process, so that other work on the machine disturbs little. Where it disturbs much
all the same, count instructions: `valgrind --tool=cachegrind --cache-sim=no python benchmarks/run.py
--traces N` for two N, and take the difference.
"""

from __future__ import annotations

import argparse
import platform
import tempfile
import time
import unittest
from pathlib import Path

from hypothesis import settings

from hybridfuzz.harness import hypothesis_machine
from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.registry import load_factory


def additions() -> float:
    """CPU seconds of ten million additions in a plain loop, next to which a rate has to be read."""
    start, total = time.process_time(), 0
    for number in range(10_000_000):
        total += number
    return time.process_time() - start


def seeded(seconds: float, traces: int) -> tuple[int, float]:
    """Steps and CPU seconds of the seeded source: so many traces, or as many as fit into `seconds` for 0."""
    factory = load_factory("hybrid")
    start, steps, index = time.process_time(), 0, 0
    while index < traces if traces else time.process_time() - start < seconds:
        trace = draw_trace(factory.capabilities, 1, index, {}, factory.supports)
        outcome = run_trace(factory, trace)
        assert outcome.violation is None, outcome.violation.message
        steps, index = steps + outcome.steps, index + 1
    return steps, time.process_time() - start


def hypothesis_throughput(examples: int) -> float:
    """Steps a second from the Hypothesis state machine."""
    steps = 0

    class Machine(hypothesis_machine.HybridCacheMachine):
        def teardown(self) -> None:
            super().teardown()
            nonlocal steps
            if self.config is not None:
                steps += self.lockstep.steps

    run = settings(hypothesis_machine.profile("gate"), max_examples=examples, derandomize=False)
    case = Machine.for_target("hybrid", run=run)("runTest")
    start = time.process_time()
    result = unittest.TestResult()
    case.run(result)
    assert result.wasSuccessful(), result.errors + result.failures
    return steps / (time.process_time() - start)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0, help="CPU seconds for the throughput measurement")
    parser.add_argument("--traces", type=int, default=0, help="the seeded source alone, for so many traces")
    arguments = parser.parse_args()
    if arguments.traces:
        print("{} steps, {:.2f} s".format(*seeded(0, arguments.traces)))
        return
    print(f"Python {platform.python_version()}, {platform.machine()}, {platform.system()}")
    print(f"ten million additions in a plain loop: {additions():.2f} s\n")
    steps, seconds = seeded(arguments.seconds, 0)
    print(f"seeded source          {steps / seconds:8,.0f} steps/s per core")
    with tempfile.TemporaryDirectory() as folder:
        hypothesis_machine.HybridCacheMachine.directory = Path(folder)
        print(f"Hypothesis machine     {hypothesis_throughput(40):8,.0f} steps/s per core\n")


if __name__ == "__main__":
    main()
