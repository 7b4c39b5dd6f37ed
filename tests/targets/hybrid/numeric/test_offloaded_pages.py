"""Bytes outside the pool: they match their keys, are loaded bit for bit in every fill, and outlive the pool."""

from typing import Any

import pytest
import torch
from support import arrive, broken, make_trace, steps

from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.observe import Numeric
from hybridfuzz.targets.base.protocol import TargetFactory
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import Evict, ExternalLoad, Group, MoveTier, Preempt, Sleep, Trace, Wake
from hybridfuzz.targets.hybrid.factory import with_bytes
from hybridfuzz.targets.hybrid.numeric.moves import Arrival, Moves
from hybridfuzz.targets.hybrid.offload.external_store import ExternalStore

CUDA = pytest.param(
    "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")]
)
GROUPS = (Group("mamba", 8, 2), Group("attention", 4, 2))
MOVED = (arrive("r0", 30, new=9), *steps(3), Preempt("r0"), MoveTier("r0", "host"), Evict(99), *steps(3))


def open_target(trace: Trace, device: str = "cpu") -> Any:
    """Return a target after all events."""
    target: Any = load_factory(f"hybrid@{device}").open(trace.config)
    for event in trace.events:
        for record in target.apply(event).records:
            assert not isinstance(record, Numeric) or not record.failed
    return target


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("kv", ["fp8", "bf16"])
@pytest.mark.parametrize("state", ["fp32", "bf16"])
def test_what_another_engine_computed_is_as_good_as_one_s_own(device: str, kv: str, state: str) -> None:
    trace = make_trace(
        arrive("r0", 30, new=6), ExternalLoad("r0", 30), *steps(4), groups=GROUPS,
        options={"kv_dtype": kv, "state_dtype": state},
    )  # fmt: skip
    outcome = run_trace(load_factory(f"hybrid@{device}-bytes"), trace)
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["loaded from outside the pool"] == 16, "4 state parts, 12 attention pages"
    assert outcome.exercised["S2"], "resumed from what was loaded"
    assert outcome.exercised["S1"] >= 7, "outside of the pool, and as soon as it is published inside"


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("depth", [0, 2])
def test_what_moved_to_another_tier_comes_back_bit_for_bit(device: str, depth: int) -> None:
    trace = make_trace(*MOVED, groups=GROUPS, async_depth=depth)
    outcome = run_trace(load_factory(f"hybrid@{device}"), trace)
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["loaded from outside the pool"]
    target = open_target(trace, device)
    [block, key] = next((block, key) for block, key in target.view().published.items() if key[:2] == (0, 24))
    for layer, page in target.device_state.offloaded.pages[key].items():
        inside = target.device_state.pool.fills(layer, block).cpu()
        state = target.device_state.pool.pages.conv
        assert torch.equal(inside[:, :state], page[:, :state]), "every fill comes back as it left"


def test_pages_outside_outlive_the_pool() -> None:
    trace = make_trace(*MOVED[:-4], Sleep(), Wake(), *steps(4), groups=GROUPS)
    outcome = run_trace(load_factory("hybrid@cpu"), trace)
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["loaded from outside the pool"]


@pytest.mark.parametrize("saves", ["no", "yes"])
def test_an_engine_that_sleeps_may_be_told_of_content_outside(saves: str) -> None:
    events = (arrive("r0", 30, new=4), Sleep(), ExternalLoad("r0", 30), Wake(), *steps(3))
    outcome = run_trace(load_factory("hybrid@cpu"), make_trace(*events, options={"connector_saves": saves}))
    assert outcome.violation is None, outcome.violation.message


class SavesItsNeighbour(ExternalStore):
    """Saves the page of another block."""

    def save(self, key: Any, block: int) -> None:
        super().save(key, block + 1)


class LosesTheLastSlot(ExternalStore):
    """Does not load the KV of one token."""

    def load_slots(self, layer: int, block: int, tags: Any) -> None:
        self.memory.store_slots(layer, block, len(tags), 0, tags[:-1])


@pytest.mark.parametrize(
    ("part", "signature"),
    [(SavesItsNeighbour, "S1-step-mamba-stored-state-bytes"), (LosesTheLastSlot, "S7-step-attention-nan")],
)
def test_wrong_bytes_outside_are_found(part: type, signature: str) -> None:
    factory: TargetFactory = with_bytes(broken(part), "cpu-bytes")
    events = (arrive("r0", 30, new=9), *steps(3), Preempt("r0"), Evict(99), *steps(3))
    trace = make_trace(*events, options={"connector_saves": "yes"})
    violation = run_trace(factory, trace).violation
    assert violation is not None
    assert violation.signature == signature, violation.message
    assert run_trace(load_factory("hybrid@cpu-bytes"), trace).violation is None


def test_a_load_or_a_save_that_does_not_arrive_is_noticed() -> None:
    target = open_target(make_trace(*MOVED, groups=GROUPS))
    moves: Moves = target.device_state.moves
    key = next(iter(target.device_state.offloaded.pages))
    for start in (0, 16):
        moves.load(Arrival(key, 0, 5, start, start + 32, 16, "keys"))
    moves.save(key._replace(depth=40), 1, 6)
    target.device_state.lanes.finish()
    loaded, saved = moves.take_checks()
    assert loaded.there.shape == (3, 32), "neighbours arrive together"
    for check in (loaded, saved):
        assert check.holds(check.there.numpy())
        check.there[2, -1] += 1
        assert not check.holds(check.there.numpy())
