"""One trace, three engines: the embedded target's corpus runs, ported, on vLLM and SGLang as well, and every request
that ends by itself samples the same tokens on all of them.

Needs both engines' environments. The releases are those without a known bug in these traces.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.judge.differential import EventSummary
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Abort, Arrive, Config, Group, Preempt, Step, Trace

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

CORPUS = Path(__file__).parents[2] / "corpus"
TARGETS = ("hybrid", "vllm@0.33.0", "sglang@0.5.23")
SLUGS = (
    "abort-between-match-and-alloc-leak",
    "accepted-count-double-permuted",
    "accepted-count-zero",
    "admission-undercount",
    "connector-max-of-per-group-hits",
    "global-seen-tokens",
    "int8-dtype-mismatch-stride",
    "load-back-abort-publishes-slot-early",
    "mixed-local-external-hit",
    "padding-aliases-parked-live-request",
    "publish-before-commit",
    "unfinished-insert-not-transactional",
)
PLAIN = Trace(
    Config(
        num_blocks=24,
        groups=(Group("mamba", 8), Group("attention", 8)),
        mamba_cache_mode="none",
        enable_prefix_caching=False,
    ),
    (
        Arrive("x", (("a", 20),), 9),
        Arrive("y", (("a", 20), ("b", 5)), 5),
        *[Step() for _ in range(4)],
        Preempt("x"),
        Step(budget=12),
        Arrive("z", (("a", 20), ("~", 5)), 7),
        *[Step() for _ in range(8)],
    ),
)
"""Nothing in it needs porting."""


@pytest.fixture(scope="module")
def workers() -> Iterator[list[WorkerClient]]:
    with ExitStack() as stack:
        started = [stack.enter_context(WorkerClient(spec, prepare(spec, print), trace_seconds=300)) for spec in TARGETS]
        for worker in started:
            worker.start()
        yield started


def sampled(trace: Trace, summaries: Sequence[EventSummary]) -> dict[str, list[int]]:
    """Return the tokens of requests that ended and were not aborted."""
    tokens: dict[str, list[int]] = {}
    ended: set[str] = set()
    for summary_of_event in summaries:
        for name, listed in re.findall(r"(\w+) \[([\d, ]*)\]", summary_of_event.delivered):
            tokens.setdefault(name, []).extend(int(word) for word in listed.split(","))
        ended.update(re.findall(r"(\w+) ended", summary_of_event.delivered))
    given_up = {event.name for event in trace.events if isinstance(event, Abort)}
    return {name: tokens[name] for name in sorted(ended - given_up)}


@pytest.mark.parametrize("slug", SLUGS)
def test_three_engines_sample_the_same_tokens(workers: list[WorkerClient], slug: str) -> None:
    [file] = CORPUS.glob(f"{slug}--*.json")
    check(workers, load_trace(file))


def test_a_trace_without_prefix_caching_runs_as_it_is(workers: list[WorkerClient]) -> None:
    assert not any(worker.port(PLAIN).changes for worker in workers)
    check(workers, PLAIN)


def check(workers: list[WorkerClient], trace: Trace) -> None:
    wanted = {event.name: event.max_new_tokens for event in trace.events if isinstance(event, Arrive)}
    found = []
    for worker in workers:
        outcome, summaries = worker.run_summarized(worker.port(trace).trace)
        assert outcome.violation is None, f"{worker.spec}: {outcome.violation.message}"
        found.append(sampled(trace, summaries))
    assert found[0], "no request ended"
    assert found[0] == found[1] == found[2]
    assert {name: len(tokens) for name, tokens in found[0].items()}.items() <= wanted.items()
    assert len(found[0]) == len(wanted) - sum(isinstance(event, Abort) for event in trace.events)
