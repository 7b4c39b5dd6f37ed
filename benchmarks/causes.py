"""Steps until each known cause of an engine is first met: `python benchmarks/causes.py --record DIR`.

All causes share the traces of a seed. A cause is met by a trace that fails on the engine with the fixes of all others.
Trying each trace with each cause would take hours, so common causes are separated from rare ones:

    soon  the traces of the first --soon steps of each seed run on the engine as released. Those that fail are tried
          with each cause. What is silent on the release is taken to meet none, so these figures are upper bounds.
    late  all traces of --steps steps of each seed run on the engine without the fixes of the causes that some seed has
          not met soon, or that are known to be --rare. Those that fail are tried with each of these causes.

Steps do not depend on the machine. CPU seconds are those of the first run of each trace, up to the one that meets the
cause. DIR keeps what is measured: the same command continues.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
from vllm_campaign import fixes_of

from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Trace

STEPS_MAX = 20_000
STEPS_SOON = 2_500
BATCH = 16


class Met(msgspec.Struct, frozen=True):
    """One trace of a seed: steps, CPU seconds, and the trace itself if it failed."""

    steps: int
    seconds: float
    trace: Trace | None = None


class Tried(msgspec.Struct, frozen=True):
    """A failing trace of a seed on the engine with all fixes but that of a cause, and how many steps it took there; no
    signature if it was silent."""

    cause: str
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


def engine_of(target: str) -> str:
    """Return a target's name without variant and release."""
    return re.split("[@:]", target)[0]


class Record:
    """The folder of a measurement: a file of `Met` for each pass and seed, and one of `Tried`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def traces(self, run: str, seed: int) -> list[Met]:
        """Return the traces of a pass and a seed so far."""
        path = self.folder / f"{run}-{seed}.jsonl"
        return msgspec.json.Decoder(Met).decode_lines(path.read_bytes()) if path.exists() else []

    def add_trace(self, run: str, seed: int, met: Met) -> None:
        """Append a trace."""
        with (self.folder / f"{run}-{seed}.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(met) + b"\n")

    def tried(self) -> list[Tried]:
        """Return what was tried so far."""
        path = self.folder / "tried.jsonl"
        return msgspec.json.Decoder(Tried).decode_lines(path.read_bytes()) if path.exists() else []

    def add_tried(self, tried: Tried) -> None:
        """Append a result."""
        with (self.folder / "tried.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(tried) + b"\n")


@dataclass
class Measurement:
    """Runs what the record lacks."""

    target: str
    launch: Launch
    record: Record
    seeds: Sequence[int]
    jobs: int = 1

    def __post_init__(self) -> None:
        self.fixes = fixes_of(self.launch.version, engine_of(self.target))
        self.known = {(tried.cause, tried.seed, tried.index): tried for tried in self.record.tried()}

    def _start(self, live: Sequence[str]) -> WorkerClient:
        """Start the engine with the fixes of all causes but some, which are live."""
        fixes = [fix for name, fix in self.fixes.items() if name not in live]
        worker = WorkerClient(self.target, patched(self.launch, fixes) if fixes else self.launch, trace_seconds=300)
        worker.start()
        return worker

    def search(self, run: str, live: Sequence[str], steps_max: int) -> None:
        """Run the traces of each seed on the engine on which some causes are live."""

        def of_seed(seed: int) -> None:
            known = self.record.traces(run, seed)
            index, steps = len(known), sum(met.steps for met in known)
            worker = self._start(live) if steps < steps_max else None
            while worker and steps < steps_max:
                for ran in worker.fuzz(Fuzz(seed, index, BATCH, {})):
                    if steps >= steps_max:
                        continue  # the worker runs its batch to the end
                    failing = ran.trace if ran.outcome.violation else None
                    self.record.add_trace(run, seed, Met(ran.outcome.steps, ran.seconds, failing))
                    index, steps = ran.index + 1, steps + ran.outcome.steps
            if worker:
                worker.__exit__()
            print(f"{run}: seed {seed}: {steps} steps, {index} traces", flush=True)

        self._each(of_seed, self.seeds)

    def _each(self, work: Callable[[Any], None], items: Sequence[Any]) -> None:
        """Do work for each item, `jobs` at a time."""
        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(work, items))

    def attempt(self, run: str, cause: str, seeds: Sequence[int]) -> None:
        """Try the failing traces of seeds with a cause, up to the first that meets it."""
        worker = None
        for seed in seeds:
            for index, met in enumerate(self.record.traces(run, seed)):
                tried = self.known.get((cause, seed, index))
                if met.trace and tried is None:
                    worker = worker or self._start([cause])
                    outcome = worker.run(met.trace)
                    signature = outcome.violation.signature if outcome.violation else ""
                    tried = self.known[cause, seed, index] = Tried(cause, seed, index, signature, outcome.steps)
                    self.record.add_tried(tried)
                if tried and tried.signature:
                    break
        if worker:
            worker.__exit__()

    def first(self, cause: str, seed: int) -> First:
        """Return when a seed first meets a cause, as far as it was tried."""
        soon, late = self.record.traces("soon", seed), self.record.traces("late", seed)
        steps, seconds = 0, 0.0
        for index, met in enumerate(late if len(late) > len(soon) else soon):
            steps, seconds = steps + met.steps, seconds + met.seconds
            tried = self.known.get((cause, seed, index))
            if tried and tried.signature:
                return First(cause, seed, steps, seconds, tried.signature, tried.steps)
        return First(cause, seed, seconds=seconds)

    def run(self, causes: Sequence[str], known_rare: Sequence[str], steps: int, soon: int) -> None:
        """Run both passes of the module's docstring."""
        self.search("soon", list(self.fixes), soon)

        def try_soon(cause: str) -> None:
            self.attempt("soon", cause, self.seeds)
            print("\n".join(str(self.first(cause, seed)) for seed in self.seeds), flush=True)

        self._each(try_soon, [cause for cause in causes if cause not in known_rare])
        rare = [cause for cause in causes if not all(self.first(cause, seed).steps for seed in self.seeds)]
        if not rare:
            return
        self.search("late", rare, steps)

        def try_late(cause: str) -> None:
            self.attempt("late", cause, [seed for seed in self.seeds if not self.first(cause, seed).steps])
            print("\n".join(str(self.first(cause, seed)) for seed in self.seeds), flush=True)

        self._each(try_late, rare)


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
    parser.add_argument("--rare", default="", help="causes that are not tried soon, separated by commas")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS_MAX, help="steps for each seed")
    parser.add_argument("--soon", type=int, default=STEPS_SOON, help="steps of each seed on the engine as released")
    parser.add_argument("--jobs", type=int, default=1, help="workers at a time")
    parser.add_argument("--record", type=Path, required=True, help="folder of the measurement")
    options = parser.parse_args()
    launch = prepare(options.target, print)
    causes = [cause for cause in options.only.split(",") if cause] or list(
        fixes_of(launch.version, engine_of(options.target))
    )
    record = Record(options.record)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    measurement = Measurement(options.target, launch, record, seeds, options.jobs)
    measurement.run(causes, options.rare.split(","), options.steps, options.soon)
    firsts = [measurement.first(cause, seed) for cause in causes for seed in seeds]
    print("\n".join(table(causes, firsts, options.steps)))


if __name__ == "__main__":
    main()
