"""Released SGLang, through the same worker processes as a campaign. Makes the environment if it is missing.

RELEASE--CAUSE--SIGNATURE.json in corpus/sglang is a reduced trace of a real bug: docs/sglang.md argues each.
"""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hybridfuzz.harness.codec import load_trace
from hybridfuzz.harness.messages import Fuzz
from hybridfuzz.harness.supervisor import Worker
from hybridfuzz.targets.base.registry import prepare

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

FOLDER = Path(__file__).parents[2] / "corpus" / "sglang"
FILES = sorted(path.name for path in FOLDER.glob("*.json"))
OLD = ("0.5.4", "0.5.9", "0.5.12.post1")
"""Each release costs an import: HYBRIDFUZZ_OLD_RELEASES=1 replays the traces of these as well."""
TRACES = int(os.environ.get("HYBRIDFUZZ_ENGINE_TRACES", "20"))


@pytest.fixture(scope="module")
def workers() -> Iterator[dict[str, Worker]]:
    """One worker per release, started when it is first needed: importing SGLang takes most of the time."""
    started: dict[str, Worker] = {}
    yield started
    for worker in started.values():
        worker.__exit__()


def worker_of(workers: dict[str, Worker], release: str) -> Worker:
    spec = f"sglang@{release}"
    if spec not in workers:
        workers[spec] = Worker(spec, prepare(spec, print), trace_seconds=300)
        workers[spec].start()
    return workers[spec]


@pytest.mark.parametrize("name", FILES)
def test_a_bug_of_a_release_shows_as_its_trace_says(workers: dict[str, Worker], name: str) -> None:
    release, _, signature = name.removesuffix(".json").split("--")
    if release in OLD and not os.environ.get("HYBRIDFUZZ_OLD_RELEASES"):
        pytest.skip("HYBRIDFUZZ_OLD_RELEASES is not set")
    violation = worker_of(workers, release).run(load_trace(FOLDER / name)).violation
    assert violation is not None, "the release is silent"
    assert violation.signature == signature, violation.message


def test_random_traces_without_prefix_caching_are_silent(workers: dict[str, Worker]) -> None:
    exercised: Counter[str] = Counter()
    overrides = {"mamba_cache_mode": "none", "enable_prefix_caching": False}
    for ran in worker_of(workers, "0.5.23").fuzz(Fuzz(7, 0, TRACES, overrides, twice_every=4)):
        assert ran.outcome.violation is None, ran.outcome.violation.message
        assert not ran.outcome.reached.get("prefix hit")
        exercised.update(ran.outcome.exercised)
    assert all(exercised[oracle] for oracle in ("M1", "M5", "M9", "S3", "S4", "S6"))


@pytest.mark.parametrize("strategy", ["no_buffer", "extra_buffer", "extra_buffer_lazy"])
def test_random_traces_are_silent(workers: dict[str, Worker], strategy: str) -> None:
    worker = worker_of(workers, "0.5.23")
    exercised: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    # A track interval shorter than two verifications shows 0.5.23--two-crossings-in-flight.
    overrides = {"strategy": strategy, "mamba_cache_mode": "slots", "track": "2"}
    for ran in worker.fuzz(Fuzz(7, 0, TRACES, overrides, twice_every=4)):
        assert ran.outcome.violation is None, ran.outcome.violation.message
        exercised.update(ran.outcome.exercised)
        reached.update(ran.outcome.reached)
    assert {oracle for oracle, times in exercised.items() if not times} <= {"M4"}, "the others have judged something"
    assert reached["state copied out of the cache"]
    assert reached["snapshot written beside the working state"] or strategy == "no_buffer"
    assert reached["draft rejected"] and reached["all drafts accepted"]
    assert reached["boundary crossed in a step with a rejection"]
