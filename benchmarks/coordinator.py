"""The coordinator of 1,000 workers, over an hour of simulated time: CPU, memory, latency to a saved finding.

    python benchmarks/coordinator.py [--workers 1000] [--rates 200,2000] [--hours 1] [--fail 0.005]

Outcomes are recorded from real traces of the built-in target and of mutants, and replayed. Time is simulated; what the
coordinator does is real: it decodes the bytes that a node would send, counts, allots, saves findings and state in a
folder, and makes the summary of every tick. It is one server with a queue: each call takes as long in simulated time as
it takes CPU here. A worker's speed is drawn (log-normal, every hundredth is ten times slower); one that finds something
new is busy with it for `REDUCE_SECONDS`. Ray's own share is not in it (`--ray` measures that on this machine).
"""

from __future__ import annotations

import argparse
import gc
import heapq
import random
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from queue import Empty
from typing import NamedTuple

from msgspec import structs

from hybridfuzz.harness.campaign.shared_state import CampaignState, Claim, Settings
from hybridfuzz.harness.campaign_events import TracesDone
from hybridfuzz.harness.workers.cluster.messages import Call, NodeReport, Setup, pack, unpack_answer
from hybridfuzz.harness.workers.cluster.node_worker import NodeWorker, Tally
from hybridfuzz.harness.workers.cluster.remote_worker import LEASE_MAX, LEASE_SECONDS
from hybridfuzz.harness.workers.messages import Fuzz, Ready
from hybridfuzz.harness.workers.results import Counts, Ran
from hybridfuzz.targets.base.registry import load_factory, prepare

MUTANTS = (
    "null-as-state-slot", "hit-before-commit", "align-starvation", "accepted-count-zero", "admission-undercount",
    "zero-list-never-drained", "session-close-leak", "publish-before-commit", "seed-column-wrong-divisor",
    "stale-dummy-mask",
)  # fmt: skip
RECORDED = 120
REDUCE_SECONDS = 20.0
TICK_SECONDS, SAVE_SECONDS = 0.25, 5.0


class Recorded(NamedTuple):
    """Results of real traces."""

    clean: list[Ran]
    failing: list[Ran]


def record(target: str, count: int) -> list[Ran]:
    """Return the results of the first traces of a target, one by one."""
    node = NodeWorker(pack(Setup(target, version("hybridfuzz"), prepare(target, print).version)))
    node.start()
    rans: list[Ran] = []
    first = 0
    while first < count:
        answer = unpack_answer(node.call(pack(Call(Fuzz(7, first, 1, {}), 60.0, 0.0))))
        assert isinstance(answer, NodeReport)
        rans += answer.rans
        if answer.counts.indexes:
            rans += [Ran(first, _outcome(answer.counts))]
        first += 1
    node.stop()
    return rans


def _outcome(counts: Counts) -> object:
    from hybridfuzz.harness.judge.outcome import Outcome

    return Outcome(None, counts.steps, counts.steps, dict(counts.exercised), dict(counts.reached), 0)


def recorded() -> Recorded:
    """Run real traces."""
    known = set(load_variants())
    failing = [
        ran
        for slug in MUTANTS
        if slug in known
        for ran in record(f"hybrid:{slug}", 16)
        if ran.outcome.violation and ran.trace
    ]
    return Recorded([ran for ran in record("hybrid", RECORDED) if not ran.outcome.violation], failing)


def load_variants() -> list[str]:
    """Return the slugs of the mutants."""
    from hybridfuzz.targets.hybrid.factory import variants

    return list(variants())


