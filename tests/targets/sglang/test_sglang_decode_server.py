"""A decode server of prefill/decode disaggregation: SGLang's own queues around a network that is a stand-in."""

import pytest
from support import of_release

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.patches import parse_patch
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import (
    Abort,
    AnyEvent,
    Arrive,
    Config,
    Group,
    Pause,
    Preempt,
    Step,
    Trace,
    TraceError,
)
from hybridfuzz.targets.sglang.factory import SglangFactory

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

LATEST = "0.5.23"
SPEC = f"sglang@{LATEST}"
CASES = [
    of_release("sglang", LATEST, *case)
    for case in (
        ("none", "no_buffer", 1, 0),
        ("none", "no_buffer", 4, 1),
        ("slots", "no_buffer", 1, 0),
        ("slots", "extra_buffer", 4, 0),
        ("slots", "extra_buffer", 2, 1),
    )
]
"""Mode of the cache, strategy, page size, steps in flight."""


def config_of(mode: str, strategy: str, page: int, depth: int, seats: int = 2) -> Config:
    return Config(
        num_blocks=80,
        groups=(Group("mamba", 4), Group("attention", page)),
        mamba_cache_mode=mode,  # type: ignore[arg-type]
        enable_prefix_caching=mode != "none",
        max_model_len=32,
        max_num_seqs=seats,
        async_depth=depth,
        options={"strategy": strategy, "tree_core": "python", "disaggregation": "decode"},
    )


def silent(worker: WorkerClient, config: Config, *events: AnyEvent) -> Outcome:
    outcome = worker.run(Trace(config, events))
    assert outcome.violation is None, outcome.violation.message
    return outcome


@pytest.mark.parametrize(("mode", "strategy", "page", "depth"), CASES)
def test_an_answer_begins_with_the_token_that_comes_with_its_prompt(
    worker: WorkerClient, mode: str, strategy: str, page: int, depth: int
) -> None:
    """That token may be the whole answer, its stop token, or the first one under a grammar."""
    arrivals = [
        Arrive("r0", (("a", 1),), 6),
        Arrive("r1", (("a", 8),), 5),
        Arrive("r2", (("a", 13),), 1),
        Arrive("r3", (("a", 9),), 6, stop_at=1),
        Arrive("r4", (("a", 9),), 6, stop_at=4, min_tokens=5),
        Arrive("r5", (("a", 9),), 6, structured=2),
        Arrive("r6", (("a", 9),), 6, prompt_logprobs=True),
    ]
    outcome = silent(worker, config_of(mode, strategy, page, depth), *arrivals, *[Step()] * 30)
    assert outcome.reached["request computed after it waited for a load"] == 5, "all but those of one token"
    assert outcome.exercised["S2"] and outcome.exercised["S4"]


@pytest.mark.parametrize(("mode", "strategy", "page", "depth"), CASES)
def test_what_is_retracted_goes_on_where_it_was(
    worker: WorkerClient, mode: str, strategy: str, page: int, depth: int
) -> None:
    arrivals = [Arrive(f"r{number}", (("a", 5 + number),), 12) for number in range(3)]
    first = [Preempt("r0"), Step(), Step(), Preempt("r1"), Preempt("r0"), Step()]
    second = [Pause(), *[Step()] * 9, Preempt("r2")]
    events = [*arrivals, *[Step()] * 6, *first, *second, *[Step()] * 25]
    outcome = silent(worker, config_of(mode, strategy, page, depth, seats=3), *events)
    assert outcome.reached["preempted"] >= 2
    assert outcome.reached["generation paused while requests run"] == 1


@pytest.mark.parametrize("turns", range(6))
@pytest.mark.parametrize(("mode", "strategy", "page", "depth"), CASES)
def test_a_client_may_leave_in_each_queue(
    worker: WorkerClient, mode: str, strategy: str, page: int, depth: int, turns: int
) -> None:
    arrivals = [Arrive(f"r{number}", (("a", 9),), 8) for number in range(5)]
    leaves = [Abort(f"r{number}") for number in (0, 2, 4)]
    config = config_of(mode, strategy, page, depth)
    silent(worker, config, *arrivals, *[Step()] * turns, *leaves, *[Step()] * 20)


@pytest.mark.parametrize("wait", [of_release("sglang", LATEST, wait) for wait in (1, 3)])
def test_a_request_whose_grammar_is_none_ends_before_it_is_in_a_queue(worker: WorkerClient, wait: int) -> None:
    """Nothing else may be there for which a turn would run."""
    arrivals = [Arrive(f"r{number}", (("a", 4),), 2, bad_grammar=wait) for number in range(2)]
    silent(worker, config_of("none", "no_buffer", 1, 0), arrivals[0], Step(), arrivals[1])


@pytest.mark.parametrize("drafts", [of_release("sglang", LATEST, drafts) for drafts in (0, 2)])
def test_random_traces_are_silent(worker: WorkerClient, drafts: int) -> None:
    factory = SglangFactory("sglang", mixes=True)
    overrides = {"disaggregation": "decode", "num_speculative_tokens": drafts}
    for index in range(12):
        trace = draw_trace(factory.capabilities, 3, index, overrides, factory.supports)
        outcome = silent(worker, trace.config, *trace.events)
        assert index % 4 or worker.run(trace).digest == outcome.digest


@pytest.mark.parametrize("session", [of_release("sglang", LATEST, True)])
def test_sessions_are_not_driven(worker: WorkerClient, session: bool) -> None:
    trace = Trace(config_of("slots", "extra_buffer", 1, 1), (Arrive("r0", (("a", 4),), 2, session=session), Step()))
    with pytest.raises(TraceError, match="resume"):
        worker.run(trace)


DECODE = """--- a/sglang/srt/disaggregation/decode.py
+++ b/sglang/srt/disaggregation/decode.py
"""
BREAKS = {
    "destinations from the first token on": (
        "M3",
        """@@ -1641,3 +1641,3 @@
                 decode_req.req.kv.req_pool_idx
-            ][total_prefix_len:origin_input_len]
+            ][:origin_input_len]
             if self.scheduler.enable_hisparse:
""",
    ),
    "a transfer that broke off keeps its memory": (
        "M9",
        """@@ -2968,4 +2968,3 @@
             else:
-                self._release_request(decode_req)
                 decode_req.kv_receiver.clear()
                 decode_req.kv_receiver = None
""",
    ),
}
"""Breaks of SGLang's queues, and the oracle that says so."""
HIT_AND_ABORT = (
    Arrive("r0", (("a", 9),), 8),
    *(Step(),) * 16,
    Arrive("r1", (("a", 12),), 4),
    Step(),
    Step(),
    Abort("r1"),
    *(Step(),) * 4,
    Arrive("r2", (("a", 12),), 4),
    *(Step(),) * 9,
)


@pytest.mark.parametrize("name", [of_release("sglang", LATEST, name) for name in BREAKS])
def test_a_broken_queue_shows(name: str) -> None:
    oracle, patch = BREAKS[name]
    broken = f"sglang@{patched(prepare(SPEC, print), [parse_patch(DECODE + patch, name)]).tree}"
    with WorkerClient(broken, prepare(broken, print), trace_seconds=300) as worker:
        worker.start()
        violation: Violation | None = worker.run(Trace(config_of("slots", "no_buffer", 1, 0), HIT_AND_ABORT)).violation
    assert violation is not None and violation.oracle == oracle
