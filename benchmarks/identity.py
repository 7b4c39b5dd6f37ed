"""How well failing traces are grouped by cause, with the truth from fixes.

    python benchmarks/identity.py collect  --target vllm@0.33.0 --seed 77 --traces 400 -o out
    python benchmarks/identity.py truth    --target vllm@0.33.0 -o out
    python benchmarks/identity.py evidence --target vllm@0.33.0 -o out
    python benchmarks/identity.py score    -o out [out ...] [--together] [--orders 5]

The truth is not known to the harness: the cause of a failing trace is the fix that silences it up to the event at which
it failed (`truth`, for an engine with its packaged fixes, for a mixture of mutants by leaving one out; a trace that two
of them silence has both causes, and either is right).

Every step can be cut off and continued. `score` replays the campaign's own decisions (`campaign/sorting.py`) on the
saved evidence, in the order of the traces, and puts the grouping by signature beside it; with `--orders` also the means
over that order and random ones, with and without subjects of rules. `--together` scores several folders of one target
as one campaign.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

import msgspec
from msgspec import Struct
from vllm_campaign import fixes_of, overrides_of

from hybridfuzz.harness.draw.trace_files import load_trace, save_trace
from hybridfuzz.harness.group.causes import same_cause as grouping
from hybridfuzz.harness.group.causes.evidence import Evidence, FindingEvidence
from hybridfuzz.harness.group.causes.investigate import Investigation
from hybridfuzz.harness.group.causes.same_cause import can_start_finding, joined, same_cause
from hybridfuzz.harness.group.reduction.reduce import until
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.registry import parse, prepare
from hybridfuzz.targets.base.trace import Trace

UNSORTED = "unsorted"
"""Traces whose evidence was cut off by the time limit and that are like no finding."""

FIGURES = (
    "findings", "causes without a finding", "in a finding of another cause", "causes in more than two findings",
)  # fmt: skip


class Sorted(Struct):
    """Evidence of one trace, and what it cost: seconds of the worker's CPU and of the wall clock, and runs."""

    evidence: Evidence | None
    reduced: Trace
    cpu: float
    seconds: float


def failing(folder: Path) -> list[Path]:
    """Traces of a folder, by number."""
    return sorted((folder / "traces").glob("*.json"), key=lambda path: int(path.stem))


def violation_of(path: Path) -> Violation:
    """Return the violation with which a trace was saved."""
    return msgspec.json.decode(path.with_suffix(".violation").read_bytes(), type=Violation)


def collect(target: str, seed: int, config: Mapping[str, object], most: int, drawn: int, folder: Path) -> None:
    """Save failing traces as a campaign meets them: `most` of them, or those among the first `drawn` traces."""
    (folder / "traces").mkdir(parents=True, exist_ok=True)
    known = [int(path.stem) for path in failing(folder)]
    index = max(known, default=-1) + 1
    with WorkerClient(target, prepare(target, print), trace_seconds=300) as worker:
        worker.start()
        while len(known) < most and index < drawn:
            for ran in worker.fuzz(Fuzz(seed, index, min(25, drawn - index), dict(config))):
                index = ran.index + 1
                if violation := ran.outcome.violation:
                    path = folder / "traces" / f"{ran.index}.json"
                    path.with_suffix(".violation").write_bytes(msgspec.json.encode(violation))
                    save_trace(ran.trace or worker.draw(seed, ran.index, dict(config)), path)
                    known.append(ran.index)
        print(f"{len(known)} failing traces of {index}")


def silenced(worker: WorkerClient, path: Path) -> bool:
    """Return True if a trace shows no violation up to the event at which it failed."""
    trace, violation = load_trace(path), violation_of(path)
    return worker.run(until(violation, trace)).violation is None


def without_one_cause(target: str) -> Iterator[tuple[str, str, Launch]]:
    """Yield, for each cause that is known, its name and how to run the same target without it."""
    if target.startswith("python:mixtures:"):
        from mixtures import causes_of

        for name, other in causes_of(target).items():
            yield name, other, prepare(other, print)
        return
    launch = prepare(target, print)
    for name, patch in fixes_of(launch.version, parse(target).name).items():
        yield name, target, patched(launch, [patch])