class Node:
    """A simulated worker: how long a lease takes, and the bytes that it reports."""

    def __init__(self, number: int, rate: float, draw: random.Random, data: Recorded, fail: float) -> None:
        self.number = number
        self.rate = rate
        self.batch = 1
        self.draw = draw
        self.data = data
        self.fail = fail
        self.met = Counter[str]()
        self._sums: dict[int, Counts] = {}

    def work(self, lease: Fuzz) -> tuple[float, bytes]:
        """Return the seconds that a lease takes, and its report."""
        seconds, rans, repeats = 0.0, list[Ran](), Counter[str]()
        counted: list[int] = []
        failing = self.draw.random() < 1 - (1 - self.fail) ** lease.count
        at = self.draw.randrange(lease.count) if failing else -1
        for place, index in enumerate(lease.indexes):
            seconds += self.draw.expovariate(self.rate)
            if place == at:
                ran = structs.replace(self._failing(), index=index)
                signature = ran.outcome.violation.signature
                self.met[signature] += 1
                if self.met[signature] & (self.met[signature] - 1) == 0:
                    rans.append(ran)
                    break
                repeats[signature] += 1
            counted.append(index)
            if seconds >= LEASE_SECONDS:
                break
        counts = structs.replace(self._sum(len(counted)), indexes=counted, repeats=repeats)
        each = seconds / max(len(counted) + len(rans), 1)
        self.batch = max(1, min(LEASE_MAX, 2 * self.batch, int(LEASE_SECONDS / max(each, 1e-6))))
        return seconds, pack(NodeReport(counts, rans))

    def _failing(self) -> Ran:
        """Return a failing trace: a few causes are frequent, most are rare."""
        place = min(int(self.draw.paretovariate(1.2)) - 1, len(self.data.failing) - 1)
        return self.data.failing[place]

    def _sum(self, count: int) -> Counts:
        if count not in self._sums:
            tally = Tally()
            for number in range(count):
                tally.add(self.data.clean[(self.number + number) % len(self.data.clean)])
            self._sums[count] = tally.counts()
        return self._sums[count]


class Totals(NamedTuple):
    """The result of one simulation. Times in seconds."""

    traces: int
    reports: int
    sent: int
    cpu: float
    busiest: float
    latencies: list[float]
    leases: list[float]
    memory: int
    state: int
    findings: int


