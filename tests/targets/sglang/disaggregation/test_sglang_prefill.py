"""A prefill server of SGLang: what it sends is right, and whatever becomes of a request nothing is left of it."""

from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.patches import parse_patch
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Abort, Arrive, Config, Event, Group, Pause, Step, Trace
from hybridfuzz.targets.sglang.factory import SglangFactory

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

SPEC = "sglang@0.5.23"
OPTIONS = {"disaggregation": "prefill", "strategy": "extra_buffer"}
CONFIG = Config(
    100, (Group("mamba", 4), Group("attention", 1)), "slots", max_model_len=40, max_num_seqs=3,
    max_num_batched_tokens=8, graph_sizes=(), options=OPTIONS,
)  # fmt: skip
STEPS_MAX = 14
"""Turns in which a prompt of `PROMPT` has certainly been sent."""
PROMPT = (("a", 13),)


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerClient]:
    with WorkerClient(SPEC, prepare(SPEC, print), trace_seconds=300) as started:
        started.start()
        yield started


def run(worker: WorkerClient, *events: Event, depth: int = 0, **options: str) -> Outcome:
    config = msgspec.structs.replace(CONFIG, async_depth=depth, options={**OPTIONS, **options})
    return worker.run(Trace(config, events))  # type: ignore[arg-type]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("core", ["python", "rust"])
def test_a_prompt_in_chunks_arrives_before_its_client_gets_the_first_token(
    worker: WorkerClient, depth: int, core: str
) -> None:
    """Two chunks, and then the same prompt behind what is cached of it."""
    asked = Arrive("r0", PROMPT, 1), *(Step(),) * STEPS_MAX, Arrive("r1", (*PROMPT, ("b", 3)), 1)
    outcome = run(worker, *asked, *(Step(),) * STEPS_MAX, depth=depth, tree_core=core)
    assert outcome.violation is None, outcome.violation.message
    reached = outcome.reached
    assert reached["chunked prefill"] and reached["prefix hit"]
    assert reached["content sent to another engine"] >= 2
    assert reached["answer held back until its request was sent"]


@pytest.mark.parametrize("page", [1, 4])
def test_what_the_next_token_attends_to_in_a_window_arrives(worker: WorkerClient, page: int) -> None:
    """The prompt is longer than the window, and ends inside a page."""
    groups = Group("mamba", 4), Group("attention", page), Group("attention", page, window=4)
    options = {**OPTIONS, "tree_core": "python"}
    config = msgspec.structs.replace(CONFIG, groups=groups, async_depth=1, options=options)
    outcome = worker.run(Trace(config, (Arrive("r0", PROMPT, 1), *(Step(),) * STEPS_MAX)))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["content sent to another engine"] >= 2


@pytest.mark.parametrize("depth", [0, 1])
def test_an_abort_at_any_time_leaves_nothing(worker: WorkerClient, depth: int) -> None:
    """While the decode server has not answered, between two chunks, while it is sent; by the server or by its peer,
    which follows from the request."""
    reached: Counter[str] = Counter()
    for name in ("r0", "r1", "r2", "r3"):
        for steps in range(STEPS_MAX):
            other = Arrive("other", (("b", 6),), 1)
            outcome = run(worker, Arrive(name, PROMPT, 1), other, *(Step(),) * steps, Abort(name), Step(), depth=depth)
            assert outcome.violation is None, (name, steps, outcome.violation.message)
            reached.update(outcome.reached)
    assert reached["aborted while running"] and reached["aborted while its answer was held back"]


@pytest.mark.parametrize("depth", [0, 1])
def test_a_pause_between_two_chunks_changes_nothing(worker: WorkerClient, depth: int) -> None:
    for steps in range(STEPS_MAX):
        outcome = run(worker, Arrive("r0", PROMPT, 1), *(Step(),) * steps, Pause(), depth=depth)
        assert outcome.violation is None, (steps, outcome.violation.message)


EARLY = tuple((document, length) for length in (10, 11, 13, 14) for document in "abc")
"""Prompts of two chunks, whose decode servers answer at once or up to three turns later."""


@pytest.mark.parametrize("optimistic", ["1", "2"])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_prompt_may_be_computed_before_its_decode_server_has_answered(
    worker: WorkerClient, depth: int, optimistic: str
) -> None:
    """Alone, and where it gives way to one whose decode server has answered, and is computed again."""
    for prompt in EARLY:
        alone = Arrive("r0", (prompt,), 1), *(Step(),) * STEPS_MAX
        outcome = run(worker, *alone, depth=depth, optimistic=optimistic)
        assert outcome.violation is None, (prompt, outcome.violation.message)
        others = [event for name in ("r1", "r2", "r3") for event in (Arrive(name, ((name, 12),), 1), Step(), Step())]
        outcome = run(worker, alone[0], *others, *(Step(),) * (2 * STEPS_MAX), depth=depth, optimistic=optimistic)
        assert outcome.violation is None, (prompt, outcome.violation.message)


