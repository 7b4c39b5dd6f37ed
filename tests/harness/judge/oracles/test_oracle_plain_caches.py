"""S9 on hand-made views: the content of each plain cache, whose it is, and the rows that an event leaves.

Breaks of a whole engine are in tests/test_toy_plain_cache.py.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import pytest

from hybridfuzz.harness.judge.oracles.base import Context
from hybridfuzz.harness.judge.oracles.plain_caches import Rows
from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.request import Life
from hybridfuzz.targets.base.observe import Content, SlotContent, StateContent, View
from hybridfuzz.targets.base.protocol import Target

WIDTH = 4
STATE, CONVOLUTION, RECURRENT = Group("mamba", 8), Group("mamba", 8, recurrent=False), Group("mamba", 8, conv=False)
ATTENTION, WINDOWED, DRAFT = Group("attention", 1), Group("attention", 1, window=3), Group("attention", 1, draft=True)


class Caches:
    """A target that holds given contents: (group, id) -> content."""

    def __init__(self, group: Group, contents: Mapping[int, Content]) -> None:
        self.layout = Layout((group,), 0, WIDTH, "none", False, null_block=None)
        self.contents = contents

    def read(self, group: int, layer: int, block: int) -> Content:
        return self.contents[block]


def life_of(name: str, settled: int, document: str = "a") -> Life:
    life = Life(name, ((document, 9),), 3)
    life.settled = settled
    return life


def view_of(running: Sequence[str], caches: Mapping[str, int]) -> View:
    return View((), (), {}, None, {}, (), running, caches=caches)


def judged(group: Group, content: Content, settled: int = 5, *, batch: Sequence[str] | None = None) -> str:
    """The field of the violation for one request in one cache, "" for none."""
    view = view_of(["r0"], {"r0": 7})
    context = Context(cast(Target, Caches(group, {7: content})), view)
    context.reference.lives["r0"] = life_of("r0", settled)
    context.reference.batch = batch
    violation = Rows().on_view(context, view)
    return violation.field if violation else ""


TRUTH = life_of("r0", 0).truth
TAG, WINDOW = TRUTH.tag(5), TRUTH.window(5, WIDTH)
SLOTS = TRUTH.slots(0, 5)


@pytest.mark.parametrize(
    ("group", "content", "settled", "field"),
    [
        (STATE, StateContent(TAG, WINDOW), 5, ""),
        (STATE, StateContent(TAG, WINDOW), 4, "temporal"),
        (STATE, StateContent(TAG, (*WINDOW[:-1], 9)), 5, "conv"),
        (STATE, StateContent(TAG, ()), 5, "conv"),
        (STATE, StateContent(None, WINDOW), 5, "temporal"),
        (STATE, StateContent(99, (9, 9, 9)), 0, ""),
        (STATE, SlotContent(SLOTS), 5, "kind"),
        (CONVOLUTION, StateContent(None, WINDOW), 5, ""),
        (CONVOLUTION, StateContent(None, WINDOW), 6, "conv"),
        (CONVOLUTION, StateContent(TAG, WINDOW), 5, "temporal"),
        (RECURRENT, StateContent(TAG, ()), 5, ""),
        (RECURRENT, StateContent(TAG, ()), 6, "temporal"),
        (ATTENTION, SlotContent(SLOTS), 5, ""),
        (ATTENTION, SlotContent(SLOTS[:-1]), 5, "slot"),
        (ATTENTION, SlotContent(TRUTH.slots(0, 6)), 5, "slot"),
        (ATTENTION, SlotContent(SLOTS), 0, "slot"),
        (ATTENTION, SlotContent(()), 0, ""),
        (WINDOWED, SlotContent(SLOTS), 5, ""),
        (WINDOWED, SlotContent(SLOTS[-2:]), 5, ""),
        (WINDOWED, SlotContent(SLOTS[-1:]), 5, "slot"),
        (WINDOWED, SlotContent(SLOTS[:3]), 5, "slot"),
        (DRAFT, SlotContent([*SLOTS, 1, 2]), 5, ""),
        (DRAFT, SlotContent(SLOTS[:-1]), 5, "slot"),
    ],
)
def test_a_cache_holds_exactly_what_is_computed(group: Group, content: Content, settled: int, field: str) -> None:
    """Each part that the layers have; of a window at least what the next token attends to; nothing of a state before
    the first token; drafts only in the drafter's own attention."""
    assert judged(group, content, settled) == field


@pytest.mark.parametrize(("batch", "field"), [(None, ""), (["r0"], ""), (["r1", "r0"], "order"), ([], "order")])
def test_the_rows_are_those_that_the_event_leaves(batch: Sequence[str] | None, field: str) -> None:
    assert judged(STATE, StateContent(TAG, WINDOW), batch=batch) == field


@pytest.mark.parametrize(
    ("caches", "field"),
    [
        ({"r0": 0, "r1": 1}, ""),
        ({"r0": 0, "r1": 0}, "shared"),
        ({"r0": 0}, "missing"),
        ({"r0": 0, "r1": 1, "x": 0}, ""),
    ],
)
def test_each_running_request_has_a_cache_of_its_own(caches: Mapping[str, int], field: str) -> None:
    """A name that the reference does not know (an ended request) does not count."""
    view = view_of(["r0", "r1"], caches)
    context = Context(cast(Target, Caches(ATTENTION, {0: SlotContent(SLOTS), 1: SlotContent(SLOTS)})), view)
    context.reference.lives = {name: life_of(name, 5) for name in ("r0", "r1")}
    violation = Rows().on_view(context, view)
    assert (violation.field if violation else "") == field


def test_a_step_in_flight_is_not_due() -> None:
    view = view_of(["r0"], {"r0": 0})
    context = Context(cast(Target, Caches(ATTENTION, {0: SlotContent(())})), view)
    context.reference.lives["r0"] = life_of("r0", 0)
    context.reference.plan(0, [("r0", 5, 0)], {}, (), {})
    context.reference.lives["r0"].settled = 5
    assert Rows().on_view(context, view) is None
    context.reference.executed(0)
    assert Rows().on_view(context, view) is not None
