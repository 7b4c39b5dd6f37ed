"""The numeric run is clean on the correct target and detects mutants by their bytes alone."""

from unittest.mock import Mock

import msgspec
import pytest
from support import arrive, broken, make_trace, steps

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base import trace as events
from hybridfuzz.targets.base.protocol import TargetError
from hybridfuzz.targets.base.registry import load_factory, on_device
from hybridfuzz.targets.hybrid.factory import with_bytes
from hybridfuzz.targets.hybrid.session_events import SessionEvents
from hybridfuzz.targets.hybrid.target import HybridTarget
from hybridfuzz.targets.hybrid.worker.state_slots import StateSlots

MODES = pytest.mark.parametrize("mode", ["align", "all", "none"])


@MODES
def test_drawn_traces_are_clean(mode: str) -> None:
    factory = load_factory("hybrid@cpu")
    exercised: dict[str, int] = {}
    for index in range(2):
        trace = draw_trace(factory.capabilities, 21, index, {"mamba_cache_mode": mode}, factory.supports)
        trace = msgspec.structs.replace(trace, events=trace.events[:20])
        outcome = run_trace(factory, trace)
        assert outcome.violation is None, outcome.violation.message
        for name, times in outcome.exercised.items():
            exercised[name] = exercised.get(name, 0) + times
    assert all(exercised[name] for name in ("S7", "S4", "S3", "S6", "M5")), exercised


@pytest.mark.parametrize("kv", ["fp8", "fp16", "bf16"])
@pytest.mark.parametrize("state", ["fp32", "bf16"])
@pytest.mark.parametrize("mixer", ["mamba2", "gated_delta_net"])
def test_every_data_type_is_clean(kv: str, state: str, mixer: str) -> None:
    options = {"kv_dtype": kv, "state_dtype": state, "mixer": mixer}
    trace = make_trace(arrive("r0", 20, new=6), *steps(4), options=options)
    outcome = run_trace(load_factory("hybrid@cpu-bytes"), trace)
    assert outcome.violation is None
    assert outcome.exercised["S7"]


def test_the_same_trace_gives_the_same_bits_twice() -> None:
    factory = load_factory("hybrid@cpu")
    trace = draw_trace(factory.capabilities, 22, 0, supports=factory.supports)
    assert run_trace(factory, trace).digest == run_trace(factory, trace).digest


FORKED = (
    events.Arrive("r0", (("a", 13),), 3, session=True),
    *steps(9),
    events.Fork("r1", "r0"),
    events.Resume("r1", (("b", 7),), 3),
    events.Resume("r0", (("c", 3),), 3),
    *steps(9),
)


@MODES
@pytest.mark.parametrize("drafts", [0, 3])
def test_what_a_fork_copies_between_two_steps_stays(mode: str, drafts: int) -> None:
    trace = make_trace(*FORKED, mamba_cache_mode=mode, num_speculative_tokens=drafts)
    outcome = run_trace(load_factory("hybrid@cpu-bytes"), trace)
    assert outcome.violation is None, outcome.violation.message
    assert outcome.exercised["S7"]


class StatesStayBehind(SessionEvents):
    """Allocates a block for a fork's states without copying them."""

    def __init__(self, target: HybridTarget) -> None:
        super().__init__(target)
        self.forks.states = Mock(wraps=target.states, move_temporal=Mock(), move_conv=Mock())
        self.forks.states.columns = target.states.columns


def test_a_fork_without_its_states_is_found_by_its_bytes() -> None:
    factory = with_bytes(broken(StatesStayBehind), "cpu-bytes")
    violation = run_trace(factory, make_trace(*FORKED)).violation
    assert violation is not None
    assert violation.signature == "S7-step-mamba-nan"


def test_a_refusal_is_handed_on() -> None:
    trace = make_trace(
        events.Arrive("r0", (("a", 6),), 1, session=True),
        events.Step(),
        events.Truncate("r0", 5),
        events.Resume("r0", (("b", 1),), 1),
        *steps(2),
        mamba_cache_mode="none",
    )
    outcome = run_trace(load_factory("hybrid@cpu"), trace)
    assert outcome.violation is None, outcome.violation.message
    assert outcome.reached["truncation refused"]


MUTANTS = {
    "null-as-state-slot": ("M5", "guard"),
    "all-mode-partial-block": ("S1", "state-bytes"),
    "stale-fp32-bytes-nan": ("S7", "nan"),
}


@pytest.mark.parametrize("slug", MUTANTS)
def test_mutants_are_found_by_their_bytes(slug: str) -> None:
    factory = load_factory(f"hybrid:{slug}@cpu-bytes")
    for index in range(8):
        violation = run_trace(factory, draw_trace(factory.capabilities, 6, index, supports=factory.supports)).violation
        if violation:
            assert (violation.oracle, violation.field) == MUTANTS[slug], violation.message
            return
    pytest.fail("nobody noticed")


class WindowStaysBehind(StateSlots):
    """vLLM #42792: when the running column advances, only the temporal state is copied."""

    def move_conv(self, *arguments: object) -> None:
        pass


def test_a_window_that_is_not_migrated_is_found_by_its_bytes() -> None:
    factory = with_bytes(broken(WindowStaysBehind), "cpu-bytes")
    trace = make_trace(arrive("r0", 7, new=4), *steps(4))
    violation = run_trace(factory, trace).violation
    assert violation is not None
    assert violation.signature == "S7-step-mamba-nan"
    assert "its convolution window in block" in violation.message
    assert run_trace(load_factory("hybrid@cpu-bytes"), trace).violation is None


def test_hits_inside_a_block_move_keys_and_values() -> None:
    """Attention slots are copied one by one, with their bytes."""
    factory = load_factory("hybrid@cpu")
    for index in (2, 4):
        overrides = {"prefix_match_unit": 2, "enable_prefix_caching": True}
        trace = draw_trace(factory.capabilities, 77, index, overrides, factory.supports)
        outcome = run_trace(factory, msgspec.structs.replace(trace, events=trace.events[:25]))
        assert outcome.violation is None, outcome.violation.message


def test_a_nan_is_explained_by_tags() -> None:
    """The message names the previous owner of a page that was not zeroed."""
    trace = make_trace(arrive("r0", 9, new=1), *steps(2), arrive("r1", 3, new=1), *steps(2), num_blocks=23)
    violation = run_trace(load_factory("hybrid:stale-fp32-bytes-nan@cpu-bytes"), trace).violation
    assert violation is not None
    assert violation.signature == "S7-step-attention-nan"
    assert "never zeroed" in violation.message
    assert f"block {violation.block}" in violation.message


def test_devices_that_do_not_exist_or_do_not_fit() -> None:
    assert on_device("hybrid", "symbolic") == "hybrid"
    assert on_device("hybrid:null-as-state-slot", "cpu") == "hybrid:null-as-state-slot@cpu"
    for target, device in (("hybrid", "tpu"), ("vllm", "cpu"), ("hybrid@cpu", "cpu"), ("python:a:b", "cpu")):
        with pytest.raises(TargetError):
            on_device(target, device)
    with pytest.raises(TargetError, match="no such device"):
        load_factory("hybrid@tpu")
