"""Rows of docs/explanation/vllm-rows.md that show only behind a release's other fixes."""

import datetime

import pytest

from hybridfuzz.harness.group.known.fixes import BUILTIN, apply_fixes, read_fixes
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Arrive, Config, Evict, Group, Preempt, Step, Trace

pytestmark = [pytest.mark.engine, pytest.mark.exhaustive]

SPEC = "vllm@0.16.0"


def resumed() -> Trace:
    """A request with 13 outputs loses its blocks and their keys, and computes all 21 tokens again, 12 of them first."""
    config = Config(
        num_blocks=60,
        groups=(Group("mamba", 8), Group("attention", 8)),
        mamba_cache_mode="align",
        max_num_batched_tokens=32,
        options={"runner": "v1", "attention": "triton", "mixer": "gdn", "graphs": "none"},
    )
    again = Preempt("a"), Evict(50), Step(budget=12), Step(budget=12)
    return Trace(config, (Arrive("a", (("d", 8),), 24), *[Step() for _ in range(13)], *again, Step()))


@pytest.mark.parametrize(("kept", "signature"), [("resumed-request-not-aligned", "S1-step-mamba-temporal"), ("", "")])
def test_a_resumed_request_is_cut_off_the_grid(kept: str, signature: str) -> None:
    """#33706, with and without its fix."""
    fixes = [fix for fix in read_fixes(BUILTIN, SPEC) if fix.title != kept]
    applied = apply_fixes(prepare(SPEC, print), fixes, SPEC, datetime.date.today())
    with WorkerClient(SPEC, applied.launch, trace_seconds=300) as worker:
        worker.start()
        violation = worker.run(resumed()).violation
    assert (violation.signature if violation else "") == signature
