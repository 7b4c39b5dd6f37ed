"""M8 (publication) on observations made by hand: which boundaries have to be published, and when."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from handmade import context_of, enter, life_of, plan, view_of
from support import CLEAN, arrive, broken, make_trace, steps

from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.judge.oracles.base import Context
from hybridfuzz.harness.judge.oracles.liveness import Publication
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.prefix_cache import Key
from hybridfuzz.reference.tokens import Truth
from hybridfuzz.targets.base.observe import Delivered, ForwardRow, Planned, PlannedRow, Table
from hybridfuzz.targets.hybrid.host.block_tables import Span
from hybridfuzz.targets.hybrid.host.cache_manager import CacheManager

ALIGN = Layout((Group("mamba", 8), Group("attention", 4)), 20, 4, "align", True)
ALL = replace(ALIGN, mode="all")
SELECTION = replace(ALIGN, keeps_every_state=False)
R0: Table = ((3, 4), (5, 6, 7, 8))
TAGS = Truth([("a", 30)])
STATES = {3: Key(0, 8, TAGS.tag(8)), 4: Key(0, 16, TAGS.tag(16))}
PAGES = {block: Key(1, depth, TAGS.tag(depth)) for block, depth in ((5, 4), (6, 8), (7, 12), (8, 16))}
DELIVERED = Delivered(0, (), ())


def compute(context: Context, oracle: Publication, start: int, count: int, drafts: int = 0, sampled: int = 0) -> None:
    """The forward of r0's planned step."""
    life = context.reference.lives["r0"]
    oracle.on_row(context, ForwardRow("r0", start, (5,) * count, drafts, (5,) * sampled), life)
    life.advance(count, drafts, sampled)
    context.reference.executed(context.step)


def missing(
    layout: Layout, count: int, published: Mapping[int, Key], *, start: int = 0, drafts: int = 0, sampled: int = 0,
    table: Table = R0, told: bool = True,
) -> str:  # fmt: skip
    """r0 is admitted (with a hit of `start`), computes `count` tokens, and is planned again: which block is missed?"""
    context, oracle = context_of(layout, r0=life_of("r0", 20)), Publication()
    first = plan(context, PlannedRow("r0", start, count, drafts, True, start), tables={"r0": table})
    assert oracle.on_planned(context, first) is None
    enter(context, first)
    compute(context, oracle, start, count, drafts, sampled)
    if told:
        oracle.on_delivered(context, DELIVERED)
    again = PlannedRow("r0", context.reference.lives["r0"].settled, 1, 0, False, 0)
    violation = oracle.on_planned(context, plan(context, again, step=1, tables={"r0": table}, published=published))
    return f"{violation.field} {violation.block}" if violation else ""


def only(*blocks: int) -> dict[int, Key]:
    return {block: name for block, name in (STATES | PAGES).items() if block in blocks}


@pytest.mark.parametrize(("layout", "count", "blocks", "missed"), [
    (ALIGN, 7, (5,), ""),
    (ALIGN, 7, (), "unpublished 5"),
    (ALIGN, 3, (), ""),
    (ALIGN, 8, (3, 5, 6), ""),
    (ALIGN, 8, (5, 6), "unpublished 3"),
    (ALIGN, 8, (3, 6), "unpublished 5"),
    (ALIGN, 8, (3, 5), "unpublished 6"),
    (ALIGN, 10, (5, 6), ""),
    (ALL, 10, (5, 6), "unpublished 3"),
    (ALIGN, 16, (4, 5, 6, 7, 8), ""),
    (ALIGN, 16, (3, 5, 6, 7, 8), "unpublished 4"),
    (ALL, 16, (4, 5, 6, 7, 8), "unpublished 3"),
    (SELECTION, 8, (5, 6), ""),
    (SELECTION, 8, (3, 5), "unpublished 6"),
    (replace(ALL, keeps_every_state=False), 8, (5, 6), ""),
    (replace(ALIGN, prefix_caching=False), 8, (), ""),
    (replace(ALIGN, mode="slots"), 8, (), ""),
])  # fmt: skip
def test_every_boundary_whose_state_exists(layout: Layout, count: int, blocks: tuple[int, ...], missed: str) -> None:
    """Align leaves the state where the chunk ends, all leaves every one, pages are all there."""
    assert missing(layout, count, only(*blocks)) == missed


