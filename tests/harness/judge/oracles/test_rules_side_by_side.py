"""D2: an answer that differs is reported, with both, and what was compared is counted."""

from handmade import context_of

from hybridfuzz.harness.judge.oracles.side_by_side import Agreement
from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.targets.base.observe import SideBySide

LAYOUT = Layout((Group("mamba", 4), Group("attention", 4)), 12, 4, "align", True)


def test_equal_answers_are_counted() -> None:
    oracle, context = Agreement(), context_of(LAYOUT)
    assert oracle.on_side_by_side(context, SideBySide(0, 3)) is None
    assert oracle.on_side_by_side(context, SideBySide(0, 0)) is None
    assert oracle.exercised["D2"] == 3


def test_the_operation_and_both_answers_are_told() -> None:
    found = Agreement().on_side_by_side(context_of(LAYOUT), SideBySide(0, 5, "evict", "one: 3", "other: 4"))
    assert found is not None
    assert found.signature.startswith("D2-step-evict")
    assert found.message.endswith("two implementations side by side answer evict differently; one: 3; other: 4")
