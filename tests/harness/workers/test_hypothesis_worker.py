"""A worker with traces of Hypothesis: the same losses and the same numbers as any other."""

from pathlib import Path

import pytest

from hybridfuzz.harness.draw import hypothesis_traces
from hybridfuzz.harness.draw.hypothesis_traces import HypothesisTraces
from hybridfuzz.harness.workers.hypothesis_worker import HypothesisWorker
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import Stopped
from hybridfuzz.targets.base.registry import prepare

MUTANT = "hybrid:null-as-state-slot"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ROUND": 12, "EXAMPLES": 16, "RULES_MAX": 12}.items():
        monkeypatch.setattr(hypothesis_traces, name, value)


def worker(folder: Path, target: str = MUTANT) -> HypothesisWorker:
    return HypothesisWorker(HypothesisTraces(3, {}, folder), target, prepare(target, print))


def test_numbers_in_order_and_the_first_failure_of_each_kind_kept(tmp_path: Path) -> None:
    with worker(tmp_path) as one:
        one.start()
        ran = list(one.fuzz(Fuzz(3, 2, 10, {})))
        assert [each.index for each in ran] == list(range(2, 12))
        first = {each.outcome.violation.signature: each for each in reversed(ran) if each.outcome.violation}
        assert first
        kept, failing = one.kept(), [each.trace for each in first.values() if each.trace]
        assert {repr(trace.events) for trace in kept} == {repr(trace.events) for trace in failing}
        assert all(one.run(trace).violation for trace in kept)


def test_a_process_that_is_killed_while_it_waits_is_replaced(tmp_path: Path) -> None:
    with worker(tmp_path) as one:
        one.start()
        assert one._process
        one._process.kill()
        assert len(list(one.fuzz(Fuzz(3, 0, 3, {})))) == 3


def test_stop_ends_the_drawing(tmp_path: Path) -> None:
    with worker(tmp_path) as one:
        one.start()
        one.stop()
        with pytest.raises(Stopped):
            list(one.fuzz(Fuzz(3, 0, 3, {})))
