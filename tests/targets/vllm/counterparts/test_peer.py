"""vLLM's own coordination of two data-parallel ranks, the other one a stand-in: batches are padded to its graph."""

from collections.abc import Iterator

import pytest

from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Arrive, Config, DummyRun, Group, Step, Trace

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerClient]:
    """Importing vLLM takes most of the time."""
    with WorkerClient("vllm@0.33.0", prepare("vllm@0.33.0", print), trace_seconds=300) as client:
        client.start()
        yield client


def beside(rows: int, runner: str, sizes: tuple[int, ...]) -> Trace:
    """Two requests of which both decode for a while, beside a rank with this many rows; then a dummy run beside it."""
    config = Config(
        num_blocks=40,
        groups=(Group("mamba", 8), Group("attention", 8)),
        mamba_cache_mode="align",
        graph_sizes=sizes,
        options={"graphs": "decode", "data_parallel": "2", "runner": runner},
    )
    steps = [Step(pad_to=rows) for _ in range(8)]
    return Trace(config, (Arrive("x", (("d", 20),), 6), Arrive("y", (("e", 12),), 6), *steps, DummyRun(rows or 1)))


@pytest.mark.parametrize("runner", ["v2", "v1"])
@pytest.mark.parametrize(
    ("sizes", "rows", "padded"),
    [((2, 4), 0, 0), ((2, 4), 4, 5), ((3, 5), 1, 5), ((3, 5), 6, 0)],
    ids=["idle", "larger", "smaller", "too large for a graph"],
)
def test_a_batch_is_padded_as_the_ranks_agree(
    worker: WorkerClient, runner: str, sizes: tuple[int, ...], rows: int, padded: int
) -> None:
    """Five steps decode both requests. Beside a rank that replays no graph, this one replays none."""
    outcome = worker.run(beside(rows, runner, sizes))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached.get("padding rows", 0) == padded
