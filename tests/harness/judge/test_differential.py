"""D1: what two targets must agree on, where the first difference is seen, and what is none."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from support import CLEAN, arrive, make_trace, steps

from hybridfuzz.harness.judge.differential import difference, run_summarized
from hybridfuzz.targets.base.observe import Delivered, Effect, Planned
from hybridfuzz.targets.base.registry import load_factory

TRACE = make_trace(arrive("r0", 20, new=4), *steps(3), arrive("r1", 20, new=4), *steps(8))
NAMES = ("one", "other")


@dataclass
class Changed:
    """The clean target, with one kind of record changed on its way out."""

    kind: type
    change: Any
    name: str = "changed"
    capabilities: Any = CLEAN.capabilities
    supports: Any = CLEAN.supports

    def open(self, config: Any) -> Any:
        target = CLEAN.open(config)
        apply = target.apply

        def changed(event: Any) -> Effect:
            records = apply(event).records
            return Effect([self.change(one) if isinstance(one, self.kind) else one for one in records])

        target.apply = changed  # type: ignore[method-assign]
        return target


def test_equal_targets_agree() -> None:
    assert difference(TRACE, NAMES, run_summarized(CLEAN, TRACE), run_summarized(CLEAN, TRACE)) is None


def test_a_numeric_target_agrees_with_itself() -> None:
    """The oracles on bytes read pages through the proxy."""
    pytest.importorskip("torch")
    factory = load_factory("hybrid@cpu-bytes")
    one, other = run_summarized(factory, TRACE), run_summarized(factory, TRACE)
    assert one[0].violation is None, one[0].violation.message
    assert one[0].exercised["S1"], "the pages of published blocks are read"
    assert difference(TRACE, NAMES, one, other) is None


def test_block_numbers_may_differ() -> None:
    """A larger pool allocates blocks in another order after some time, which changes no decision and no output."""
    larger = msgspec.structs.replace(TRACE, config=msgspec.structs.replace(TRACE.config, num_blocks=90))
    one, other = run_summarized(CLEAN, TRACE), run_summarized(CLEAN, larger)
    assert one[0].digest != other[0].digest
    assert difference(TRACE, NAMES, one, other) is None


def test_another_decision_is_seen_where_it_is_made() -> None:
    def later(planned: Planned) -> Planned:
        return msgspec.structs.replace(planned, preempted=("r9",)) if planned.step == 2 else planned

    other = run_summarized(Changed(Planned, later), TRACE)  # type: ignore[arg-type]
    violation = difference(TRACE, NAMES, run_summarized(CLEAN, TRACE), other)
    assert violation is not None
    assert (violation.signature, violation.event) == ("D1-step-planned", 3)
    assert "preempted r9" in violation.observed_words


def test_another_output_is_a_violation_of_the_other_target_and_a_difference() -> None:
    def wrong(delivered: Delivered) -> Delivered:
        return msgspec.structs.replace(delivered, outputs=[(name, [3]) for name, _ in delivered.outputs])

    other = run_summarized(Changed(Delivered, wrong), TRACE)  # type: ignore[arg-type]
    violation = difference(TRACE, NAMES, run_summarized(CLEAN, TRACE), other)
    assert violation is not None
    assert violation.signature == "D1-step-delivered"


def test_the_first_targets_own_violation_goes_first() -> None:
    def wrong(delivered: Delivered) -> Delivered:
        return msgspec.structs.replace(delivered, outputs=[(name, [3]) for name, _ in delivered.outputs])

    one = run_summarized(Changed(Delivered, wrong), TRACE)  # type: ignore[arg-type]
    violation = difference(TRACE, NAMES, one, run_summarized(CLEAN, TRACE))
    assert violation is not None
    assert violation.oracle == "S6"


def test_a_violation_of_the_second_target_alone_is_a_difference() -> None:
    """Even if decisions and client output agree."""
    one, other = run_summarized(CLEAN, TRACE), run_summarized(CLEAN, TRACE)
    failed = msgspec.structs.replace(one[0], violation=difference(TRACE, NAMES, one, (other[0], other[1][:-1])))
    violation = difference(TRACE, NAMES, one, (failed, other[1]))
    assert violation is not None
    assert violation.field == "violation"
