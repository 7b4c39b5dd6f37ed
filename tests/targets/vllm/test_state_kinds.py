"""Short convolutions and plain linear attention in vLLM 0.33.0: silent behind the packaged fixes, and not blind.

A state of only one part (window or recurrent state) goes through vLLM's own copies, tables and builders.
"""

import difflib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from hybridfuzz.harness.group.known.fixes import Fixes
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.patches import Patch, parse_patch

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

SPEC = "vllm@0.33.0"
KINDS = ("short_conv", "linear")
BACKENDS = "vllm/v1/attention/backends"


class Break(NamedTuple):
    """A line of vLLM that is replaced, and the kinds of layers that show it."""

    file: str
    old: str
    new: str
    shows: tuple[str, ...]


BREAKS = {
    "the column after a full one is gathered": Break(
        f"{BACKENDS}/utils.py",
        "start_indices = (seq_lens - 1) // kv_cache_spec.block_size",
        "start_indices = seq_lens // kv_cache_spec.block_size",
        KINDS,
    ),
    "a new prompt has an initial window": Break(
        f"{BACKENDS}/mamba_attn.py",
        "num_computed_tokens[num_reqs - num_prefills : num_reqs] > 0",
        "num_computed_tokens[num_reqs - num_prefills : num_reqs] >= 0",
        ("short_conv",),
    ),
    "a verification starts from the first column": Break(
        f"{BACKENDS}/linear_attn.py",
        "num_accepted_tokens = num_accepted_tokens[:num_decodes]",
        "num_accepted_tokens = torch.ones_like(num_accepted_tokens[:num_decodes])",
        ("linear",),
    ),
}


def broken(launch: Launch, name: str) -> Patch:
    """Return a patch that replaces one line of the release behind its fixes."""
    one = BREAKS[name]
    before = (Path(launch.tree) / one.file).read_text(encoding="utf-8")
    assert before.count(one.old) == 1
    lines = [text.splitlines(keepends=True) for text in (before, before.replace(one.old, one.new))]
    return parse_patch("".join(difflib.unified_diff(*lines, f"a/{one.file}", f"b/{one.file}")), name)


@pytest.mark.parametrize("kind", KINDS)
def test_random_traces_are_silent_behind_the_fixes(worker: WorkerClient, kind: str) -> None:
    exercised: Counter[str] = Counter()
    for ran in worker.fuzz(Fuzz(3, 0, 8, {"mixer": kind})):
        assert ran.outcome.violation is None, ran.outcome.violation.message
        exercised.update(ran.outcome.exercised)
    assert min(exercised[oracle] for oracle in ("S1", "S2", "S3", "S4", "M5")) > 0


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_line_is_noticed(fixes: Fixes, name: str) -> None:
    with WorkerClient(SPEC, patched(fixes.launch, [broken(fixes.launch, name)]), trace_seconds=300) as one:
        one.start()
        for kind in BREAKS[name].shows:
            overrides = {"mixer": kind, "mamba_cache_mode": "align"}
            if not any(ran.outcome.violation for ran in one.fuzz(Fuzz(1, 0, 40, overrides))):
                pytest.fail(f"{kind} does not show that {name}")