def test_a_key_may_be_found_elsewhere_but_found_it_must_be() -> None:
    """Two requests computed it, and the block of the other one is published."""
    assert missing(ALIGN, 8, {9: STATES[3], 5: PAGES[5], 6: PAGES[6]}) == ""
    assert missing(ALIGN, 8, {3: STATES[4], 5: PAGES[5], 6: PAGES[6]}) == "unpublished 3"


def test_a_key_of_another_group_is_none_of_this_one() -> None:
    """It names the same prefix."""
    context, oracle = context_of(ALIGN, r0=life_of("r0", 20)), Publication()
    enter(context, first := plan(context, PlannedRow("r0", 0, 8, 0, True, 0), tables={"r0": R0}))
    assert oracle.on_planned(context, first) is None
    compute(context, oracle, 0, 8)
    oracle.on_delivered(context, DELIVERED)
    published = {3: PAGES[6], 5: PAGES[5], 6: PAGES[6]}
    context.reference.truths |= dict.fromkeys(published.values(), TAGS)
    again = plan(context, PlannedRow("r0", 8, 1, 0, False, 0), step=1, tables={"r0": R0}, published=published)
    violation = oracle.on_planned(context, again)
    assert violation and (violation.field, violation.block) == ("unpublished", 3)


def test_a_column_that_holds_nothing_is_not_missed() -> None:
    table: Table = ((0, 4), R0[1])
    assert missing(ALL, 16, only(4, 5, 6, 7, 8), table=table) == ""
    assert missing(ALL, 16, only(5, 6, 7, 8), table=table) == "unpublished 4"


def test_results_that_are_not_known_yet_need_not_be_published() -> None:
    assert missing(ALIGN, 8, {}, told=False) == ""


def test_what_came_with_a_hit_is_not_asked_for() -> None:
    assert missing(ALIGN, 4, only(7), start=8) == ""
    assert missing(ALIGN, 4, {}, start=8) == "unpublished 7"


@pytest.mark.parametrize(("sampled", "blocks", "missed"), [
    (4, (3, 6), ""), (4, (6,), "unpublished 3"), (4, (3,), "unpublished 6"), (3, (6,), "unpublished 3"),
    (2, (6,), "unpublished 3"), (1, (), ""),
])  # fmt: skip
def test_a_boundary_that_verified_drafts_crossed(sampled: int, blocks: tuple[int, ...], missed: str) -> None:
    """One token at position 6 and three drafts: a request that accepts one of them reaches state@8."""
    assert missing(ALIGN, 4, only(*blocks), start=6, drafts=3, sampled=sampled) == missed


def test_once_is_enough() -> None:
    """What was published may be evicted afterwards."""
    context, oracle = context_of(ALIGN, r0=life_of("r0", 20)), Publication()
    first = plan(context, PlannedRow("r0", 0, 8, 0, True, 0), tables={"r0": R0})
    assert oracle.on_planned(context, first) is None
    enter(context, first)
    compute(context, oracle, 0, 8)
    oracle.on_delivered(context, DELIVERED)
    for step, published in enumerate((only(3, 5, 6), {}), 1):
        row = PlannedRow("r0", 8, 1, 0, False, 0)
        assert oracle.on_planned(context, plan(context, row, step=step, tables={"r0": R0}, published=published)) is None
    assert oracle.exercised == {"M8": 3}


def test_a_truncated_session_publishes_again() -> None:
    """It resumes from four tokens and computes the next boundary again, perhaps of another prefix."""
    context, oracle = context_of(ALIGN, r0=life_of("r0", 20, session=True)), Publication()
    rows: Any = [(PlannedRow("r0", 0, 8, 0, True, 0), 8), (PlannedRow("r0", 4, 4, 0, True, 0, kept=4), 4)]
    for step, (row, count) in enumerate(rows):
        planned = plan(context, row, step=step, tables={"r0": R0}, published=only(3, 5, 6))
        assert oracle.on_planned(context, planned) is None
        enter(context, planned)
        compute(context, oracle, row.start, count)
        oracle.on_delivered(context, DELIVERED)
        if not step:
            after = plan(
                context, PlannedRow("r0", 8, 0, 0, False, 0), step=9, tables={"r0": R0}, published=only(3, 5, 6)
            )
            assert oracle.on_planned(context, after) is None
            context.reference.executed(9)
    last = plan(context, PlannedRow("r0", 8, 1, 0, False, 0), step=2, tables={"r0": R0}, published=only(5, 6))
    violation = oracle.on_planned(context, last)
    assert violation is not None
    assert violation.block == 3


