"""A client never takes the reply to one request for the reply to another."""

from collections.abc import Iterator

import pytest
from hybridfuzz.harness.workers.client import WorkerClient
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.targets.base.registry import prepare
from support import arrive, make_trace, steps

TRACE = make_trace(arrive("r0", 3), *steps(3))
CLEAN, FAILING = "hybrid", "hybrid:null-as-state-slot"


@pytest.fixture
def started(request: pytest.FixtureRequest) -> Iterator[WorkerClient]:
    with WorkerClient(request.param, prepare(request.param, print)) as worker:
        worker.start()
        yield worker


@pytest.mark.parametrize("started", [CLEAN], indirect=True)
def test_a_process_that_runs_ahead_is_not_asked(started: WorkerClient) -> None:
    """`verify-fix` left its campaign in the middle of a batch; what it ran next was judged by the batch's results."""
    next(started.fuzz(Fuzz(0, 0, 5, {})))
    with pytest.raises(AssertionError, match="abandoned"):
        started.run(TRACE)
    started.start()
    assert started.run(TRACE).steps >= 3


@pytest.mark.parametrize("started", [FAILING], indirect=True)
def test_a_process_waits_after_a_violation(started: WorkerClient) -> None:
    """The trace that runs between two of a batch has its own result, and the batch goes on."""
    indexes = []
    for ran in started.fuzz(Fuzz(0, 0, 12, {})):
        indexes.append(ran.index)
        if ran.outcome.violation:
            assert ran.trace and started.run(ran.trace).violation == ran.outcome.violation
    assert indexes == [*range(12)]


@pytest.mark.parametrize("started", [CLEAN], indirect=True)
def test_a_process_that_has_answered_everything_is_free(started: WorkerClient) -> None:
    assert len([*started.fuzz(Fuzz(0, 0, 3, {}))]) == 3
    assert started.run(TRACE).steps >= 3
