"""Steps until each known cause of an engine is first met: `python benchmarks/causes.py --record DIR`.

All causes share the traces of a seed. They run on the engine as released first, up to --steps for each seed. A trace
that is silent there meets none of the causes. Each failing one then runs once for each cause that its seed has not met
yet, on the engine with the fixes of all others: if it fails there, it meets that cause. This costs little more than one
campaign, where a campaign for each cause costs ten.

Steps do not depend on the machine. CPU seconds are those of the engine as released, up to the same trace. DIR keeps
what is measured: the same command continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec
from hybridfuzz.harness.workers.client import WorkerClient
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.overlay import patched
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Trace
from vllm_campaign import fixes_of

STEPS_MAX = 20_000
BATCH = 16


class Met(msgspec.Struct, frozen=True):
    """One trace of a seed: steps, CPU seconds, and the trace itself if it failed."""

    steps: int
    seconds: float
    trace: Trace | None = None


class First(msgspec.Struct, frozen=True):
    """Steps and CPU seconds of a seed until a cause is first met; `steps` is 0 if it is not."""

    cause: str
    seed: int
    steps: int
    seconds: float
    signature: str


class Record:
    """The folder of a measurement: a file of `Met` for each seed, and one of `First`."""

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

    def firsts(self) -> list[First]:
        """Return the results so far."""
        path = self.folder / "first.jsonl"
        return msgspec.json.Decoder(First).decode_lines(path.read_bytes()) if path.exists() else []

    def add_first(self, first: First) -> None:
        """Append a result."""
        with (self.folder / "first.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(first) + b"\n")


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


def first_of(worker: WorkerClient, cause: str, seed: int, traces: Sequence[Met]) -> First:
    """Return when a seed first meets a cause, given a worker with every other cause fixed."""
    steps, seconds = 0, 0.0
    for met in traces:
        steps, seconds = steps + met.steps, seconds + met.seconds
        if met.trace and (violation := worker.run(met.trace).violation):
            return First(cause, seed, steps, seconds, violation.signature)
    return First(cause, seed, 0, seconds, "")


def measure(target: str, launch: Launch, record: Record, causes: Sequence[str], seeds: int, steps: int) -> None:
    """Make all runs that the record lacks."""
    with WorkerClient(target, launch, trace_seconds=300) as worker:
        worker.start()
        for seed in range(1, seeds + 1):
            run_seed(worker, record, seed, steps)
    fixes = fixes_of(launch.version)
    done = {(first.cause, first.seed) for first in record.firsts()}
    for cause in causes:
        missing = [seed for seed in range(1, seeds + 1) if (cause, seed) not in done]
        if not missing:
            continue
        others = [fix for name, fix in fixes.items() if name != cause]
        with WorkerClient(target, patched(launch, others), trace_seconds=300) as worker:
            worker.start()
            for seed in missing:
                first = first_of(worker, cause, seed, record.traces(seed))
                record.add_first(first)
                print(first, flush=True)


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
    parser.add_argument("--steps", type=int, default=STEPS_MAX, help="steps for each seed")
    parser.add_argument("--record", type=Path, required=True, help="folder of the measurement")
    options = parser.parse_args()
    launch = prepare(options.target, print)
    causes = [cause for cause in options.only.split(",") if cause] or list(fixes_of(launch.version))
    record = Record(options.record)
    measure(options.target, launch, record, causes, options.seeds, options.steps)
    firsts = [first for first in record.firsts() if first.seed <= options.seeds]
    print("\n".join(table(causes, firsts, options.steps)))


if __name__ == "__main__":
    main()