def test_what_an_ended_request_computed_is_no_longer_asked_for() -> None:
    context, oracle = context_of(ALIGN, r0=life_of("r0", 20)), Publication()
    first = plan(context, PlannedRow("r0", 0, 8, 0, True, 0), tables={"r0": R0})
    assert oracle.on_planned(context, first) is None
    enter(context, first)
    compute(context, oracle, 0, 8)
    context.reference.forget("r0")
    oracle.on_delivered(context, DELIVERED)
    assert oracle.on_planned(context, plan(context, step=1)) is None


def test_blocks_are_due_when_a_multiple_of_the_unit_of_publication_is_computed() -> None:
    """Fourteen tokens, published in multiples of 8: what ends at 12 is not due yet."""
    late = replace(ALIGN, publish_unit=8)
    due = {block: key for block, key in PAGES.items() if key.depth <= 8} | {3: STATES[3]}
    assert missing(ALIGN, 14, due) == "unpublished 7"
    assert missing(late, 14, due) == ""
    assert missing(late, 14, {}) == "unpublished 5"


def test_of_a_window_only_the_blocks_that_a_hit_attends_to_are_due() -> None:
    """With hits at multiples of 8 and a window of three tokens, a block that ends at 4 or 12 is never used."""
    groups = (Group("mamba", 8), Group("attention", 4, window=3))
    layout = Layout(groups, 20, 4, "align", True, publish_unit=8)
    assert missing(layout, 16, STATES | {6: PAGES[6], 8: PAGES[8]}) == ""
    assert missing(layout, 16, STATES | {6: PAGES[6], 7: PAGES[7]}) == "unpublished 8"


def test_what_a_former_life_computed_is_not_asked_of_a_request_that_waits_for_a_load() -> None:
    """Preempted after 16 tokens, it gets two blocks for a load, and results of other requests arrive meanwhile."""
    context, oracle = context_of(ALL, r0=life_of("r0", 20)), Publication()
    enter(context, first := plan(context, PlannedRow("r0", 0, 16, 0, True, 0), tables={"r0": R0}))
    oracle.on_planned(context, first)
    compute(context, oracle, 0, 16)
    short: Table = ((3,), (5,))
    now = view_of(ALL, {"r0": short})
    oracle.on_planned(context, Planned(1, (PlannedRow("r0", 4, 0, 0, True, 4),), (), 99, now))
    context.reference.plan_load(1, ("r0", 4, 4), now.tables, now.references, {})
    oracle.on_delivered(context, DELIVERED)
    again = plan(context, PlannedRow("r0", 4, 1, 0, False, 0), step=2, tables={"r0": short}, published=only(5))
    assert oracle.on_planned(context, again) is None


class ReleasesFirst(CacheManager):
    """Releases a request's settled columns before their boundaries are published."""

    def settle(self, name: str, tags: Sequence[int], span: Span) -> None:
        for group in self.groups:
            group.give_back_skipped(name, span.settled)
        super().settle(name, tags, span)


def test_a_boundary_that_drafts_crossed_is_published_before_its_column_is_released() -> None:
    trace = make_trace(arrive("r0", 6, new=6), *steps(3, drafts=2, right=2), num_speculative_tokens=2)
    assert run_trace(CLEAN, trace).violation is None
    violation = run_trace(broken(ReleasesFirst), trace).violation
    assert violation and violation.field == "unpublished", violation
    assert "its boundary at 8 tokens, is not published" in violation.message


def test_a_block_that_a_failed_admission_took_may_have_lost_its_key() -> None:
    """A load breaks off after its blocks were taken: among them one that was released in this plan (seed 630858177)."""
    trace = load_trace(Path(__file__).parents[3] / "data" / "hybrid-key-lost-to-a-load-that-broke-off.json")
    assert run_trace(CLEAN, trace).violation is None
