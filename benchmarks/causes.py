"""Steps until each known cause of an engine is first met: `python benchmarks/causes.py --record DIR`.

All causes share the traces of a seed. They run on the engine as released first, up to --steps for each seed. A trace
that is silent there is taken to meet none of the causes. A failing one meets a cause if it fails on the engine with the
fixes of all others. What is tried, is limited:

    1. for each cause, traces of the first --soon steps of each seed. Most causes are met there.
    2. the other traces once, on the engine without the fixes of any cause that some seed has not met yet. What is
       silent there meets none of these causes.
    3. for each of these causes, the traces that failed there

An engine starts once for each cause in 1 and once in 3, for all seeds. Steps do not depend on the machine. CPU seconds
are those of the engine as released, up to the same trace. DIR keeps what is measured: the same command continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
from hybridfuzz.harness.workers.client import WorkerClient
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.overlay import patched
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Trace
from vllm_campaign import fixes_of

STEPS_MAX = 20_000
STEPS_SOON = 2_500
BATCH = 16


class Met(msgspec.Struct, frozen=True):
    """One trace of a seed: steps, CPU seconds, and the trace itself if it failed."""

    steps: int
    seconds: float
    trace: Trace | None = None


class Tried(msgspec.Struct, frozen=True):
    """A failing trace of a seed on the engine without the fixes of some causes, and how many steps it took there; no
    signature if it was silent."""

    causes: tuple[str, ...]
    seed: int
    index: int
    signature: str
    steps: int


class First(NamedTuple):
    """Steps and CPU seconds of a seed until a cause is first met; `steps` is 0 if it is not. `inside` counts the steps
    of the trace itself, with all other causes fixed."""

    cause: str
    seed: int
    steps: int = 0
    seconds: float = 0.0
    signature: str = ""
    inside: int = 0


class Record:
    """The folder of a measurement: a file of `Met` for each seed, and one of `Tried`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def traces(self, seed: int) -> list[Met]:
        """Return the traces of a seed so far."""
        path = self.folder / f"seed-{seed}.jsonl"
        return msgspec.json.Decoder(Met).decode_lines(path.read_bytes()) if path.exists() else []

    def add_trace(self, seed: int, met: Met) -> None:
        """Append a trace."""
        with (self.folder / f"seed-{seed}.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(met) + b"\n")

    def tried(self) -> list[Tried]:
        """Return what was tried so far."""
        path = self.folder / "tried.jsonl"
        return msgspec.json.Decoder(Tried).decode_lines(path.read_bytes()) if path.exists() else []

    def add_tried(self, tried: Tried) -> None:
        """Append a result."""
        with (self.folder / "tried.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(tried) + b"\n")


def run_seed(worker: WorkerClient, record: Record, seed: int, steps_max: int) -> None:
    """Run the traces of a seed on the engine as released."""
    known = record.traces(seed)
    index, steps = len(known), sum(met.steps for met in known)
    while steps < steps_max:
        for ran in worker.fuzz(Fuzz(seed, index, BATCH, {})):
            failing = ran.trace if ran.outcome.violation else None
            record.add_trace(seed, Met(ran.outcome.steps, ran.seconds, failing))
            index, steps = ran.index + 1, steps + ran.outcome.steps
            if steps >= steps_max:
                break
    print(f"seed {seed}: {steps} steps, {index} traces", flush=True)


@dataclass
class Measurement:
    """Runs what the record lacks."""

    target: str
    launch: Launch
    record: Record
    seeds: Sequence[int]

    def __post_init__(self) -> None:
        self.fixes = fixes_of(self.launch.version)
        self.traces = {seed: self.record.traces(seed) for seed in self.seeds}
        self.known = {(tried.causes, tried.seed, tried.index): tried for tried in self.record.tried()}

    def failing(self, seed: int, first: int, last: int) -> list[int]:
        """Return the failing traces that begin within these steps of a seed."""
        begins = accumulate((met.steps for met in self.traces[seed]), initial=0)
        return [
            index
            for index, (begin, met) in enumerate(zip(begins, self.traces[seed], strict=False))
            if met.trace and first <= begin < last
        ]

    def attempt(self, causes: Sequence[str], wanted: Mapping[int, Sequence[int]], *, stop: bool) -> None:
        """Try traces of seeds on the engine with all fixes but those of `causes`; `stop` at a seed's first failure."""
        key, worker = tuple(causes), None
        try:
            for seed, indexes in wanted.items():
                for index in indexes:
                    tried = self.known.get((key, seed, index))
                    if tried is None:
                        worker = worker or self._start(causes)
                        trace = self.traces[seed][index].trace
                        assert trace
                        outcome = worker.run(trace)
                        signature = outcome.violation.signature if outcome.violation else ""
                        tried = self.known[key, seed, index] = Tried(key, seed, index, signature, outcome.steps)
                        self.record.add_tried(tried)
                    if stop and tried.signature:
                        break
        finally:
            if worker:
                worker.__exit__()

    def _start(self, causes: Sequence[str]) -> WorkerClient:
        others = [fix for name, fix in self.fixes.items() if name not in causes]
        worker = WorkerClient(self.target, patched(self.launch, others), trace_seconds=300)
        worker.start()
        return worker

    def first(self, cause: str, seed: int) -> First:
        """Return when a seed first meets a cause, as far as it was tried."""
        steps, seconds = 0, 0.0
        for index, met in enumerate(self.traces[seed]):
            steps, seconds = steps + met.steps, seconds + met.seconds
            tried = self.known.get(((cause,), seed, index))
            if tried and tried.signature:
                return First(cause, seed, steps, seconds, tried.signature, tried.steps)
        return First(cause, seed, seconds=seconds)

    def run(self, causes: Sequence[str], steps: int, soon: int) -> None:
        """Try traces in the three passes of the module's docstring."""
        for cause in causes:
            self.attempt([cause], {seed: self.failing(seed, 0, soon) for seed in self.seeds}, stop=True)
            print(*(self.first(cause, seed) for seed in self.seeds), sep="\n", flush=True)
        rare = [cause for cause in causes if not all(self.first(cause, seed).steps for seed in self.seeds)]
        if not rare:
            return
        later = {seed: self.failing(seed, soon, steps) for seed in self.seeds}
        self.attempt(rare, later, stop=False)
        for cause in rare:
            suspects = {
                seed: [index for index in indexes if self.known[tuple(rare), seed, index].signature]
                for seed, indexes in later.items()
                if not self.first(cause, seed).steps
            }
            self.attempt([cause], suspects, stop=True)
            print(*(self.first(cause, seed) for seed in suspects), sep="\n", flush=True)


def table(causes: Sequence[str], firsts: Sequence[First], steps_max: int) -> Iterator[str]:
    """Yield lines of Markdown: steps of each seed in ascending order, their median, and that of CPU seconds."""
    yield "| cause | steps, by seed | median | CPU s |"
    yield "| --- | --- | ---: | ---: |"
    for cause in causes:
        own = sorted((first for first in firsts if first.cause == cause), key=lambda one: one.steps or 1 << 60)
        if not own:
            continue
        steps = ", ".join(f"{one.steps:,}" if one.steps else "never" for one in own)
        middle = own[(len(own) - 1) // 2].steps
        shown = f"{middle:,}" if middle else f"over {steps_max:,}"
        yield f"| {cause} | {steps} | {shown} | {median(one.seconds for one in own):.0f} |"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="vllm@0.33.0")
    parser.add_argument("--only", default="", help="causes, separated by commas (all)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS_MAX, help="steps for each seed")
    parser.add_argument("--soon", type=int, default=STEPS_SOON, help="steps of which each failing trace is tried")
    parser.add_argument("--record", type=Path, required=True, help="folder of the measurement")
    options = parser.parse_args()
    launch = prepare(options.target, print)
    causes = [cause for cause in options.only.split(",") if cause] or list(fixes_of(launch.version))
    record = Record(options.record)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    with WorkerClient(options.target, launch, trace_seconds=300) as worker:
        worker.start()
        for seed in seeds:
            run_seed(worker, record, seed, options.steps)
    measurement = Measurement(options.target, launch, record, seeds)
    measurement.run(causes, options.steps, options.soon)
    firsts = [measurement.first(cause, seed) for cause in causes for seed in seeds]
    print("\n".join(table(causes, firsts, options.steps)))


if __name__ == "__main__":
    main()
