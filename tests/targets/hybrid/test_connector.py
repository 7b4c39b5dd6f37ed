"""The connector: external hits are exact in every group, loaded content stays, saved content matches its key."""

from typing import Any

import pytest
from support import ATTENTION, MAMBA, arrive, broken, change_view, make_trace, steps, watch

from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.observe import Loaded, Planned, View
from hybridfuzz.targets.base.trace import AnyEvent, Evict, ExternalLoad, Group, MoveTier, Preempt
from hybridfuzz.targets.hybrid.offload.external_store import ExternalStore

SAVES: dict[str, Any] = {"options": {"connector_saves": "yes"}}


def hits(*events: AnyEvent, **config: Any) -> list[tuple[int, int]]:
    """Return (local, external) tokens of every admission."""
    watched = watch(make_trace(*events, **config))
    assert watched.outcome.violation is None, watched.outcome.violation.message
    return [(row.hit, row.external) for plan in watched.of(Planned) for row in plan.rows if row.admitted]


def test_an_external_hit_lies_on_the_grid_and_leaves_a_token_to_compute() -> None:
    assert hits(arrive("r0", 30), ExternalLoad("r0", 30), *steps(3)) == [(0, 24)]
    assert hits(arrive("r0", 24), ExternalLoad("r0", 24), *steps(3)) == [(0, 0)], "no state at 16, none needed at 24"
    assert hits(arrive("r0", 25), ExternalLoad("r0", 24), *steps(3)) == [(0, 24)]


def test_attention_content_alone_is_of_use_only_without_states() -> None:
    events = (arrive("r0", 30), ExternalLoad("r0", 30, states=False), *steps(3))
    assert hits(*events) == [(0, 0)]
    assert hits(*events, groups=(ATTENTION,)) == [(0, 24)]


def test_a_load_extends_a_local_hit() -> None:
    events = (arrive("r0", 12), *steps(3), arrive("r1", 30), ExternalLoad("r1", 30), *steps(3))
    assert hits(*events) == [(0, 0), (8, 16)]


def test_a_window_loads_only_what_it_attends_to() -> None:
    window = Group("attention", 8, window=6)
    watched = watch(make_trace(arrive("r0", 30), ExternalLoad("r0", 30), *steps(3), groups=(MAMBA, ATTENTION, window)))
    assert watched.outcome.violation is None
    columns = [(loaded.group, loaded.column) for loaded in watched.of(Loaded)]
    assert columns == [(0, 2), (0, 2), (1, 0), (1, 1), (1, 2), (2, 2)]


def test_loaded_blocks_can_be_hit_by_others() -> None:
    events = (arrive("r0", 30, new=9), ExternalLoad("r0", 30), *steps(2), arrive("r1", 30), *steps(3))
    assert hits(*events) == [(0, 24), (24, 0)]


def test_what_was_stored_is_found_again_after_eviction() -> None:
    """Decoding also saves the boundaries that it passes."""
    events = (arrive("r0", 14, new=12), *steps(14), Evict(99), arrive("r1", 14, ("~", 12)), *steps(3))
    assert hits(*events) == [(0, 0), (0, 0)]
    assert hits(*events, **SAVES) == [(0, 0), (0, 24)]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_loads_with_steps_in_flight_and_preemption(depth: int) -> None:
    events = (arrive("r0", 30, new=9), ExternalLoad("r0", 30), *steps(2), Preempt("r0"), Evict(99), *steps(4))
    assert hits(*events, async_depth=depth) == [(0, 24), (0, 24)]


@pytest.mark.parametrize("depth", [0, 2])
def test_what_moved_to_another_tier_comes_back(depth: int) -> None:
    """A preempted request whose content was moved out of the pool loads it again."""
    events = (arrive("r0", 30, new=9), *steps(3), Preempt("r0"), MoveTier("r0", "host"), *steps(3))
    assert hits(*events, async_depth=depth) == [(0, 0), (0, 24)]
    assert hits(*events[:5], *events[6:], async_depth=depth) == [(0, 0), (24, 0)]


def test_a_load_that_breaks_off_leaves_nothing_and_may_be_tried_again() -> None:
    events = (arrive("r0", 30, new=9), ExternalLoad("r0", 30, breaks_off=True), *steps(2))
    assert hits(*events) == [(0, 0)]
    watched = watch(make_trace(*events))
    assert not watched.of(Loaded)
    assert hits(*events, Preempt("r0"), Evict(99), *steps(2)) == [(0, 0), (0, 24)]


class Forgets(ExternalStore):
    """Never copies the last layer."""

    def layers(self, group: int) -> range:
        return range(self.layout.groups[group].layers - 1)


def test_a_layer_that_is_not_stored_is_noticed() -> None:
    groups = (Group("mamba", 8, 2), Group("attention", 8, 2))
    violation = run_trace(broken(Forgets), make_trace(arrive("r0", 20), *steps(3), groups=groups, **SAVES)).violation
    assert violation is not None
    assert violation.signature in {"S1-step-attention-stored", "S1-step-mamba-stored"}
    assert "1 of 2 layers" in violation.message


def test_content_outside_the_pool_is_judged_by_its_key() -> None:
    """External store that swaps the content of two keys."""

    def swapped(view: View) -> object:
        keys = [key for key in view.stored if key.group == 1]
        if len(keys) < 2:
            return view.stored
        return {**view.stored, keys[0]: view.stored[keys[1]]}

    trace = make_trace(arrive("r0", 20), *steps(3), **SAVES)
    violation = run_trace(change_view(stored=swapped), trace).violation
    assert violation is not None
    assert violation.signature == "S1-step-attention-stored"
