"""Reached states: a hand-made trace reaches each; one without it does not."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest
from msgspec import structs
from support import ATTENTION, CLEAN, MAMBA, arrive, make_trace, steps

from hybridfuzz.harness.judge.oracles import applicable, titles
from hybridfuzz.harness.judge.oracles.base import Context
from hybridfuzz.harness.judge.reached_states import ReachedStates
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.state_catalogue import (
    REQUIRES,
    features,
    missing_states,
    required_oracles,
    required_states,
)
from hybridfuzz.reference.layout import Group as GroupOfLayers
from hybridfuzz.reference.layout import Layout
from hybridfuzz.targets.base.observe import Planned, PlannedRow, View
from hybridfuzz.targets.base.protocol import Usual
from hybridfuzz.targets.base.trace import (
    BATCH_EVENTS,
    Abort,
    AnyEvent,
    Arrive,
    DummyRun,
    Evict,
    ExternalLoad,
    Fork,
    Group,
    MoveTier,
    Park,
    Preempt,
    ResetPrefixCache,
    Resume,
    Sleep,
    Step,
    Trace,
    Truncate,
    Wake,
)

WINDOW, DRAFT = Group("attention", 8, window=6), Group("attention", 4, draft=True)
FINE: dict[str, Any] = {"options": {"prefix_match_unit": "4"}}
RESEND = (arrive("r0", 20), *steps(5), arrive("r1", 20), *steps(5))
EAGLE: dict[str, Any] = {"num_speculative_tokens": 1, "eagle_block_drop": True}
LOOKAHEAD: dict[str, Any] = {**EAGLE, "options": {"hashing": "lookahead"}}
DRAFTS: dict[str, Any] = {"num_speculative_tokens": 3}
SCORED = Arrive("r1", (("d", 20),), 4, prompt_logprobs=True)
UNCOMPILED = Arrive("r0", (("a", 6),), 9, bad_grammar=2)
BY_GRAMMAR = Arrive("r0", (("a", 5),), 12, structured=1)
STOPPED = Arrive("r0", (("a", 6),), 9, stop_at=2)
LEAST = Arrive("r0", (("a", 6),), 9, stop_at=4, min_tokens=2)
SESSION, MORE = Arrive("r0", (("a", 13),), 4, session=True), Resume("r0", (("b", 7),), 3)

WRAPPED = make_trace(
    arrive("r0", 30, new=9), *steps(12), arrive("r1", ("e", 30), new=9), *steps(9),
    num_blocks=9, max_model_len=40,
)  # fmt: skip

WORDS = ("pool", "labels", "tables", "accesses", "content", "device_order", "estimates", "leftovers")
TRACES: dict[str, Trace] = {
    **{f"observed: {word}": make_trace(*RESEND) for word in WORDS},
    "memory given back and taken again": make_trace(*RESEND[:6], Sleep(), Wake()),
    "cached block evicted by an event": make_trace(*RESEND[:6], Evict(3)),
    "chunked prefill": make_trace(arrive("r0", 20), *steps(4), max_num_batched_tokens=8),
    "first chunk of one token": make_trace(arrive("r0", 20), Step(budget=1)),
    "chunk shorter than the convolution window": make_trace(arrive("r0", 20), Step(budget=2)),
    "batch of three or more": make_trace(*(arrive(f"r{i}", 5) for i in range(3)), Step()),
    "preempted": make_trace(arrive("r0", 8, new=5), *steps(2), Preempt("r0")),
    "preempted with a partial block": make_trace(arrive("r0", 9, new=5), *steps(2), Preempt("r0")),
    "resumed from a hit": make_trace(arrive("r0", 20, new=5), *steps(3), Preempt("r0"), Step()),
    "prefix hit": make_trace(*RESEND),
    "hit on content written by decoding": make_trace(
        arrive("r0", 5, new=9), *steps(12), arrive("r1", 5, ("~", 8)), *steps(3)
    ),
    "cached prefix not read for the log-probabilities of a prompt": make_trace(*RESEND[:6], SCORED, *steps(5)),
    "hit on what a request with prompt log-probabilities published": make_trace(
        SCORED, *steps(5), arrive("r0", 20), *steps(3)
    ),
    "preempted before its prompt's log-probabilities were known": make_trace(SCORED, Step(budget=8), Preempt("r1")),
    "block shared by two requests": make_trace(
        arrive("r0", 20, new=9), *steps(4), arrive("r1", 20), *steps(3)
    ),
    "duplicate key": make_trace(
        arrive("r0", 20), arrive("r1", 20), Step(chunks={"r0": 5, "r1": 5}), *steps(5)
    ),
    "cached block evicted": WRAPPED,
    "block reused by another kind of group": WRAPPED,
    "blocks zeroed": make_trace(arrive("r0", 5), Step()),
    "aborted while running": make_trace(arrive("r0", 5, new=9), Step(), Abort("r0")),
    "prefix cache reset": make_trace(*RESEND[:6], ResetPrefixCache()),
    "dummy run after requests": make_trace(*RESEND[:6], DummyRun(2)),
    "padding rows": make_trace(arrive("r0", 5, new=4), *steps(3), graph_sizes=(4,)),
    "state copied to the request's current column": make_trace(arrive("r0", 7, new=9), *steps(9)),
    "state copied back to its boundary block": make_trace(
        arrive("r0", 5, new=20), *steps(12, drafts=3, right=3), **DRAFTS
    ),
    "convolution window shifted by accepted drafts": make_trace(
        arrive("r0", 5, new=20), *steps(12, drafts=3, right=3), **DRAFTS
    ),
    "all drafts accepted": make_trace(arrive("r0", 5, new=9), *steps(4, drafts=3, right=3), **DRAFTS),
    "draft rejected": make_trace(arrive("r0", 5, new=9), *steps(4, drafts=3, right=0), **DRAFTS),
    "boundary crossed in a step with a rejection": make_trace(
        arrive("r0", 5, new=20), *steps(9, drafts=3, right=2), **DRAFTS
    ),
    "blocks to the left of a sliding window freed": make_trace(
        arrive("r0", 20, new=3), *steps(3), groups=(MAMBA, ATTENTION, WINDOW)
    ),
    "hit behind a sliding window": make_trace(*RESEND, groups=(MAMBA, ATTENTION, WINDOW)),
    "proposals written by the drafter": make_trace(
        arrive("r0", 5, new=9), *steps(4, drafts=3, right=1), groups=(MAMBA, ATTENTION, DRAFT), **DRAFTS
    ),
    "dummy run with a drafter present": make_trace(
        arrive("r0", 5, new=1), *steps(2), DummyRun(2), groups=(MAMBA, DRAFT), **DRAFTS
    ),
    "loaded from outside the pool": make_trace(arrive("r0", 20), ExternalLoad("r0", 16), *steps(3)),
    "hit extended by a load": make_trace(
        arrive("r0", 12), *steps(3), arrive("r1", 30), ExternalLoad("r1", 30), *steps(3)
    ),
    "hit by keys that name the token behind their block": make_trace(
        arrive("r0", 20), *steps(2), arrive("r1", 20), *steps(2), **LOOKAHEAD
    ),
    "cached block passed over for the token behind it": make_trace(
        arrive("r0", 20), *steps(2), Arrive("r1", (("d", 16), ("b", 4)), 4), *steps(2), **LOOKAHEAD
    ),
    "hit inside a block": make_trace(arrive("r0", 13, new=9), *steps(3), arrive("r1", 13), *steps(3), **FINE),
    "state kept in the cache after its request advanced": make_trace(arrive("r0", 13, new=9), *steps(3), **FINE),
    "cached content moved to another tier": make_trace(arrive("r0", 20, new=9), *steps(3), MoveTier("r0", "host")),
    "stored outside the pool": make_trace(arrive("r0", 20), *steps(3), options={"connector_saves": "yes"}),
    "planned ahead of execution": make_trace(arrive("r0", 5, new=9), *steps(5), async_depth=1),
    "preempted with a step in flight": make_trace(
        arrive("r0", 5, new=9), *steps(3), Preempt("r0"), async_depth=1
    ),
    "prompt continued with a one-token chunk": make_trace(arrive("r0", 20), Step(budget=8), Step(budget=1)),
    "chunk ends on a state boundary": make_trace(arrive("r0", 16)),
    "chunk ends one token before a state boundary": make_trace(arrive("r0", 15)),
    "chunk ends one token after a state boundary": make_trace(arrive("r0", 17)),
    "chunk that crosses two state boundaries": make_trace(arrive("r0", 20)),
    "two admitted in one step": make_trace(arrive("r0", 5), arrive("r1", 5), Step()),
    "prompts and decodes in one step": make_trace(
        arrive("r0", 5, new=9), *steps(2), arrive("r1", 5), Step()
    ),
    "request moved to another row": make_trace(arrive("r0", 5), arrive("r1", 5, new=9), *steps(5)),
    "nothing could be scheduled": make_trace(
        arrive("r0", 5, new=1), arrive("r1", 5, new=1), *steps(3), max_num_seqs=1, async_depth=1
    ),
    "padding over a vacated row": make_trace(
        arrive("r0", 5), arrive("r1", 5, new=9), *steps(5), graph_sizes=(4,)
    ),
    "preempted during prefill": make_trace(arrive("r0", 20), Step(budget=8), Preempt("r0")),
    "preempted twice": make_trace(arrive("r0", 8, new=5), *(Step(), Step(), Preempt("r0")) * 2),
    "resumed without a hit": make_trace(arrive("r0", 5, new=5), *steps(2), Preempt("r0"), Step()),
    "attention blocks cached past the end of the hit": make_trace(
        arrive("r0", 20), *steps(5), arrive("r1", 9), *steps(3), groups=(MAMBA, Group("attention", 4))
    ),
    "state cached past the end of the hit": make_trace(
        arrive("r0", 20, new=2), *steps(4), arrive("r1", 20), *steps(3),
        groups=(MAMBA, Group("attention", 32)),
    ),
    "evicted content computed again": make_trace(
        arrive("r0", 20), *steps(5), ResetPrefixCache(), arrive("r1", 20), *steps(3)
    ),
    "prefix cache reset while requests run": make_trace(
        arrive("r0", 20, new=9), *steps(3), ResetPrefixCache(preempt_running=True)
    ),
    "block reused by another group of its kind": make_trace(
        arrive("r0", 30, new=9), *steps(12), arrive("r1", ("e", 30), new=9), *steps(12),
        groups=(MAMBA, MAMBA, ATTENTION), num_blocks=12, max_model_len=40,
    ),
    "boundary crossed in a step without a rejection": make_trace(
        arrive("r0", 5, new=20), *steps(6, drafts=3, right=3), **DRAFTS
    ),
    "ended at its most tokens": make_trace(arrive("r0", 5, new=3), *steps(4)),
    "ended by a stop token": make_trace(STOPPED, *steps(4)),
    "stop token on the last place of a block": make_trace(STOPPED, *steps(4)),
    "stop token on the first place of a block": make_trace(
        Arrive("r0", (("a", 6),), 9, stop_at=3), *steps(4), groups=(Group("attention", 8),)
    ),
    "stop token among accepted drafts": make_trace(STOPPED, *steps(4, drafts=3, right=3), **DRAFTS),
    "stop token with a step in flight": make_trace(STOPPED, *steps(4), async_depth=1),
    "request ended with an error by its grammar": make_trace(UNCOMPILED, *steps(4)),
    "error by a grammar while others run": make_trace(arrive("r1", 5, new=9), UNCOMPILED, *steps(4)),
    "structured and free answers in one step": make_trace(BY_GRAMMAR, arrive("r1", 5), Step()),
    "request computed after it waited for its grammar": make_trace(
        structs.replace(BY_GRAMMAR, structured=3), *steps(4)
    ),
    "structured output with a step in flight": make_trace(BY_GRAMMAR, *steps(3), async_depth=1),
    "preempted with structured output": make_trace(BY_GRAMMAR, *steps(3), Preempt("r0")),
    "later turn with structured output": make_trace(
        SESSION, *steps(9), structs.replace(MORE, structured=2), *steps(3)
    ),
    "model's first choice forbidden by a grammar": make_trace(BY_GRAMMAR, *steps(4)),
    "draft forbidden by a grammar is the model's first choice": make_trace(
        BY_GRAMMAR, *steps(4, drafts=3, right=3), async_depth=1, **DRAFTS
    ),
    "draft accepted is what a grammar leaves": make_trace(
        structs.replace(BY_GRAMMAR, prompt=(("a", 6),)), *steps(4, drafts=3, right=3), **DRAFTS
    ),
    "stop token held back": make_trace(LEAST, *steps(2)),
    "stop token held back with a step in flight": make_trace(LEAST, *steps(3), async_depth=1),
    "stop token held back in a step with drafts": make_trace(LEAST, *steps(2, drafts=1, right=0), **DRAFTS),
    "ended by a stop token behind its least tokens": make_trace(LEAST, *steps(5)),
    "turn ended by a stop token": make_trace(structs.replace(STOPPED, session=True), *steps(4)),
    "ended in the middle of accepted drafts": make_trace(
        arrive("r0", 5, new=3), *steps(4, drafts=3, right=3), **DRAFTS
    ),
    "prompt with as many tokens as a speculative decode": make_trace(arrive("r0", 4), Step(), **DRAFTS),
    "prompts and drafts in one step": make_trace(
        arrive("r0", 5, new=20), *steps(3, drafts=3), arrive("r1", 5), Step(drafts=3), **DRAFTS
    ),
    "different numbers of drafts in one step": make_trace(
        arrive("r0", 5, new=20), arrive("r1", 5, new=20), *steps(4, drafts=3, per_request={"r0": (1, 1)}), **DRAFTS
    ),
    "preempted between drafts": make_trace(
        arrive("r0", 5, new=20), *steps(4, drafts=3), Preempt("r0"), **DRAFTS
    ),
    "hit on content still in flight": make_trace(
        arrive("r0", 20, new=9), Step(), arrive("r1", 20), *steps(5), async_depth=1
    ),
    "aborted with a step in flight": make_trace(
        arrive("r0", 5, new=9), *steps(3), Abort("r0"), async_depth=1
    ),
    "aborted right after it got a token, with a step in flight": make_trace(
        arrive("r0", 5, new=9), *steps(3), Abort("r0"), async_depth=1
    ),
    "session parked": make_trace(SESSION, *steps(9)),
    "session parked between drafts": make_trace(SESSION, *steps(9, drafts=3), **DRAFTS),
    "turn ended by its client": make_trace(SESSION, *steps(3), Park("r0")),
    "turn resumed with kept caches": make_trace(SESSION, *steps(9), MORE, Step()),
    "resumed turn waits while holding its caches": make_trace(
        SESSION, *steps(9), arrive("r1", 5), Step(), MORE, Step(), max_num_seqs=1
    ),
    "caches of a parked session evicted": make_trace(SESSION, *steps(9), Preempt("r0")),
    "session closed while parked": make_trace(SESSION, *steps(9), Abort("r0")),
    "turn aborted in a session that goes on": make_trace(SESSION, *steps(3), Abort("r0", keeps_session=True)),
    "turn behind an aborted one": make_trace(SESSION, *steps(3), Abort("r0", keeps_session=True), MORE, *steps(3)),
    "session forked": make_trace(SESSION, *steps(9), Fork("r1", "r0")),
    "session truncated": make_trace(SESSION, *steps(9), Truncate("r0", 16)),
    "truncation refused": make_trace(SESSION, *steps(9), Truncate("r0", 5)),
    "turn resumed from a checkpoint": make_trace(
        Arrive("r0", (("a", 20),), 4, session=True), *steps(9), Truncate("r0", 18), MORE, Step()
    ),
}  # fmt: skip
NOTHING = make_trace(arrive("r0", 5, new=1), groups=(Group("attention", 16),), graph_sizes=())


ELSEWHERE = {
    "slots",
    "snapshots",
    "attention-chunks",
    "observes:caches",
    "observes:numeric",
    "observes:real_model",
    "observes:side_by_side",
    "async-loads",
    "failing-loads",
    "held-for-transfer",
    "sends",
    "sync-loads",
    "loads-back",
    "chosen-loads",
    "evicts-stored",
    "copied-states",
    "cut-drafts",
    "stop-strings",
    "drafts-past-length",
    "draft-trees",
    "samples",
    "reasoning",
    "images",
    "overlaps",
    *BATCH_EVENTS,
    "near-stock",
    "pause",
    "logprobs-from",
    "storage",
    "switch_storage",
    "reset_encoder_cache",
}
EMBEDDED = [state for state, needs in REQUIRES.items() if not ELSEWHERE & set(needs.split())]
"""States with slots of their own are reached by the targets that have them (tests/targets/sglang), those of batches of
plain caches by the toy (tests/test_toy_plain_cache.py), those of attention chunks, images, reasoning and loads that
requests wait for by vLLM (tests/targets/vllm), those of clients that leave a server by llama.cpp's
(tests/targets/llamacpp), those of a server's configuration in tests/harness/draw, a storage by vLLM's and SGLang's
(tests/targets/vllm/counterparts/test_file_tier.py)."""


@pytest.mark.parametrize("state", EMBEDDED)
def test_each_state_has_a_trace_that_reaches_it(state: str) -> None:
    outcome = run_trace(CLEAN, TRACES[state])
    assert outcome.violation is None
    assert outcome.reached.get(state)


@pytest.mark.parametrize(
    ("events", "depth"),
    [
        ((arrive("r0", 5, new=9), *steps(3), Abort("r0")), 0),
        ((arrive("r0", 20, new=9), *steps(2), Abort("r0")), 1),  # a step of its prompt is in flight, it got nothing
        ((arrive("r0", 5, new=9), Step(), Step(), arrive("r2", 20, new=9), Step(), Abort("r2")), 1),
    ],
)
def test_an_abort_is_not_right_behind_a_token(events: Sequence[AnyEvent], depth: int) -> None:
    """Nothing is in flight, no token came, or another request is aborted."""
    reached = run_trace(CLEAN, make_trace(*events, async_depth=depth, max_num_batched_tokens=8)).reached
    assert not reached.get("aborted right after it got a token, with a step in flight")


def test_a_trace_without_anything_reaches_nothing() -> None:
    """One short prompt, one token: no state is counted by accident."""
    reached = {state for state, times in run_trace(CLEAN, NOTHING).reached.items() if times}
    assert {state for state in reached if not state.startswith("observed: ")} <= {
        "blocks zeroed",
        "ended at its most tokens",
    }


@pytest.mark.parametrize(
    "state",
    ["prefix hit", "preempted", "draft rejected", "padding rows", "planned ahead of execution",
     "aborted while running", "dummy run after requests", "block shared by two requests"],
)  # fmt: skip
def test_states_are_not_counted_where_they_are_not(state: str) -> None:
    plain = make_trace(arrive("r0", 20, new=5), *steps(8), groups=(MAMBA, ATTENTION))
    assert not run_trace(CLEAN, plain).reached.get(state)


def test_embedded_target_has_to_reach_all() -> None:
    assert required_states(CLEAN.capabilities) == EMBEDDED
    assert missing_states(CLEAN.capabilities, dict.fromkeys(REQUIRES, 1)) == []
    assert missing_states(CLEAN.capabilities, dict.fromkeys(REQUIRES, 0)) == EMBEDDED


def test_states_of_images_are_required_unless_an_option_leaves_images_out() -> None:
    documents = {"connector_saves": {"yes": ("a", "image.b")}}
    features = CLEAN.capabilities.features | {"images"}
    with_images = msgspec.structs.replace(CLEAN.capabilities, features=features, documents=documents)
    assert set(required_states(with_images)) - set(EMBEDDED) == {"hit behind an image"}
    assert "hit behind an image" in required_states(with_images, {"connector_saves": "yes"})
    assert "hit behind an image" not in required_states(with_images, {"connector_saves": "no"})


def test_states_of_a_feature_are_not_required_if_its_option_is_fixed_to_another_value() -> None:
    """With the option drawn they are."""
    with_value = {"connector_saves": {"yes": frozenset({"stores"})}}
    narrowed = msgspec.structs.replace(CLEAN.capabilities, features_with=with_value)
    assert "stored outside the pool" in required_states(narrowed)
    assert "stored outside the pool" in required_states(narrowed, {"connector_saves": "yes"})
    assert "stored outside the pool" not in required_states(narrowed, {"connector_saves": "no"})


def test_a_state_is_required_only_of_who_can_reach_it() -> None:
    poor = msgspec.structs.replace(
        CLEAN.capabilities,
        events=frozenset({"arrive", "step"}),
        modes=("none",),
        max_speculative_tokens=0,
        max_async_depth=0,
        group_counts=((1, 1),),
        features=frozenset({"block-tables"}),
        windows=(),
        draft_block_sizes=(),
    )
    required = required_states(poor)
    assert "chunked prefill" in required
    assert not {"prefix hit", "aborted while running", "draft rejected", "padding rows"} & set(required)
    usual = set(get_args(Usual))
    observed = {f"observes:{word}" for word in poor.observes}
    assert features(poor, {}) - observed == {
        "arrive",
        "step",
        "none",
        "block-tables",
        "pool",
        "moving-rows",
        *(usual - poor.lacks),
    }
    assert not {"M2", "M4", "M6", "S1", "S2", "S5"} & set(required_oracles(poor))
    assert required_oracles(CLEAN.capabilities) == applicable(CLEAN.capabilities)


def test_states_of_a_pool_are_not_required_of_plain_caches() -> None:
    """Whether a target has a pool is declared, not inferred from its modes."""
    plain = msgspec.structs.replace(
        CLEAN.capabilities, modes=("none",), events=frozenset({"arrive", "step", "resume"}), features=frozenset()
    )
    pooled = msgspec.structs.replace(plain, features=frozenset({"pool"}))
    tables = msgspec.structs.replace(plain, features=frozenset({"block-tables"}))
    needs_pool = set(required_states(pooled)) - set(required_states(plain))
    assert needs_pool == {
        "nothing could be scheduled", "blocks zeroed", "block reused by another group of its kind",
        "request moved to another row",
    }  # fmt: skip
    assert "block reused by another kind of group" in set(required_states(tables)) - set(required_states(pooled))


def test_an_engine_says_what_it_lacks_and_the_rest_stays_required() -> None:
    lacking = msgspec.structs.replace(CLEAN.capabilities, lacks=frozenset(get_args(Usual)))
    freed = set(EMBEDDED) - set(required_states(lacking))
    words = (
        "preempted",
        "resumed",
        "prompt continued",
        "chunk",
        "prompt with as many tokens",
        "zeroed",
        "requests run",
        "ended in",
        "held back in a step with drafts",
        "written by decoding",
        "right after it got a token",
    )
    assert {state for state in freed if not any(word in state for word in words)} == set()
    assert {"preempted", "chunked prefill", "blocks zeroed", "preempted with a step in flight"} <= freed
    assert {"batch of three or more", "nothing could be scheduled", "prefix hit"} <= set(EMBEDDED) - freed


def test_without_prefix_caching_nothing_about_it_is_required() -> None:
    fixed = {"mamba_cache_mode": "none"}
    assert {"M2", "M6", "S5"} == set(applicable(CLEAN.capabilities)) - set(required_oracles(CLEAN.capabilities, fixed))
    assert not {"prefix hit", "prefix cache reset"} & set(required_states(CLEAN.capabilities, fixed))


def test_oracles_have_the_titles_that_their_page_gives_them() -> None:
    """S2 and S3 share a class and a title."""
    words = {"S2": "resume and rollback", "S3": "resume and rollback"}
    page = (Path(__file__).parents[3] / "docs" / "reference" / "oracles.md").read_text()
    for name, title in titles().items():
        assert title in words.get(name, "") or f"{name} {title}" in page, name


LOAD = PlannedRow("r0", 16, 0, 0, True, 8, external=8)


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ((LOAD, PlannedRow("r0", 16, 4, 0, False, 0)), "request computed after it waited for a load"),
        ((LOAD, PlannedRow("r0", 0, 4, 0, True, 0)), "request computed after its load broke off"),
        ((LOAD, LOAD), "load tried again after it broke off"),
    ],
)
def test_the_end_of_a_load_is_seen_in_the_next_plan_of_its_request(rows: tuple[PlannedRow, ...], state: str) -> None:
    """No more than the load itself is counted before; a row without tokens counts as no chunk of a prompt."""
    layout = Layout((GroupOfLayers("mamba", 8), GroupOfLayers("attention", 8)), 12, 4, "align", True)
    view = View((), [0] * 12, {}, None, {"r0": ((0, 1), (2, 3))}, (), ())
    target: Any = SimpleNamespace(layout=layout)
    context, reached = Context(target, view), ReachedStates(layout)
    context.reference.arrive("r0", [("a", 20)], 8)
    for step, row in enumerate(rows):
        assert state not in +reached.counts
        reached.after_record(Planned(step, (row,), (), 99, view), context)
    assert reached.counts[state] == 1
    assert not any(name.startswith("chunk ends") for name in +reached.counts) or rows[-1].num_tokens
