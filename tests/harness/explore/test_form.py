"""The canonical form: what is one state, and that every merge is checked. Each field that is left out is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs

from hybridfuzz.harness.explore.expand import Compare, Expand, Expander
from hybridfuzz.harness.explore.form import Form
from hybridfuzz.harness.explore.scope import Scope, read_scope
from hybridfuzz.harness.explore.search import Search
from hybridfuzz.harness.judge.lockstep import Lockstep
from hybridfuzz.targets.base.trace import AnyEvent, Arrive, Config, Preempt, ResetPrefixCache, Step
from hybridfuzz.targets.hybrid.factory import make_factory

ALPHABETS = {
    "events": """
arrive = [{ prompt = [["a", 3]], max_new_tokens = 4 }]
step = [{}, { drafts = 1, right = 1 }]
abort = [{}]
external_load = [{ length = 2 }, { length = 2, breaks_off = true }]
dummy_run = [{ rows = 1 }]
sleep = [{}]
wake = [{}]
""",
    "cache": """
arrive = [
    { prompt = [["a", 3]], max_new_tokens = 2 },
    { prompt = [["a", 2], ["b", 2]], max_new_tokens = 2, session = true },
]
resume = [{ prompt = [["b", 1]], max_new_tokens = 1 }]
step = [{}, { budget = 2 }]
preempt = [{}]
evict = [{ blocks = 1 }]
reset_prefix_cache = [{}]
move_tier = [{ tier = "host" }]
park = [{}]
""",
    "drafts": """
arrive = [{ prompt = [["a", 3]], max_new_tokens = 2 }]
step = [{}, { drafts = 1 }, { drafts = 1, right = 1 }]
""",
    "sessions": """
arrive = [{ prompt = [["a", 3]], max_new_tokens = 2, session = true }]
step = [{}]
abort = [{}]
truncate = [{ length = 2 }]
fork = [{}]
""",
}
CONFIG = """
about = "Two requests."
events = 5
requests = 2

[[configuration]]
num_blocks = 20
groups = [{ kind = "mamba", block_size = 2 }, { kind = "attention", block_size = 2 }]
num_speculative_tokens = 1
max_model_len = 9
max_num_seqs = 2
max_num_batched_tokens = 8
conv_width = 2
"""


def scope_of(folder: Path, alphabet: str, ahead: int = 0) -> Scope:
    path = folder / "small.toml"
    path.write_text(f"{CONFIG}async_depth = {ahead}\n[alphabet]{ALPHABETS[alphabet]}", encoding="utf-8")
    return read_scope(str(path))


def wrong_merge(scope: Scope, without: frozenset[str], events: int) -> tuple[str, int]:
    """Explore in this process and check every merge. Return what differs first, and how many merges were checked."""
    factory, checked = make_factory(), 0
    expander, search = Expander(factory), Search(scope, factory.capabilities, None, 1)
    for _ in range(events):
        for state in search.frontier:
            parent = search.parent(state)
            [grown] = expander.expand(Expand((parent,), without), lambda index: None).grown
            assert search.take(state, parent, grown) == ""
            for pair in search.to_check:
                checked += 1
                asked: Compare = structs.replace(pair, without=without)
                if difference := expander.compare(asked, lambda index: None).difference:
                    return difference, checked
            search.to_check.clear()
        search.end_level()
    assert not search.failures
    return "", checked


@pytest.mark.parametrize(
    ("alphabet", "ahead"), [("events", 0), ("events", 1), ("cache", 0), ("drafts", 0), ("sessions", 0)]
)
def test_every_merge_of_a_small_scope_is_right(tmp_path: Path, alphabet: str, ahead: int) -> None:
    difference, checked = wrong_merge(scope_of(tmp_path, alphabet, ahead), frozenset(), 3)
    assert difference == ""
    assert checked > 3


@pytest.mark.parametrize(
    ("alphabet", "ahead", "events", "fields"),
    [
        ("events", 0, 2, {"target.asleep", "asleep"}),
        ("events", 0, 3, {"store.pages"}),
        ("events", 0, 3, {"connector.breaks_off", "lives"}),
        ("events", 0, 3, {"scheduler.requests", "runner.requests"}),
        ("events", 0, 3, {"lives", "scheduler.finished", "scheduler.requests"}),
        (
            "events",
            0,
            3,
            {"lives", "scheduler.arrivals", "scheduler.requests", "scheduler.waiting", "target.names_seen"},
        ),
        ("events", 1, 4, {"target.in_flight"}),
        ("events", 1, 3, {"scheduler.arrivals", "scheduler.finished", "target.names_seen"}),
        ("cache", 0, 3, {"lives", "scheduler.requests"}),
        ("cache", 0, 3, {"lives", "scheduler.removed", "scheduler.running", "sessions.leaving", "sessions.parked"}),
        ("sessions", 0, 4, {"lives", "scheduler.requests", "scheduler.waiting"}),
        ("drafts", 0, 3, {"runner.requests"}),
    ],
    ids=lambda value: "-".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_a_field_that_is_left_out_is_noticed(
    tmp_path: Path, alphabet: str, ahead: int, events: int, fields: set[str]
) -> None:
    """Of what the form says twice, both have to be left out: what one says would tell the states apart.

    The sets are the smallest in which two states of these scopes differ, and which their next events show.
    """
    difference, _ = wrong_merge(scope_of(tmp_path, alphabet, ahead), frozenset(fields), events)
    assert difference


def form_after(config: Config, *events: AnyEvent) -> int:
    factory = make_factory()
    lockstep = Lockstep(factory.open(config), config, factory.capabilities.observes)
    for index, event in enumerate(events):
        assert lockstep.apply(event, index) is None
    return Form(lockstep, events).fingerprint()


def test_blocks_are_one_whatever_their_numbers(tmp_path: Path) -> None:
    [config] = scope_of(tmp_path, "drafts").configuration
    arrive = Arrive("r0", (("a", 3),), 2)
    assert form_after(config, arrive) == form_after(config, arrive, ResetPrefixCache())
    began, preempted = form_after(config, arrive, Step()), form_after(config, arrive, Step(), Preempt("r0"), Step())
    assert began != preempted, "the cached prefix was hit"


def test_a_state_that_is_saved_is_the_state_of_its_trace(tmp_path: Path) -> None:
    """A branch from saved bytes and one from a trace that runs again have one fingerprint."""
    scope = scope_of(tmp_path, "events")
    saved, runs_again = make_factory(), make_factory("finished-row-not-cleared")
    search = Search(scope, saved.capabilities, None, 0)
    parent = search.parent(0)
    answers = [Expander(one).expand(Expand((parent,)), lambda index: None) for one in (saved, runs_again)]
    assert answers[0].grown == answers[1].grown