FORGETS_THE_LAST_CHUNK = """--- a/sglang/srt/disaggregation/prefill.py
+++ b/sglang/srt/disaggregation/prefill.py
@@ -1083,5 +1083,5 @@
                 still_chunking = self.chunked_req is req or (
                     req.extend_end is not None
-                    and req.extend_end >= len(req.origin_input_ids)
+                    and req.extend_end > len(req.origin_input_ids)
                 )
                 # Abort is terminal. Do not requeue an aborted optimistic
"""
"""A prompt whose last chunk is in flight looks as if it had given way."""


def test_a_prompt_that_is_queued_again_under_its_last_chunk_is_seen() -> None:
    broken = f"sglang@{patched(prepare(SPEC, print), [parse_patch(FORGETS_THE_LAST_CHUNK, 'forgets')]).tree}"
    with WorkerClient(broken, prepare(broken, print), trace_seconds=300) as worker:
        worker.start()
        events = [(Arrive("r0", (prompt,), 1), *(Step(),) * STEPS_MAX) for prompt in EARLY]
        found = [run(worker, *alone, depth=1, optimistic="1").violation for alone in events]
    assert {violation.oracle for violation in found if violation} == {"S1"}


def test_random_traces_are_silent(worker: WorkerClient) -> None:
    """Every fourth does the same again. Cause 45 needs more traces than these, others HiCache."""
    factory, reached = SglangFactory("sglang", mixes=True), Counter[str]()
    overrides = {"disaggregation": "prefill", "hicache": "no"}
    for index in range(12):
        trace = draw_trace(factory.capabilities, 7, index, overrides, factory.supports)
        outcome = worker.run(trace)
        assert outcome.violation is None, outcome.violation.message
        assert index % 4 or worker.run(trace).digest == outcome.digest
        reached.update(outcome.reached)
    for state in ("content sent to another engine", "answer held back until its request was sent", "chunked prefill"):
        assert reached[state], state


BREAKS = {
    "state": """--- a/sglang/srt/disaggregation/prefill.py
+++ b/sglang/srt/disaggregation/prefill.py
@@ -1765,5 +1765,5 @@
             if not sender.should_send_kv_chunk(len(page_indices), segment_is_last):
                 continue
-            send_state_indices = state_indices if segment_is_last else None
+            send_state_indices = None
             if indices_event is not None:
                 sender.send(
""",
    "window": """--- a/sglang/srt/disaggregation/prefill.py
+++ b/sglang/srt/disaggregation/prefill.py
@@ -1596,5 +1596,5 @@
                     else kvcache.sliding_window
                 )
-                window_start = max(req.disagg_decode_prefix_len, seq_len - window_size)
+                window_start = max(req.disagg_decode_prefix_len, seq_len - window_size + page_size)
                 window_start = (window_start // page_size) * page_size
                 if request_window is not None:
""",
    "pages": """--- a/sglang/srt/disaggregation/prefill.py
+++ b/sglang/srt/disaggregation/prefill.py
@@ -1761,5 +1761,5 @@
                 indices_event.record(torch.cuda.current_stream())
             else:
-                page_indices = kv_to_page_indices(kv_indices, page_size)
+                page_indices = kv_to_page_indices(kv_indices.flip(0), page_size)
             segment_is_last = last_chunk and is_final_segment
             if not sender.should_send_kv_chunk(len(page_indices), segment_is_last):
""",
}
"""A last chunk without its state, one with too little of a window; pages in another order."""


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_send_shows(name: str) -> None:
    broken = patched(prepare(SPEC, print), [parse_patch(BREAKS[name], name)])
    target = f"sglang@{broken.tree}"
    with WorkerClient(target, prepare(target, print), trace_seconds=300) as worker:
        worker.start()
        groups = (*CONFIG.groups, *([Group("attention", 1, window=4)] if name == "window" else []))
        config = msgspec.structs.replace(CONFIG, groups=groups, options={**OPTIONS, "tree_core": "python"})
        violation = worker.run(Trace(config, (Arrive("r0", PROMPT, 1), *(Step(),) * STEPS_MAX))).violation
    assert violation is not None and (violation.oracle, violation.field) == ("S1", "sent")