def truth(target: str, folder: Path) -> None:
    """Note for each trace the causes without which it is silent.

    A fix runs on the reduced trace first, where there is one, and on the whole one if that is silent.
    """
    reduced = {trace: seen.reduced for trace, seen in load_evidence(folder).items()}
    found: dict[str, list[str]] = {}
    for name, other, launch in without_one_cause(target):
        with WorkerClient(other, launch, trace_seconds=300) as worker:
            worker.start()
            for path in failing(folder):
                if path.stem in reduced and worker.run(reduced[path.stem]).violation is not None:
                    continue
                if silenced(worker, path):
                    found.setdefault(path.stem, []).append(name)
        (folder / "truth.json").write_bytes(msgspec.json.format(msgspec.json.encode(found)))
        print(name, sum(name in causes for causes in found.values()), flush=True)


def load_truth(folder: Path) -> dict[str, list[str]]:
    """Return the causes of each trace by its number."""
    path = folder / "truth.json"
    return msgspec.json.decode(path.read_bytes(), type=dict[str, list[str]]) if path.exists() else {}


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def evidence(target: str, folder: Path, part: str, seconds: float) -> None:
    """Collect the evidence of each trace, as a campaign does."""
    (folder / "evidence").mkdir(parents=True, exist_ok=True)
    number, of = map(int, part.split("/"))
    with WorkerClient(target, prepare(target, lambda *_: None), trace_seconds=300) as worker:
        capabilities = worker.start().capabilities
        for path in failing(folder)[number::of]:
            saved = folder / "evidence" / path.name
            if saved.exists():
                continue
            trace, violation = load_trace(path), violation_of(path)
            began, cpu, pid = time.monotonic(), cpu_seconds(worker.pid), worker.pid
            investigation = Investigation(worker, capabilities, seconds)
            best = investigation.reduce(trace, violation)
            seen = investigation.evidence(best)
            spent = time.monotonic() - began
            cpu = cpu_seconds(worker.pid) - (cpu if worker.pid == pid else 0.0)
            saved.write_bytes(msgspec.json.encode(Sorted(seen, best, cpu, spent)))
            print(
                path.stem, violation.signature, f"{cpu:.1f} s CPU, {spent:.1f} s, {investigation.runs} runs", flush=True
            )


def load_evidence(folder: Path) -> dict[str, Sorted]:
    """Return what was collected, by number, in the order of the traces."""
    paths = sorted((folder / "evidence").glob("*.json"), key=lambda path: int(path.stem))
    return {path.stem: msgspec.json.decode(path.read_bytes(), type=Sorted) for path in paths}


def grouped(seen: Mapping[str, Evidence]) -> dict[str, str]:
    """Return the finding of each trace, deciding as a campaign on one worker does."""
    findings: dict[str, FindingEvidence] = {}
    where: dict[str, str] = {}
    for trace, one in seen.items():
        into = same_cause([one], findings)
        shown = any(_shows(finding, one.signature) for finding in findings.values())
        if not into and shown and not can_start_finding(one):
            where[trace] = UNSORTED
            continue
        into = into or next(name for name in _names(one.signature) if name not in findings)
        where[trace] = into
        findings[into] = joined(findings.get(into), [one])
        while other := same_cause(findings[into].evidence, findings, but=into):
            into, gone = sorted((into, other), key=list(findings).index)
            findings[into] = joined(findings[into], findings.pop(gone).evidence)
            where |= {each: into for each, name in where.items() if name == gone}
    return where


def _shows(finding: FindingEvidence, signature: str) -> bool:
    return any(one.signature == signature for one in finding.evidence)


def _names(signature: str) -> Iterator[str]:
    yield signature
    yield from (f"{signature}.{number}" for number in range(2, 10_000))


def verdict(where: Mapping[str, str], causes: Mapping[str, Sequence[str]]) -> dict[str, object]:
    """Return the figures of one grouping.

    A finding belongs to the cause that most of its traces have. A cause is met if it is the only one of some trace.
    """
    members: dict[str, Counter[str]] = {}
    unsorted = sum(name == UNSORTED for name in where.values())
    where = {trace: name for trace, name in where.items() if name != UNSORTED}
    for trace, name in where.items():
        members.setdefault(name, Counter()).update(causes[trace])
    majority = {name: counts.most_common(1)[0][0] for name, counts in members.items()}
    wrong = sum(majority[name] not in causes[trace] for trace, name in where.items())
    met = {causes[trace][0] for trace in where if len(causes[trace]) == 1}
    own = Counter(majority.values())
    return {
        "traces": len(where),
        "unsorted": unsorted,
        "findings": len(members),
        "in a finding of another cause": wrong,
        "causes met": len(met),
        "causes without a finding": sorted(met - own.keys()),
        "findings by cause": dict(own.most_common()),
        "mixed": {name: dict(counts) for name, counts in members.items() if len(counts) > 1},
    }


