"""Sampling parameters that rows and slots need, on the released vLLM: rows that move take them along, and a slot
forgets those of its last owner."""

import pytest

from hybridfuzz.harness.group.known.fixes import Fixes
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.patches import parse_patch
from hybridfuzz.targets.base.trace import Arrive, Config, Group, Step, Trace

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

CONFIG = Config(
    60, (Group("mamba", 8), Group("attention", 8)), max_num_seqs=4, options={"runner": "v1", "sampling": "varied"}
)
MASK = """\
--- a/vllm/v1/worker/gpu_input_batch.py
+++ b/vllm/v1/worker/gpu_input_batch.py
@@ -827,5 +827,4 @@
             if self.allowed_token_ids_mask_cpu_tensor is not None:
                 self.allowed_token_ids_mask_cpu_tensor[empty_index] = (
                     self.allowed_token_ids_mask_cpu_tensor[last_req_index]
                 )
-                self.allowed_token_ids_mask_cpu_tensor[last_req_index].fill_(False)
"""
MIN_P = """\
--- a/vllm/v1/sample/logits_processor/builtin.py
+++ b/vllm/v1/sample/logits_processor/builtin.py
@@ -88,5 +88,3 @@
                 if direct == MoveDirectionality.UNIDIRECTIONAL:
-                    if min_p_a:
-                        self.min_p_cpu[adx] = 0
                     if min_p_b:
                         self.min_p_count -= 1
"""


MARKERS = """\
--- a/vllm/v1/worker/gpu/sample/thinking_budget.py
+++ b/vllm/v1/worker/gpu/sample/thinking_budget.py
@@ -91,5 +91,5 @@
             budget = min(budget, _INT32_MAX)
-            self._reset_reqs.append(req_idx)
         if self.thinking_token_budget.np[req_idx] != budget:
+            self._reset_reqs.append(req_idx)
             self.thinking_token_budget.np[req_idx] = budget
             self._budget_dirty = True
"""
ONE_SLOT = Config(
    60, (Group("mamba", 8), Group("attention", 8)), max_num_seqs=1, options={"runner": "v2", "sampling": "varied"}
)
REUSED = Trace(ONE_SLOT, (Arrive("r1", (("a", 8),), 2), *(Step(),) * 4, Arrive("r4", (("b", 40),), 6), *(Step(),) * 8))
"""Both have the smallest budget of thinking tokens that clients share. The prompt of the second request is longer than
all tokens of the first one, whose reasoning never ended."""


def moving(last: str) -> Trace:
    """Return a trace in which the request of the last row moves to that of one that ends, before another one comes."""
    first = Arrive("r5", (("a", 5),), 2), Arrive("r7", (("b", 5),), 20), Arrive(last, (("c", 5),), 20)
    return Trace(CONFIG, (*first, *(Step(),) * 4, Arrive("r10", (("d", 5),), 12), *(Step(),) * 20))


@pytest.mark.parametrize(("patch", "trace"), [(MASK, moving("r4")), (MIN_P, moving("r0")), (MARKERS, REUSED)])
def test_parameters_that_a_row_keeps_are_found(fixes: Fixes, worker: WorkerClient, patch: str, trace: Trace) -> None:
    """Of a request with a mask of allowed tokens, of one with `min_p`, and of one with a budget of thinking tokens."""
    outcome = worker.run(trace)
    assert outcome.violation is None, outcome.violation.message
    launch = patched(fixes.launch, [parse_patch(patch, "break")])
    with WorkerClient("vllm@0.33.0", launch, trace_seconds=300) as broken:
        broken.start()
        violation = broken.run(trace).violation
    assert violation is not None
    assert violation.signature == "S6-step-sampled"
