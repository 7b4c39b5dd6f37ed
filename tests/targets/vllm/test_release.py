"""Released vLLM, through the same worker processes as a campaign. Makes the environment if it is missing.

RELEASE--CAUSE--SIGNATURE.json in corpus/vllm is a reduced trace of a real bug: docs/explanation/vllm.md lists each.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import of_release

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.draw.workload import with_ratios
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Arrive, Config, DummyRun, Group, Preempt, Step, Trace, TraceError

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

FOLDER = Path(__file__).parents[3] / "corpus" / "vllm"
FILES = sorted(path.name for path in FOLDER.glob("*.json"))
SOUND = {
    "num_speculative_tokens": 0,
    "policy": "fcfs",
    "connector": "none",
    "prefix_match_unit": "0",
    "replay": "0",
    "inputs": "tokens",
}
"""No bug of 0.33.0 that we know of shows under these: on the V1 runner without graphs only."""
TRACES = int(os.environ.get("HYBRIDFUZZ_ENGINE_TRACES", "12"))


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str, WorkerClient]]:
    """One worker per release, started when it is first needed: importing vLLM takes most of the time."""
    started: dict[str, WorkerClient] = {}
    yield started
    for worker in started.values():
        worker.__exit__()


def worker_of(workers: dict[str, WorkerClient], release: str) -> WorkerClient:
    spec = f"vllm@{release}"
    if spec not in workers:
        workers[spec] = WorkerClient(spec, prepare(spec, print), trace_seconds=300)
        workers[spec].start()
    return workers[spec]


@pytest.mark.parametrize("name", [of_release("vllm", name.partition("--")[0], name) for name in FILES])
def test_a_bug_of_a_release_shows_as_its_trace_says(workers: dict[str, WorkerClient], name: str) -> None:
    release, _, signature = name.removesuffix(".json").split("--")
    violation = worker_of(workers, release).run(load_trace(FOLDER / name)).violation
    assert violation is not None, "the release is silent"
    assert violation.signature == signature, violation.message


@pytest.mark.parametrize(
    ("release", "file", "signature"),
    [
        ("0.14.1", "0.16.0--stale-fp32-bytes-nan--S4-step-attention-page-tail.json", "S4-step-attention-page-tail"),
        ("0.14.1", "0.16.0--all-mode-partial-block--M5-step-mamba-shared-write.json", "M5-step-mamba-shared-write"),
        ("0.24.0", "0.16.0--stale-fp32-bytes-nan--S4-step-attention-page-tail.json", ""),
        ("0.24.0", "0.18.1--null-as-state-slot--S2-step-mamba-temporal.json", "S2-step-mamba-state-ignored"),
    ],
)
@pytest.mark.exhaustive
def test_a_release_of_another_era(workers: dict[str, WorkerClient], release: str, file: str, signature: str) -> None:
    """Eras without a packaged trace of their own. 0.24 has a V2 runner that refuses hybrid models in mode align, and a
    CPU runner that zeroes no blocks."""
    violation = worker_of(workers, release).run(load_trace(FOLDER / file)).violation
    assert (violation.signature if violation else "") == signature


def test_align_copies_of_an_old_release_can_be_explained(workers: dict[str, WorkerClient]) -> None:
    """Their offsets are NumPy's integers there: a history that holds them cannot be encoded."""
    trace = load_trace(FOLDER / "0.18.1--null-as-state-slot--S2-step-mamba-temporal.json")
    outcome, _ = worker_of(workers, "0.18.1").explain(trace)
    assert outcome.violation is not None


def test_a_step_smaller_than_a_block_is_refused_where_vllm_refuses_it(workers: dict[str, WorkerClient]) -> None:
    with pytest.raises((TraceError, TargetError), match="at least a block"):
        worker_of(workers, "0.18.1").run(load_trace(FOLDER / "0.16.0--align-starvation--M8-step-stall.json"))


@pytest.mark.parametrize("runner", ["v2", "v1"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"num_speculative_tokens": 2}, {"async_depth": 1}, {"num_speculative_tokens": 2, "async_depth": 1}],
)
@pytest.mark.parametrize("mode", ["align", "none"])
@pytest.mark.parametrize(
    ("graphs", "mixer"), [("none", "gdn"), ("decode", "gdn"), ("decode", "mamba2"), ("decode", "short_conv")]
)
def test_a_plain_trace_is_silent(
    workers: dict[str, WorkerClient], runner: str, changes: dict[str, int], mode: str, graphs: str, mixer: str
) -> None:
    config = Config(
        num_blocks=40,
        groups=(Group("mamba", 8), Group("attention", 8)),
        mamba_cache_mode=mode,  # type: ignore[arg-type]
        enable_prefix_caching=mode != "none",
        graph_sizes=(3,),
        options={"runner": runner, "graphs": graphs, "mixer": mixer},
        **changes,
    )
    events = (
        Arrive("x", (("d", 20),), 10),
        Arrive("y", (("d", 20), ("e", 5)), 10),
        *[Step(drafts=2, right=index % 3) for index in range(4)],
        Preempt("x"),
        Arrive("z", (("d", 20), ("~", 5)), 10),
        *[Step(drafts=2, right=index % 3) for index in range(30)],
        DummyRun(1),
    )
    if (runner, mode) == ("v1", "align") and mixer != "gdn" and changes.get("num_speculative_tokens"):
        # Cause 8 of docs/explanation/vllm.md needs a preemption.
        events = tuple(event for event in events if not isinstance(event, Preempt))
    outcome = worker_of(workers, "0.33.0").run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.exercised["S3"] > 0
    assert (outcome.reached.get("padding rows", 0) > 0) == (graphs == "decode")


@pytest.mark.parametrize("runner", ["v2", "v1"])
def test_random_traces_without_speculation_are_silent(workers: dict[str, WorkerClient], runner: str) -> None:
    exercised: Counter[str] = Counter()
    # Causes 31 and 32 of docs/explanation/vllm.md need a stop token, and structured output in a session.
    workload = with_ratios({"stop_token": "0", "structured_turn": "0"})
    for mixer in ("gdn", "mamba2", "short_conv"):  # plain linear attention has bugs of its own: test_state_kinds.py
        overrides = {**SOUND, "runner": runner, "mixer": mixer, **({"graphs": "none"} if runner == "v1" else {})}
        for ran in worker_of(workers, "0.33.0").fuzz(
            Fuzz(12, 0, -(-TRACES // 2), overrides, twice_every=4, workload=workload)
        ):
            assert ran.outcome.violation is None, ran.outcome.violation.message
            exercised.update(ran.outcome.exercised)
    silent = {oracle for oracle, times in exercised.items() if not times}
    assert not silent, "an oracle that judged nothing proves nothing"
