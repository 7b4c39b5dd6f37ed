"""Record what random and corpus traces show on a target, one JSON line a trace.

    python benchmarks/observations.py hybrid --traces 500 --seed 1313 > before.ndjson
    python benchmarks/observations.py hybrid --corpus corpus > corpus.ndjson
    diff before.ndjson after.ndjson

Two revisions behave alike when the files are equal: verdict, signature, step, counts of each oracle, states reached
and the digest of all tokens and block ids. Messages are left out; they are prose.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from hybridfuzz.harness.draw.files import load_trace
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.workers.client import WorkerClient
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Trace, TraceError


def progress(text: str) -> None:
    """Print a line about an environment that is being made."""
    print(text, file=sys.stderr, flush=True)


def observations(name: str, outcome: Outcome) -> str:
    """One line of JSON for one trace."""
    violation = outcome.violation
    return json.dumps(
        {
            "trace": name,
            "signature": violation.signature if violation else "",
            "step": violation.step if violation else -1,
            "block": violation.block if violation else -1,
            "steps": outcome.steps,
            "events": outcome.events,
            "exercised": outcome.exercised,
            "reached": outcome.reached,
            "digest": f"{outcome.digest:08x}",
        },
        sort_keys=True,
    )


def traces_of(worker: WorkerClient, args: argparse.Namespace) -> Iterator[tuple[str, Trace]]:
    """The traces to run: the drawn ones, then those of the corpus folder."""
    for index in range(args.traces):
        yield f"{args.seed}/{index}", worker.draw(args.seed, index, {})
    if args.corpus:
        for path in sorted(args.corpus.glob("*.json")):
            yield path.stem, load_trace(path)


def observe(target: str, traces: Iterator[tuple[str, Trace]], worker: WorkerClient) -> None:
    """Run every trace on one target and print its line."""
    for name, trace in traces:
        try:
            line = observations(f"{target} {name}", worker.run(trace))
        except TraceError as error:  # a trace of another release
            line = json.dumps({"trace": f"{target} {name}", "refused": str(error)})
        print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--traces", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1313)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--mutants", action="store_true", help="run each corpus trace on the mutant in its name")
    args = parser.parse_args()
    if args.mutants:
        for path in sorted(args.corpus.glob("*.json")):
            target = f"{args.target}:{path.name.partition('--')[0]}"
            with WorkerClient(target, prepare(target, progress)) as worker:
                worker.start()
                observe(target, iter([(path.stem, load_trace(path))]), worker)
        return 0
    with WorkerClient(args.target, prepare(args.target, progress)) as worker:
        worker.start()
        observe(args.target, traces_of(worker, args), worker)
    return 0


if __name__ == "__main__":
    sys.exit(main())