class Collected(Struct):
    """What was collected of a target: evidence and causes of traces in the order in which a campaign meets them."""

    name: str
    seen: dict[str, Sorted]
    causes: dict[str, list[str]]

    @property
    def usable(self) -> dict[str, Evidence]:
        """Evidence of the traces whose cause is known."""
        return {trace: one.evidence for trace, one in self.seen.items() if one.evidence and trace in self.causes}


def load(folders: Sequence[Path], *, together: bool) -> list[Collected]:
    """Return what lies in each folder, or in all of them as one campaign."""
    single = [Collected(str(folder), load_evidence(folder), load_truth(folder)) for folder in folders]
    if not together:
        return single
    one = Collected(" and ".join(each.name for each in single), {}, {})
    for each in single:
        one.seen |= {f"{each.name}/{trace}": seen for trace, seen in each.seen.items()}
        one.causes |= {f"{each.name}/{trace}": causes for trace, causes in each.causes.items()}
    return [one]


def in_orders(collected: Collected, orders: int) -> Counter[str]:
    """Return the sums of the figures over the collected order and `orders - 1` random ones."""
    sums: Counter[str] = Counter()
    for number in range(orders):
        traces = list(collected.usable)
        if number:
            random.Random(number).shuffle(traces)
        usable = collected.usable
        figures = verdict(grouped({trace: usable[trace] for trace in traces}), collected.causes)
        by_cause, lost = figures["findings by cause"], figures["causes without a finding"]
        assert isinstance(by_cause, dict)
        assert isinstance(lost, list)
        split = sum(number > 2 for number in by_cause.values())
        values = (figures["findings"], len(lost), figures["in a finding of another cause"], split)
        for name, value in zip(FIGURES, values, strict=True):
            assert isinstance(value, int)
            sums[name] += value
    return sums


def score(all_collected: Sequence[Collected], orders: int) -> None:
    """Print the figures of each folder (by evidence, by signature, cost), and the sum of their means over orders."""
    means: dict[str, Counter[str]] = {"with subjects of rules": Counter(), "without": Counter()}
    for collected in all_collected:
        causes, seen, usable = collected.causes, collected.seen, collected.usable
        if not usable:
            continue
        print(f"{collected.name}: {len(seen)} traces with evidence, {len(usable)} of known cause")
        print(" by evidence", msgspec.json.format(msgspec.json.encode(verdict(grouped(usable), causes))).decode())
        signatures = {trace: one.signature for trace, one in usable.items()}
        print(" by signature", msgspec.json.format(msgspec.json.encode(verdict(signatures, causes))).decode())
        costs = sorted(one.cpu for one in seen.values())
        print(
            f" cost: median {statistics.median(costs):.1f} s CPU, 90 % below {costs[len(costs) * 9 // 10]:.1f} s, "
            f"{statistics.median(one.evidence.runs for one in seen.values() if one.evidence):.0f} runs"
        )
        if orders > 1:
            means["with subjects of rules"] += in_orders(collected, orders)
            with mock.patch.object(grouping, "OTHER_SUBJECT", 0.0):
                means["without"] += in_orders(collected, orders)
    for rule, sums in means.items() if orders > 1 else ():
        print(f"{rule}: " + ", ".join(f"{name} {sums[name] / orders:.1f}" for name in FIGURES))


def main() -> None:
    """Run one step."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("step", choices=("collect", "truth", "evidence", "score"))
    parser.add_argument("--target", default="vllm@0.33.0")
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--traces", type=int, default=400)
    parser.add_argument("--drawn", type=int, default=10**9, help="end after this many traces, failing or not")
    parser.add_argument("--config", default="", help="key=value,... as for `hybridfuzz fuzz`")
    parser.add_argument("--part", default="0/1", help="N/M: every M-th trace from N on, to share the work")
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit for each trace")
    parser.add_argument("--orders", type=int, default=1, help="score: also means over N orders, N - 1 of them random")
    parser.add_argument("--together", action="store_true", help="score: all folders as one campaign")
    parser.add_argument("-o", dest="out", type=Path, nargs="+", required=True)
    arguments = parser.parse_args()
    folder = arguments.out[0]
    if arguments.step == "collect":
        config = overrides_of(arguments.config)
        collect(arguments.target, arguments.seed, config, arguments.traces, arguments.drawn, folder)
    elif arguments.step == "truth":
        truth(arguments.target, folder)
    elif arguments.step == "evidence":
        evidence(arguments.target, folder, arguments.part, arguments.seconds)
    else:
        score(load(arguments.out, together=arguments.together), arguments.orders)


if __name__ == "__main__":
    main()
