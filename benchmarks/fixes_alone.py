"""Each packaged fix alone: does it make a trace fail that the unpatched release passes?

    python benchmarks/fixes_alone.py --target vllm@0.33.0 --seed 77 --traces 90 -o out

The same drawn traces run on the unpatched release and on a copy with one fix each. A trace is *worse* with a fix if it
fails with it and not without, or at an earlier event. That has one of two reasons: the fix unmasks another known cause,
or it is wrong. So a worse trace also runs with the fix and each other one, and with all fixes together: a second fix
that silences it up to the event at which it failed names the unmasked cause. Exit status 1 if a worse trace stays
unexplained. Can be cut off and continued: results are kept in `OUT/runs.json`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from hybridfuzz.harness.traces.reduce import with_events
from hybridfuzz.harness.traces.violation import Violation
from hybridfuzz.harness.workers.client import WorkerClient
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.overlay import patched
from hybridfuzz.targets.base.patches import PatchError
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Trace
from identity import cpu_seconds
from msgspec import Struct
from vllm_campaign import fixes_of

UNPATCHED = "unpatched"
Results = dict[int, Violation | None]
"""Index of a trace -> its violation."""


class Worse(Struct):
    """A trace that fails earlier with one fix, and the further fixes with which it passes up to that event."""

    fix: str
    index: int
    violation: Violation
    before: Violation | None
    silenced_by: list[str]


def is_worse(after: Violation | None, before: Violation | None) -> bool:
    """Return True if a trace fails with a fix that passes without it, or at an earlier event or step."""
    return after is not None and (before is None or (after.event, after.step) < (before.event, before.step))


def run_all(target: str, launch: Launch, traces: Mapping[int, Trace], name: str) -> Results:
    """Run traces on one copy."""
    with WorkerClient(target, launch, trace_seconds=300) as worker:
        worker.start()
        found = {index: worker.run(trace).violation for index, trace in traces.items()}
        failing = sum(violation is not None for violation in found.values())
        print(f"{name}: {failing} of {len(found)} traces fail, {cpu_seconds(worker.pid):.0f} s CPU", flush=True)
    return found


def explain(
    target: str, launch: Launch, name: str, traces: Mapping[int, Trace], runs: Mapping[str, Results]
) -> list[Worse]:
    """Find further fixes that silence traces that are worse with one fix.

    Those that change such traces alone come first, as far as they were run alone.
    """
    fixes = fixes_of(launch.version)
    cut: dict[int, Trace] = {}
    found: list[Worse] = []
    for index, trace in traces.items():
        if violation := runs[name][index]:
            cut[index] = with_events(trace, trace.events[: violation.event + 1 or len(trace.events)])
            found.append(Worse(name, index, violation, runs[UNPATCHED][index], []))

    def changes(other: str) -> int:
        return sum(runs[other][index] != runs[UNPATCHED][index] for index in traces) if other in runs else 0

    others = sorted((other for other in fixes if other != name), key=changes, reverse=True)
    for other in ("all", *others):
        left = [each for each in found if not set(each.silenced_by) - {"all"}]
        if not left:
            break
        try:
            copy = patched(launch, [*fixes.values()] if other == "all" else [fixes[name], fixes[other]])
        except PatchError as error:
            print(f"{name} with {other}: {error}")
            continue
        with WorkerClient(target, copy, trace_seconds=300) as worker:
            worker.start()
            for each in left:
                if worker.run(cut[each.index]).violation is None:
                    each.silenced_by.append(other)
        print(f"{name} with {other}: {[each.index for each in left if other in each.silenced_by]} silent", flush=True)
    return found


def measure(target: str, seed: int, count: int, only: Sequence[str], folder: Path) -> Sequence[Worse]:
    """Run everything that is not in `runs.json` yet; return what is worse with one fix."""
    launch = prepare(target, print)
    saved = folder / "runs.json"
    runs = msgspec.json.decode(saved.read_bytes(), type=dict[str, Results]) if saved.exists() else {}
    with WorkerClient(target, launch, trace_seconds=300) as worker:
        worker.start()
        traces = {index: worker.draw(seed, index, {}) for index in range(count)}
    fixes = {name: fix for name, fix in fixes_of(launch.version).items() if name in only or not only}
    for name, patch in {UNPATCHED: None, **fixes}.items():
        if name not in runs:
            runs[name] = run_all(target, patched(launch, [patch]) if patch else launch, traces, name)
            saved.write_bytes(msgspec.json.encode(runs))
    found: list[Worse] = []
    for name in fixes:
        worse = {index: trace for index, trace in traces.items() if is_worse(runs[name][index], runs[UNPATCHED][index])}
        found += explain(target, launch, name, worse, runs) if worse else []
    return found


def main() -> int:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", default="vllm@0.33.0")
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--traces", type=int, default=90)
    parser.add_argument("--only", nargs="*", default=(), metavar="FIX", help="fixes to run (all)")
    parser.add_argument("-o", dest="out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    worse = measure(arguments.target, arguments.seed, arguments.traces, arguments.only, arguments.out)
    for each in worse:
        before = each.before.signature if each.before else "passes"
        print(f"{each.fix}: trace {each.index}: {each.violation.signature} (unpatched: {before}),"
              f" with a second fix silent: {', '.join(each.silenced_by) or 'UNEXPLAINED'}")  # fmt: skip
    print(f"{len(worse)} traces are worse with one fix")
    return int(any(not each.silenced_by for each in worse))


if __name__ == "__main__":
    sys.exit(main())
