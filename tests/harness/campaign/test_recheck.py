"""What is found out about a finding is found out once."""

from pathlib import Path
from threading import Lock

from msgspec import structs

from hybridfuzz.harness.campaign.recheck import Confirmation
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.group.causes.investigate import Investigation
from hybridfuzz.harness.group.findings.finding_store import FindingStore
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.record.history import History
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Trace

TARGET = "hybrid:accepted-count-zero"
CORPUS = Path(__file__).parents[3] / "corpus"


class Counting(WorkerClient):
    """Counts the traces whose history it records."""

    explained: tuple[Trace, ...] = ()

    def explain(self, trace: Trace) -> tuple[Outcome, History]:
        self.explained = (*self.explained, trace)
        return super().explain(trace)


def test_the_history_of_a_finding_is_recorded_once(tmp_path: Path) -> None:
    trace = load_trace(CORPUS / "accepted-count-zero--S3-step-mamba-temporal.json")
    with Counting(TARGET, prepare(TARGET, print)) as worker:
        capabilities = worker.start().capabilities
        violation = worker.run(trace).violation
        assert violation
        store = FindingStore(tmp_path, TARGET)
        finding, _ = store.claim(violation, 0, trace)
        confirmation = Confirmation(store, Lock(), worker, lambda event: None, 30.0)
        best = confirmation.investigate(finding.id, violation, trace, earlier=None)
        assert best
        given = Investigation(worker, capabilities, 60.0).evidence(best, confirmation.history)
        assert worker.explained == (best,)
        recorded = Investigation(worker, capabilities, 60.0).evidence(best)
        assert worker.explained == (best, best)
    assert given and recorded
    assert given == structs.replace(recorded, runs=recorded.runs - 1)
