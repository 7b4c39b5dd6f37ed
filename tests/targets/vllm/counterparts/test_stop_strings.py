"""Stop strings on the released vLLM: its front end finds them in the text of an answer, and aborts the request."""

import pytest

from hybridfuzz.harness.group.known.fixes import Fixes
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.patches import parse_patch
from hybridfuzz.targets.base.trace import Abort, Arrive, Config, Group, Step, Trace, TraceError

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

GROUPS = Group("mamba", 8), Group("attention", 8)
NAMES = ("r0", "r1", "r2", "r4")
"""Their clients get the text with the string and without it, what is new and all of it."""
SURPLUS = """\
--- a/vllm/v1/engine/detokenizer.py
+++ b/vllm/v1/engine/detokenizer.py
@@ -147,3 +147,3 @@
                 # Drop tokens generated after the one completing the stop string
                 # (possible when multiple tokens are appended in one step).
-                num_kept = bisect_left(token_offsets, stop_end, lo=1)
+                num_kept = bisect_left(token_offsets, stop_end + 1, lo=1)
"""
TEXT = """\
--- a/vllm/v1/engine/detokenizer.py
+++ b/vllm/v1/engine/detokenizer.py
@@ -149,4 +149,4 @@
                 num_kept = bisect_left(token_offsets, stop_end, lo=1)
                 del self.token_ids[first_new_token_index + num_kept :]
-                if truncate_to != -1:
+                if truncate_to > 0 and len(token_offsets) == 2:
                     self.output_text = self.output_text[:truncate_to]
"""


def stopping(runner: str, drafts: int, depth: int) -> Trace:
    """Return a trace whose requests end by strings of one to four tokens."""
    options = {"runner": runner}
    config = Config(60, GROUPS, num_speculative_tokens=drafts, async_depth=depth, options=options)
    arrivals = [
        Arrive(name, (("a", 3 + index),), 9, stop_at=4, stop_string=True, string_before=index)
        for index, name in enumerate(NAMES)
    ]
    return Trace(config, (*arrivals, *(Step(drafts=drafts, right=drafts),) * 12))


@pytest.mark.parametrize("runner", ["v2", "v1"])
@pytest.mark.parametrize(("drafts", "depth"), [(0, 0), (0, 1), (3, 0), (3, 1)])
def test_an_answer_ends_with_the_last_token_of_a_stop_string(
    worker: WorkerClient, runner: str, drafts: int, depth: int
) -> None:
    """Tokens that a verification accepts behind it are never sent."""
    outcome = worker.run(stopping(runner, drafts, depth))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["ended by a stop string"] == len(NAMES)
    assert outcome.reached["ended by a stop string of several tokens"] == len(NAMES) - 1
    assert bool(outcome.reached.get("stop string of several tokens among accepted drafts")) == bool(drafts)
    assert bool(outcome.reached.get("stop token with a step in flight")) == bool(depth)


def test_a_client_may_leave_before_its_string(worker: WorkerClient) -> None:
    trace = stopping("v2", 0, 1)
    steps = trace.events[len(NAMES) :]
    outcome = worker.run(Trace(trace.config, (*trace.events[: len(NAMES) + 3], Abort("r1", ("r2",)), *steps)))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["ended by a stop string"] == len(NAMES) - 2


@pytest.mark.parametrize(("patch", "found"), [(SURPLUS, "S6-step-length"), (TEXT, "CRASH-step-EngineError-_check")])
def test_a_token_behind_the_string_and_a_wrong_text_are_found(fixes: Fixes, patch: str, found: str) -> None:
    launch = patched(fixes.launch, [parse_patch(patch, "break")])
    with WorkerClient("vllm@0.33.0", launch, trace_seconds=300) as broken:
        broken.start()
        violation = broken.run(stopping("v2", 3, 0)).violation
    assert violation is not None
    assert violation.signature == found


def test_a_session_with_a_stop_string_is_refused(worker: WorkerClient) -> None:
    config = Config(60, GROUPS)
    first = Arrive("r0", (("a", 3),), 3, session=True, stop_at=2, stop_string=True)
    with pytest.raises(TraceError, match="no strings-everywhere"):
        worker.run(Trace(config, (first, Step())))