def simulate(workers: int, rate: float, hours: float, data: Recorded, fail: float, folder: Path) -> Totals:
    """Simulate a campaign."""
    draw = random.Random(1)
    settings = Settings(target="hybrid", launch=prepare("hybrid", print), seed=1, out=folder, jobs=workers)
    state = CampaignState(settings)
    state.ready(Ready("hybrid", load_factory("hybrid").capabilities))
    speeds = [draw.lognormvariate(0, 0.5) * (0.1 if number % 100 == 0 else 1.0) for number in range(workers)]
    scale = rate / sum(speeds)
    nodes = [Node(number, speed * scale, draw, data, fail) for number, speed in enumerate(speeds)]
    end, free, cpu, reports, sent = hours * 3600, 0.0, 0.0, 0, 0
    latencies: list[float] = []
    leases: list[float] = []
    window = Counter[int]()
    queue: list[tuple[float, int, Callable[[float], None]]] = []
    ties = iter(range(1 << 60))

    def at(when: float, what: Callable[[float], None]) -> None:
        heapq.heappush(queue, (when, next(ties), what))

    def served(when: float, work: Callable[[], object]) -> tuple[float, object]:
        """Do work of the coordinator that arrives at a time; return when it is done, and its result."""
        nonlocal free, cpu
        began = time.thread_time()
        result = work()
        took = time.thread_time() - began
        free = max(free, when) + took
        cpu += took
        window[int(free // 60)] += int(took * 1e6)
        return free, result

    def lease(node: Node, when: float) -> None:
        done, batch = served(when, lambda: state.next_batch(node.batch))
        assert isinstance(batch, Fuzz)
        seconds, data = node.work(batch)
        leases.append(seconds)
        at(done + seconds, lambda then: report(node, batch, data, then))

    def report(node: Node, batch: Fuzz, data: bytes, when: float) -> None:
        nonlocal reports, sent
        reports += 1
        sent += len(data)

        def take() -> bool:
            answer = unpack_answer(data)
            assert isinstance(answer, NodeReport)
            left, name, claimed = set(batch.indexes), f"node-{node.number // 8}", False
            if answer.counts.indexes:
                left.difference_update(answer.counts.indexes)
                state.add(answer.counts, name)
                state.emit(TracesDone(node.number, len(answer.counts.indexes), answer.counts.steps, name))
            for ran in answer.rans:
                left.discard(ran.index)
                taken = state.take(ran, name)
                claimed |= isinstance(taken, Claim)
            if left:
                state.give_back(left)
            return claimed

        done, claimed = served(when, take)
        if claimed:
            latencies.append(done - when)
        at(done + (REDUCE_SECONDS if claimed else 0.0), lambda then: lease(node, then))

    def tick(when: float) -> None:
        served(when, state.summary)
        at(when + TICK_SECONDS, tick)
        try:
            while True:
                state.events.get_nowait()
        except Empty:
            pass

    def save(when: float) -> None:
        served(when, state.save)
        at(when + SAVE_SECONDS, save)

    for node in nodes:
        at(draw.random(), lambda when, node=node: lease(node, when))
    at(TICK_SECONDS, tick)
    at(SAVE_SECONDS, save)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while queue and queue[0][0] < end:
        when, _, what = heapq.heappop(queue)
        what(when)
    summary = state.summary()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    size = (folder / "campaign.json").stat().st_size
    busiest = max(window.values()) / 60e6
    return Totals(summary.traces, reports, sent, cpu, busiest, latencies, leases, memory, size, len(summary.findings))


def quantile(values: list[float], share: float) -> float:
    """Return a quantile, 0 without values."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def ray_cost(calls: int = 2000, threads: int = 50) -> float:
    """Return the CPU seconds of a driver for each call of an actor, with as many threads."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)

    class Echo:
        def call(self, data: bytes) -> bytes:
            return data

    actors = [ray.remote(Echo).options(num_cpus=0.1).remote() for _ in range(4)]
    data = bytes(3000)
    ray.get([actor.call.remote(data) for actor in actors])

    def work(number: int) -> None:
        for _ in range(calls // threads):
            reference = actors[number % 4].call.remote(data)
            ray.wait([reference], timeout=5)
            ray.get(reference)

    before = time.process_time()
    running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    spent = time.process_time() - before
    ray.shutdown()
    return spent / calls


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--rates", default="200,2000", help="traces a second of all workers")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--fail", type=float, default=0.005, help="share of traces that fail")
    parser.add_argument("--ray", action="store_true", help="measure the cost of Ray's calls instead")
    arguments = parser.parse_args()
    if arguments.ray:
        print(f"CPU of the driver for each call of an actor: {ray_cost() * 1e6:.0f} µs")
        return
    data = recorded()
    print(f"{len(data.clean)} clean and {len(data.failing)} failing traces recorded", file=sys.stderr, flush=True)
    print("| traces/s | workers | traces | reports/s | bytes/report | findings | CPU | busiest minute | CPU/trace "
          "| latency p50 | p99 | worst | longest lease | memory | state file |")  # fmt: skip
    print("| ---: " * 15 + "|")
    for rate in map(float, arguments.rates.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            one = simulate(arguments.workers, rate, arguments.hours, data, arguments.fail, Path(folder))
        seconds = arguments.hours * 3600
        p50, p99, worst = (1000 * quantile(one.latencies, share) for share in (0.5, 0.99, 1.0))
        print(
            f"| {rate:g} | {arguments.workers:,} | {one.traces:,} | {one.reports / seconds:.0f} "
            f"| {one.sent / one.reports:,.0f} | {one.findings} | {one.cpu / seconds:.1%} | {one.busiest:.1%} "
            f"| {1e6 * one.cpu / one.traces:.0f} µs | {p50:.0f} ms | {p99:.0f} ms | {worst:.0f} ms "
            f"| {max(one.leases):.0f} s | {one.memory / 1024:.0f} MB | {one.state / 1024:.0f} kB |",
            flush=True,
        )


if __name__ == "__main__":
    main()
