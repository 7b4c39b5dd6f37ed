"""The packaged fixes of vLLM apply together, and silence the traces of their causes.

A trace of the corpus fails on its release as it is (test_release.py), and runs clean with all fixes of the release.
"""

import datetime
from pathlib import Path

import pytest
from support import of_release

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.group.known.fixes import BUILTIN, Fixes, apply_fixes, read_fixes
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.patched_copy import patched
from hybridfuzz.targets.base.registry import prepare
from hybridfuzz.targets.base.trace import Arrive, Config, Group, Resume, Step, Trace

pytestmark = pytest.mark.engine
TARGET = "vllm@0.33.0"
DATA = Path(__file__).parents[2] / "data"


def test_all_apply_together(fixes: Fixes) -> None:
    assert len(fixes.in_effect) == 43
    assert fixes.launch.version == "0.33.0 + 43 fixes"


def test_the_traces_of_all_causes_are_silent(fixes: Fixes, worker: WorkerClient) -> None:
    for entry in fixes.in_effect:
        for name, trace in zip(entry.traces, entry.read_traces(), strict=True):
            assert worker.run(trace).violation is None, name


@pytest.mark.parametrize(
    ("release", "count"),
    [
        of_release("vllm", release, release, count)
        for release, count in {"0.14.1": 9, "0.16.0": 16, "0.18.1": 8, "0.22.1": 14, "0.26.0": 15, "0.28.0": 17}.items()
    ],
)
def test_fixes_of_an_older_release_apply_together_and_silence_its_traces(release: str, count: int) -> None:
    target = f"vllm@{release}"
    fixes = apply_fixes(prepare(target, print), read_fixes(BUILTIN, target), target, datetime.date.today())
    assert fixes.problems == {} and len(fixes.in_effect) == count
    with WorkerClient(target, fixes.launch, 300.0) as worker:
        worker.start()
        for entry in fixes.in_effect:
            for name, trace in zip(entry.traces, entry.read_traces(), strict=True):
                assert worker.run(trace).violation is None, name


def test_decodes_behind_tokens_that_are_computed_again(worker: WorkerClient) -> None:
    """Trace 413 of seed 303, reduced: an earlier fix of cause 8 let a decode run as prefill."""
    assert worker.run(load_trace(DATA / "vllm-decode-behind-replayed-tokens.json")).violation is None


def test_a_load_that_fits_an_empty_pool_is_admitted(worker: WorkerClient) -> None:
    """Trace 45 of seed 140, reduced: an earlier fix of cause 14 reserved the request's own drafts a second time, so a
    request that needs the whole pool waited forever."""
    assert worker.run(load_trace(DATA / "vllm-load-that-fills-the-pool.json")).violation is None


def test_two_loads_that_end_inside_a_block_go_on(worker: WorkerClient) -> None:
    """Trace 638 of seed 20261209, reduced: an earlier fix of cause 14 did not count the block for the copy of a loaded
    state that gets a key, so the first waited for it, and the second behind it."""
    outcome = worker.run(load_trace(DATA / "vllm-loads-that-end-inside-a-block.json"))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["loaded from outside the pool"] >= 3


def test_a_released_block_that_was_handed_out_lost_its_key(worker: WorkerClient) -> None:
    """Trace 257 of seed 20261128, reduced: M8 objected, but a state of another request was copied into it meanwhile."""
    assert worker.run(load_trace(DATA / "vllm-released-block-handed-out.json")).violation is None


def test_a_loaded_block_of_a_drafter_ends_in_its_writers_token(worker: WorkerClient) -> None:
    """Trace 9367 of seed 20261701, reduced: a request that ended behind token 32 had stored the drafter's block before
    it, whose last slot depends on the token that it sampled. S2 knew that of hits, not of loads."""
    assert worker.run(load_trace(DATA / "vllm-loaded-block-of-a-drafter.json")).violation is None


def test_look_ups_after_one_another_are_no_stall(worker: WorkerClient) -> None:
    """Trace 12604 of seed 20261701, reduced: one of the files was cut off, and the hit was looked up anew."""
    assert worker.run(load_trace(DATA / "vllm-look-ups-after-one-another.json")).violation is None


def test_a_connector_is_told_of_a_session_s_end_before_its_name_comes_back(worker: WorkerClient) -> None:
    """Trace 87 of seed 31, reduced: offloading looked for the step of a session that had timed out, since its client
    came back, under the same name, in the same step. On a server it has another id."""
    assert worker.run(load_trace(DATA / "vllm-session-comes-back-before-its-end-is-told.json")).violation is None


def test_the_state_of_a_session_behind_rejected_drafts(fixes: Fixes) -> None:
    """An earlier fix of cause 28 took the column from the number of tokens; the fix of cause 17 hid that."""
    [entry] = [entry for entry in fixes.in_effect if entry.name == "session-keeps-column"]
    with WorkerClient(TARGET, patched(prepare(TARGET, print), [entry.read_patch()]), 300.0) as worker:
        worker.start()
        assert worker.run(load_trace(DATA / "vllm-session-behind-rejected-drafts.json")).violation is None


@pytest.mark.parametrize("depth", [0, 1])
def test_each_turn_of_a_session_waits_for_its_own_grammar(worker: WorkerClient, depth: int) -> None:
    """Structured, then free; free, then structured; and structured twice."""
    groups = Group("mamba", 8), Group("attention", 8)
    config = Config(90, groups, async_depth=depth, max_num_batched_tokens=32, options={"runner": "v2"})
    first = [Arrive(f"r{i}", (("a", 3),), 4, session=True, structured=asked) for i, asked in enumerate((1, 0, 2))]
    then = [Resume(f"r{i}", (("e", 3),), 4, structured=asked) for i, asked in enumerate((0, 3, 1))]
    outcome = worker.run(Trace(config, (*first, *[Step()] * 10, *then, *[Step()] * 12)))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["later turn with structured output"] == 2
    assert outcome.reached["turn resumed with kept caches"] == 3
