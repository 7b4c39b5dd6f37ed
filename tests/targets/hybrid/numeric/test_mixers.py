"""A gated delta net in the numeric run: clean in every mode, with drafts and boundaries; one wrong step is detected."""

import msgspec
import pytest
from support import arrive, make_trace, steps

from hybridfuzz.harness.draw.grammar import draw_trace
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.targets.base.registry import load_factory
from hybridfuzz.targets.base.trace import Step, Trace
from hybridfuzz.targets.hybrid.numeric import mixers

DELTA = {"mixer": "gated_delta_net"}


def drafts(mode: str) -> Trace:
    """Two requests that share a prompt, chunks, drafts right and wrong, boundaries crossed while drafting."""
    return make_trace(
        arrive("r0", 21, new=9),
        arrive("r1", 17, ("e", 5), new=8),
        *steps(3, drafts=3, right=2),
        Step(drafts=3, right=0),
        *steps(3, drafts=2, right=2),
        mamba_cache_mode=mode,
        num_speculative_tokens=3,
        graph_sizes=(1, 2),
        max_num_batched_tokens=11,
        options=DELTA,
    )


@pytest.mark.parametrize("mode", ["align", "all", "none"])
def test_every_mode_is_clean(mode: str) -> None:
    outcome = run_trace(load_factory("hybrid@cpu"), drafts(mode))
    assert outcome.violation is None, outcome.violation.message
    assert outcome.exercised["S3"] and outcome.exercised["S6"]
    assert outcome.exercised["S1"] or mode == "none"


def test_drawn_traces_are_clean() -> None:
    factory = load_factory("hybrid@cpu")
    for index in range(3):
        trace = draw_trace(factory.capabilities, 41, index, DELTA, factory.supports)
        outcome = run_trace(factory, msgspec.structs.replace(trace, events=trace.events[:20]))
        assert outcome.violation is None, outcome.violation.message


def test_a_mixer_that_computes_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixers, "normalised", lambda vectors: vectors)
    violation = run_trace(load_factory("hybrid@cpu-bytes"), drafts("align")).violation
    assert violation is not None
    assert violation.field == "numbers"


@pytest.mark.parametrize(
    ("slug", "mode", "found"),
    [
        ("all-mode-partial-block", "all", "S1-step-mamba-state-bytes"),
        ("null-as-state-slot", "align", "M5-step-guard"),
        ("accepted-count-zero", "align", "S3-step-mamba-numbers"),
    ],
)
def test_mutants_are_found_in_its_states(slug: str, mode: str, found: str) -> None:
    """A request may also resume from a wrong cached state (S2) before it is compared."""
    factory, seen = load_factory(f"hybrid:{slug}@cpu-bytes"), set()
    for index in range(12):
        overrides = {**DELTA, "num_speculative_tokens": 2, "mamba_cache_mode": mode}
        trace = draw_trace(factory.capabilities, 5, index, overrides, factory.supports)
        violation = run_trace(factory, trace).violation
        if violation:
            seen.add(violation.signature)
        if found in seen:
            return
    pytest.fail(f"noticed: {sorted(seen)}")
