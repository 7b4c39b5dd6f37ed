"""A campaign on nodes that are lost at any moment: every trace counts once, no finding is lost.

The nodes are threads of this process; messages are packed as on a cluster. Which call a node is lost in, and whether
before or after the work was done, is drawn.
"""

import random
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from threading import Lock

import pytest

from hybridfuzz.harness.campaign.campaign import Campaign
from hybridfuzz.harness.campaign.shared_state import Settings
from hybridfuzz.harness.campaign_events import CampaignEnded, CampaignEvent, NodeLeft
from hybridfuzz.harness.campaign_summary import Summary
from hybridfuzz.harness.workers.cluster.messages import COMPRESS_BYTES, Refused, Setup, pack, unpack_answer
from hybridfuzz.harness.workers.cluster.node_worker import NodeWorker
from hybridfuzz.harness.workers.cluster.remote_worker import RemoteWorker
from hybridfuzz.harness.workers.protocol import NodeLost
from hybridfuzz.targets.base.registry import prepare

MUTANT = "hybrid:null-as-state-slot"

LOSSES_MAX = 12


class Seats:
    """Opens workers on imagined nodes. `losses` is the chance that a call loses its node."""

    def __init__(self, losses: float = 0.0, seed: int = 0, version_of: Callable[[str], str] = lambda _: "") -> None:
        self.losses = losses
        self.random = random.Random(seed)
        self.version_of = version_of
        self.lock = Lock()
        self.nodes = 0
        self.lost = Counter[str]()
        self.refused: list[str] = []

    def open(self, has_work: Callable[[], bool]) -> RemoteWorker:
        del has_work
        return RemoteWorker(Seat(self), 60.0)

    def loses(self) -> bool:
        """Draw whether a node is lost now. An investigation is a hundred calls: at some point it has to get through."""
        with self.lock:
            return sum(self.lost.values()) < LOSSES_MAX and self.random.random() < self.losses


class Seat:
    """One worker's place."""

    def __init__(self, seats: Seats) -> None:
        self.seats = seats
        self.name = ""
        self.worker: NodeWorker | None = None

    def start(self) -> tuple[str, bytes]:
        with self.seats.lock:
            self.seats.nodes += 1
            self.name = f"node-{self.seats.nodes}"
        setup = Setup(MUTANT, version("hybridfuzz"), self.seats.version_of(self.name))
        self.worker = NodeWorker(pack(setup))
        return self.name, self.worker.start()

    def call(self, call: bytes) -> bytes:
        assert self.worker
        before = self.seats.loses()
        answer = b"" if before else self.worker.call(call)
        if before or self.seats.loses():
            self.close()
            self.seats.lost["before" if before else "after"] += 1
            raise NodeLost(f"{self.name} is gone")
        return answer

    def stop(self) -> None:
        if self.worker:
            self.worker.stop()

    def refuse(self, reason: str) -> None:
        self.seats.refused.append(reason)
        self.close()

    def close(self) -> None:
        self.stop()
        self.worker = None


def campaign(out: Path, seats: Seats | None, jobs: int = 2) -> tuple[Summary, list[CampaignEvent]]:
    settings = Settings(
        target=MUTANT, launch=prepare(MUTANT, print), seed=1, out=out, jobs=jobs, traces=40, reduce_seconds=0.5
    )
    events = list(Campaign(settings, seats.open if seats else None).run())
    assert isinstance(events[-1], CampaignEnded)
    return events[-1].summary, events


def counts(summary: Summary) -> object:
    """Return what has to be the same however often a node is lost."""
    symptoms = Counter[str]()
    for one in summary.findings:
        assert (one.reduced and one.severity) or not one.reproduced
        symptoms.update(one.symptoms)
    totals = (summary.traces, summary.steps, summary.exercised, summary.reached, summary.done, summary.beyond)
    return (*totals, summary.exit_reason, symptoms)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    """Return the campaign as it is on one machine."""
    return campaign(tmp_path_factory.mktemp("whole"), None)[0]


def test_nothing_is_lost(tmp_path: Path, whole: Summary) -> None:
    summary, _ = campaign(tmp_path, Seats())
    assert counts(summary) == counts(whole)
    assert len(summary.nodes) == 2
    assert sum(node.traces for node in summary.nodes) == 40
    assert sum(node.steps for node in summary.nodes) == summary.steps
    assert all(node.workers == 0 and node.state == "up" for node in summary.nodes)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (2, 3))])
def test_nodes_are_lost(tmp_path: Path, whole: Summary, seed: int) -> None:
    """A tenth of the calls loses the node, before the call does anything or with its answer, until a dozen is lost."""
    seats = Seats(losses=0.1, seed=seed)
    summary, events = campaign(tmp_path, seats)
    assert seats.lost, "the drill did something"
    assert counts(summary) == counts(whole)
    left = [event for event in events if isinstance(event, NodeLeft)]
    assert len(left) == sum(seats.lost.values())
    assert {event.state for event in left} == {"lost"}
    assert {node.name for node in summary.nodes if node.state == "lost"} == {event.node for event in left}


def test_a_node_with_another_engine_is_refused(tmp_path: Path, whole: Summary) -> None:
    """One line, and the worker goes elsewhere."""
    seats = Seats(version_of=lambda name: "9.9" if name == "node-1" else "")
    summary, events = campaign(tmp_path, seats)
    assert counts(summary) == counts(whole)
    [left] = [event for event in events if isinstance(event, NodeLeft)]
    assert (left.node, left.state) == ("node-1", "refused")
    assert left.reason == seats.refused[0] == f"{MUTANT} is unknown there, 9.9 here"


def test_another_hybridfuzz_is_refused() -> None:
    answer = unpack_answer(NodeWorker(pack(Setup(MUTANT, "0.0.1", ""))).start())
    assert answer == Refused(f"it has hybridfuzz {version('hybridfuzz')}, the campaign 0.0.1")


def test_long_messages_are_compressed() -> None:
    long = Refused("x" * 10 * COMPRESS_BYTES)
    assert len(pack(long)) < COMPRESS_BYTES
    assert unpack_answer(pack(long)) == long
