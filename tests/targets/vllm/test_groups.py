"""Groups of local attention and of a drafter, unequal blocks and hits inside blocks on the real engine: reached, and
silent with the known causes fixed."""

import os
from collections import Counter

import pytest

from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]

PLAIN = {"num_speculative_tokens": 0, "mamba_cache_mode": "align", "graphs": "none"}
TRACES = int(os.environ.get("HYBRIDFUZZ_ENGINE_TRACES", "12"))
MAMBA, ATTENTION = {"kind": "mamba", "block_size": 4}, {"kind": "attention", "block_size": 4}
WIDE = {"kind": "attention", "block_size": 8}
DRAFTING = {"runner": "v2", "mixer": "gdn", "num_speculative_tokens": 2}


@pytest.mark.parametrize(
    ("groups", "options", "states"),
    [
        (
            (MAMBA, ATTENTION, {**ATTENTION, "window": 5}),
            {},
            ("blocks to the left of a sliding window freed", "hit behind a sliding window"),
        ),
        (
            (MAMBA, MAMBA, ATTENTION, {**ATTENTION, "chunk": 8}),
            {},
            ("blocks of an earlier attention chunk freed", "hit behind an attention chunk"),
        ),
        ((MAMBA, WIDE, {**ATTENTION, "window": 5}), {}, ("hit behind a sliding window",)),
        (
            (MAMBA, ATTENTION),
            {"prefix_match_unit": "2", "mixer": "gdn"},
            ("hit inside a block", "state kept in the cache after its request advanced"),
        ),
        (
            (MAMBA, ATTENTION, {**ATTENTION, "draft": True}),
            DRAFTING,
            ("proposals written by the drafter", "prefix hit", "draft rejected"),
        ),
        (
            (MAMBA, MAMBA, ATTENTION, {**ATTENTION, "window": 5}, {**WIDE, "draft": True}),
            {**DRAFTING, "async_depth": 1},
            ("proposals written by the drafter", "hit behind a sliding window"),
        ),
        (
            (MAMBA, WIDE, {**ATTENTION, "window": 8}),
            {"prefix_match_unit": "2", "mixer": "gdn"},
            ("hit behind a sliding window",),
        ),
        ((MAMBA, ATTENTION), {"data_parallel": "2", "graphs": "decode"}, ("padding rows",)),
    ],
)
def test_what_the_groups_are_for_is_reached(
    worker: WorkerClient, groups: tuple[dict[str, object], ...], options: dict[str, object], states: tuple[str, ...]
) -> None:
    """Three kinds of groups, two of one kind, unequal blocks, keys inside blocks with and without hits there."""
    reached: Counter[str] = Counter()
    for ran in worker.fuzz(Fuzz(5, 0, TRACES, {**PLAIN, "groups": list(groups), **options})):
        assert ran.outcome.violation is None, ran.outcome.violation.message
        reached.update(ran.outcome.reached)
    assert [state for state in states if not reached[state]] == []
