"""M2, M6, M8 (hits) and S5 on observations made by hand: what counts as held, as valid, as promised, as written."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from handmade import context_of, enter, life_of, plan, view_of

from hybridfuzz.harness.judge.oracles.prefix_cache import Commit, Hash, HitValidity
from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.prefix_cache import Key
from hybridfuzz.reference.request import Life
from hybridfuzz.reference.tokens import Truth
from hybridfuzz.targets.base.observe import Planned, PlannedRow, Table

GROUPS = (Group("mamba", 8), Group("attention", 4))
ALIGN = Layout(GROUPS, 20, 4, "align", True)
FINE = Layout(GROUPS, 20, 4, "align", True, hit_unit=2, hash_unit=2)
SLOTS = Layout(GROUPS, 20, 4, "slots", True, cache_owns=True)
R0: Table = ((3, 4), (5, 6, 7, 8))


def key(group: int, depth: int, document: str = "a") -> Key:
    return Key(group, depth, Truth([(document, 30)]).tag(depth))


def field_of(violation: Any) -> str:
    return violation.field if violation else ""


@pytest.mark.parametrize(("layout", "block", "name", "field"), [
    (ALIGN, 3, key(0, 8), ""),
    (ALIGN, 4, key(0, 8), "key"),
    (ALIGN, 3, key(0, 8, "b"), "key"),
    (ALIGN, 4, key(0, 16), "key"),
    (ALIGN, 4, key(0, 10), "key"),
    (FINE, 4, key(0, 10), ""),
    (FINE, 4, key(0, 9), "key"),
    (FINE, 3, key(0, 10), "key"),
    (ALIGN, 6, key(1, 8), ""),
    (ALIGN, 5, key(1, 8), "key"),
    (ALIGN, 7, key(1, 12), "key"),
    (ALIGN, 5, key(0, 8), "key"),
    (ALIGN, 9, key(0, 8), "key"),
    (SLOTS, 9, key(0, 9), ""),
    (SLOTS, 9, key(0, 11), "key"),
    (SLOTS, 9, key(0, 9, "b"), "key"),
    (SLOTS, 9, key(1, 8), "key"),
])  # fmt: skip
def test_a_key_stands_in_its_column_of_a_request_that_has_computed_it(
    layout: Layout, block: int, name: Key, field: str
) -> None:
    """r0 has computed ten tokens. A state slot may be anybody's, its state not: some request has to be at it."""
    context = context_of(layout, r0=life_of("r0", 20, settled=10))
    view = view_of(layout, {"r0": R0}, {block: name})
    oracle = Hash()
    assert field_of(oracle.on_view(context, view)) == field
    assert oracle.exercised == {"M2": 1}


def test_a_key_beyond_the_columns_of_a_request_is_not_in_its_column() -> None:
    context = context_of(ALIGN, r0=life_of("r0", 20, settled=16))
    view = view_of(ALIGN, {"r0": ((3,), (5, 6))}, {3: key(0, 16)})
    violation = Hash().on_view(context, view)
    assert violation is not None
    assert "r0 has it in column 0" in violation.message


def test_what_a_planned_step_computes_may_be_published() -> None:
    context = context_of(ALIGN, r0=life_of("r0", 20, settled=10))
    ahead = plan(context, PlannedRow("r0", 10, 6, 0, False, 0), tables={"r0": R0}, published={4: key(0, 16)})
    assert Hash().on_planned(context, ahead) is None
    short = plan(context, PlannedRow("r0", 10, 5, 0, False, 0), step=1, tables={"r0": R0}, published={4: key(0, 16)})
    assert field_of(Hash().on_planned(context, short)) == "key"


@pytest.mark.parametrize(("stop_at", "field"), [(0, ""), (4, ""), (3, "key")])
def test_nothing_is_published_behind_the_end_of_an_answer(stop_at: int, field: str) -> None:
    """Twelve tokens of prompt: a block that ends with the answer's last token is published, a later one is not."""
    life = Life("r0", (("a", 12),), 8, stop_at=stop_at)
    context = context_of(ALIGN, r0=life)
    row = PlannedRow("r0", 12, 8, 0, False, 0)
    ahead = plan(context, row, tables={"r0": R0}, published={4: Key(0, 16, life.truth.tag(16))})
    assert life.answer_length == (stop_at or 8)
    assert field_of(Hash().on_planned(context, ahead)) == field


@pytest.mark.parametrize(("lookahead", "behind", "field"), [
    (0, 0, "key"), (0, 1, ""), (1, 1, "key"), (1, 2, ""),
])  # fmt: skip
def test_what_an_engine_kept_behind_an_end_that_others_found_is_published(
    lookahead: int, behind: int, field: str
) -> None:
    """The fifteenth token ends the answer, which a front end finds; a verification has accepted tokens behind it."""
    life = Life("r0", (("a", 12),), 8, stop_at=3)
    life.settled, life.delivered, life.behind = 17, 3, behind
    named = Key(1, 16, life.truth.tag(16 + lookahead))
    context = context_of(replace(ALIGN, lookahead=lookahead), r0=life)
    assert field_of(Hash().on_view(context, view_of(context.layout, {"r0": R0}, {8: named}))) == field


@pytest.mark.parametrize(("delivered", "behind", "field"), [(1, "~", ""), (0, "~", "key"), (1, "b", "key")])
def test_a_key_names_a_token_only_once_it_is_known(delivered: int, behind: str, field: str) -> None:
    """Lookahead hashes: with twelve tokens of prompt the thirteenth is sampled. Computing the prompt does not make it
    known, nor does a draft of it, and another one is wrong."""
    layout = replace(ALIGN, lookahead=1)
    life = life_of("r0", 12, settled=12)
    life.delivered = delivered
    named = Truth([("a", 12), (behind, 2)]).tag(13)
    context = context_of(layout, r0=life)
    assert field_of(Hash().on_view(context, view_of(layout, {"r0": R0}, {7: Key(1, 12, named)}))) == field


@pytest.mark.parametrize(("alive", "in_flight", "field"), [
    (True, False, ""), (False, True, ""), (False, False, "key"),
])  # fmt: skip
def test_what_is_published_may_be_given_back_in_the_same_breath(alive: bool, in_flight: bool, field: str) -> None:
    """By a request that was preempted or that ended in this step; not by one that is forgotten."""
    context = context_of(ALIGN, r0=life_of("r0", 20, settled=10))
    if in_flight:
        enter(context, plan(context, PlannedRow("r0", 9, 1, 0, False, 0), tables={"r0": R0}))
    if not alive:
        context.reference.forget("r0")
    oracle = Hash()
    assert oracle.on_view(context, view_of(ALIGN, {"r0": R0})) is None
    assert field_of(oracle.on_view(context, view_of(ALIGN, published={3: key(0, 8)}))) == field


def test_what_an_ended_request_published_while_the_device_went_on_to_a_step_without_it() -> None:
    """SGLang's sessions: when a turn ends, the step in flight runs before the client hears of it."""
    context = context_of(ALIGN, r0=life_of("r0", 20, settled=10), r1=life_of("r1", 20, settled=10))
    oracle = Hash()
    assert oracle.on_view(context, view_of(ALIGN, {"r0": R0})) is None
    enter(context, plan(context, PlannedRow("r1", 9, 1, 0, False, 0)))
    context.reference.forget("r0")
    assert oracle.on_view(context, view_of(ALIGN, published={3: key(0, 8)})) is None


def test_what_was_given_back_before_may_not_be_published_any_more() -> None:
    context, oracle = context_of(ALIGN, r0=life_of("r0", 20, settled=10)), Hash()
    for tables in ({"r0": R0}, {}, {}):
        assert oracle.on_view(context, view_of(ALIGN, tables)) is None
    assert field_of(oracle.on_view(context, view_of(ALIGN, published={3: key(0, 8)}))) == "key"


@pytest.mark.parametrize(("before", "pins", "field"), [
    ({4: key(0, 10)}, {9: 1}, ""), ({4: key(0, 10)}, {}, "key"), ({}, {9: 1}, "key"),
])  # fmt: skip
def test_a_partial_key_may_move_to_a_pinned_copy(before: dict[int, Key], pins: dict[int, int], field: str) -> None:
    """Out of the way of a request that goes on; the key has to have been known, the copy to be pinned."""
    context, oracle = context_of(FINE, r0=life_of("r0", 20, settled=10)), Hash()
    assert oracle.on_view(context, view_of(FINE, {"r0": R0}, before)) is None
    moved = view_of(FINE, {"r0": R0}, {9: key(0, 10)}, pins=pins)
    assert field_of(oracle.on_view(context, moved)) == field


@pytest.mark.parametrize(("labels", "field"), [
    (None, ""), ({3: key(0, 8)}, ""), ({}, "agreement"), ({3: key(0, 16)}, "agreement"),
    ({3: key(0, 8), 4: key(0, 16)}, "agreement"),
])  # fmt: skip
def test_blocks_and_lookups_agree_where_both_are_seen(labels: dict[int, Key] | None, field: str) -> None:
    context = context_of(ALIGN, r0=life_of("r0", 20, settled=10))
    view = view_of(ALIGN, {"r0": R0}, {3: key(0, 8)}, labels=labels)
    assert field_of(Hash().on_view(context, view)) == field


HIT_OF_8 = {3: key(0, 8), 5: key(1, 4), 6: key(1, 8)}
WINDOWED = Layout((Group("mamba", 8), Group("attention", 4, window=3)), 20, 4, "align", True)
COMPLETED = replace(WINDOWED, loads_complete_hits=True)
EAGLE = Layout((Group("mamba", 8), Group("attention", 4)), 20, 4, "align", True, eagle_drop=True)


def hit(
    layout: Layout, row: PlannedRow, published: Mapping[int, Key], *, tokens: int = 20, table: Table = R0, **life: Any
) -> str:
    """Return M6's verdict on one admission; nothing was cached before, so any hit is long enough."""
    context = context_of(layout, r1=life_of("r1", tokens, **life))
    planned = plan(context, row, tables={"r1": table}, published=published)
    return field_of(HitValidity().on_planned(context, planned))


@pytest.mark.parametrize(("layout", "length", "external", "published", "field"), [
    (ALIGN, 8, 0, HIT_OF_8, ""),
    (ALIGN, 8, 0, HIT_OF_8 | {3: key(0, 16)}, "length"),
    (ALIGN, 8, 0, HIT_OF_8 | {3: key(0, 8, "b")}, "length"),
    (ALIGN, 8, 0, {3: key(0, 8), 6: key(1, 8)}, "length"),
    (ALIGN, 8, 0, {3: key(0, 8), 5: key(1, 8), 6: key(1, 4)}, "length"),
    (WINDOWED, 8, 0, {3: key(0, 8), 6: key(1, 8)}, ""),
    (WINDOWED, 8, 0, {3: key(0, 8), 5: key(1, 4)}, "length"),
    (WINDOWED, 8, 1, {}, "length"),
    (COMPLETED, 8, 1, {}, ""),
    (COMPLETED, 8, 1, {6: key(1, 4)}, "length"),
    (COMPLETED, 8, 0, {3: key(0, 8)}, "length"),
    (FINE, 6, 0, {5: key(1, 4)}, ""),
    (FINE, 6, 0, {6: key(1, 8)}, "length"),
    (FINE, 10, 0, HIT_OF_8, ""),
    (FINE, 10, 0, {5: key(1, 4), 6: key(1, 8)}, ""),
    (FINE, 10, 0, {3: key(0, 8), 6: key(1, 8)}, "length"),
    (ALIGN, 8, 3, {5: key(1, 4), 6: key(1, 8)}, ""),
    (ALIGN, 8, 3, {3: key(0, 8), 5: key(1, 4)}, "length"),
    (SLOTS, 8, 0, {9: key(0, 8), 5: key(1, 4), 6: key(1, 8)}, ""),
    (SLOTS, 8, 0, {9: key(0, 16), 5: key(1, 4), 6: key(1, 8)}, "length"),
    (SLOTS, 8, 0, {9: key(0, 8), 5: key(1, 8), 6: key(1, 4)}, "length"),
    (SLOTS, 0, 0, {}, ""),
])  # fmt: skip
def test_a_hit_needs_what_its_next_token_reads(
    layout: Layout, length: int, external: int, published: dict[int, Key], field: str
) -> None:
    """Every whole block that is attended to, and the state at its end unless a later one is loaded or copied.

    A load may complete what a window lacks.
    """
    row = PlannedRow("r1", length + external, 1, 0, True, length, external=external)
    assert hit(layout, row, published) == field


@pytest.mark.parametrize(("table", "published", "block", "says"), [
    (((3,), (5,)), HIT_OF_8, -1, "column 1 of its attention group 1 is missing"),
    (R0, {3: key(0, 8), 5: key(1, 4)}, 6, "column 1 of its attention group 1 is block 6, which is not published"),
    (R0, {3: key(0, 16)}, 3, "column 0 of its mamba group 0 is block 3, published as depth 16 of another prefix"),
])  # fmt: skip
def test_what_a_hit_found_instead_is_named(table: Table, published: dict[int, Key], block: int, says: str) -> None:
    """A column that its table lacks is called missing."""
    context = context_of(ALIGN, r1=life_of("r1", 20))
    row = PlannedRow("r1", 8, 1, 0, True, 8)
    violation = HitValidity().on_planned(context, plan(context, row, tables={"r1": table}, published=published))
    assert violation is not None
    assert violation.block == block
    assert says in violation.message


@pytest.mark.parametrize(("length", "external", "kept", "tokens", "field"), [
    (8, 0, 0, 9, ""), (8, 0, 0, 8, "whole-request"), (0, 19, 0, 20, ""), (0, 20, 0, 20, "whole-request"),
    (8, 11, 0, 20, ""), (8, 12, 0, 20, "whole-request"),
    (0, 0, 10, 20, ""), (0, 0, 11, 20, "kept"), (0, 0, 10, 11, ""), (0, 0, 10, 10, "kept"),
])  # fmt: skip
def test_one_token_at_least_is_left_to_compute(length: int, external: int, kept: int, tokens: int, field: str) -> None:
    """Of the whole request; and a session keeps no more than it has computed, which is ten tokens here."""
    row = PlannedRow("r1", length + external + kept, 1, 0, True, length, external=external, kept=kept)
    assert hit(ALIGN, row, HIT_OF_8, tokens=tokens, settled=10) == field


def test_a_start_that_is_too_far_says_what_it_rests_on() -> None:
    for row, says in (
        (
            PlannedRow("r1", 20, 1, 0, True, 8, external=12),
            "r1 got a hit of 20 tokens; of its 20 tokens it may have at most 19",
        ),
        (PlannedRow("r1", 11, 1, 0, True, 0, kept=11), "r1 kept 11 tokens, with 10 computed; of its 20 tokens"),
    ):
        context = context_of(ALIGN, r1=life_of("r1", 20, settled=10))
        planned = plan(context, row, tables={"r1": R0}, published=HIT_OF_8)
        violation = HitValidity().on_planned(context, planned)
        assert violation is not None
        assert says in violation.message


def test_only_an_admission_has_a_hit() -> None:
    assert hit(ALIGN, PlannedRow("r1", 19, 1, 0, False, 8), {}) == ""


@pytest.mark.parametrize(("matched", "field"), [(8, "eagle-block"), (12, ""), (4, "length")])
def test_the_drafters_last_block_is_given_up(matched: int, field: str) -> None:
    """Of a match of twelve tokens a hit of eight is left; of a match of eight it is not."""
    attention = {block: key(1, depth) for block, depth in ((5, 4), (6, 8), (7, 12)) if depth <= matched}
    assert hit(EAGLE, PlannedRow("r1", 8, 1, 0, True, 8), {3: key(0, 8), **attention}) == field


def test_what_was_matched_may_be_gone_after_planning() -> None:
    """The block that was given up is evicted by the very admission; it counts as matched."""
    context = context_of(EAGLE, r1=life_of("r1", 20))
    context.before = view_of(EAGLE, published={**HIT_OF_8, 7: key(1, 12)})
    planned = plan(context, PlannedRow("r1", 8, 1, 0, True, 8), tables={"r1": R0}, published=HIT_OF_8)
    assert HitValidity().on_planned(context, planned) is None


ELSEWHERE: Table = ((9, 10), (11, 12, 13))


def promised(before: dict[str, Any], after: dict[str, Any], row: PlannedRow, **more: Any) -> tuple[str, int]:
    """Return M8's verdict on an admission of r1, and how often it was exercised."""
    layout, tokens = more.get("layout", ALIGN), more.get("tokens", 20)
    context = context_of(layout, r0=life_of("r0", 20, settled=16), r1=life_of("r1", tokens))
    context.before = view_of(layout, **before)
    planned = plan(context, row, **after)
    planned = Planned(planned.step, planned.rows, more.get("preempted", ()), planned.budget, planned.view)
    oracle = HitValidity()
    return field_of(oracle.on_planned(context, planned)), oracle.exercised["M8"]


MISSED = PlannedRow("r1", 0, 9, 0, True, 0)
CACHED = {"published": HIT_OF_8}
TAKES_OTHERS = {"tables": {"r1": ELSEWHERE}, "published": HIT_OF_8}


def test_what_is_cached_before_and_after_is_promised() -> None:
    assert promised(CACHED, TAKES_OTHERS, MISSED) == ("hit", 1)
    assert promised(CACHED, {"tables": {"r1": R0}, **CACHED}, PlannedRow("r1", 8, 9, 0, True, 8)) == ("", 1)


def test_a_longer_hit_than_promised_is_not_too_short() -> None:
    """Published in the same planning by another request."""
    longer = {**HIT_OF_8, 4: key(0, 16), 7: key(1, 12), 8: key(1, 16)}
    row = PlannedRow("r1", 16, 3, 0, True, 16)
    assert promised(CACHED, {"tables": {"r1": R0}, "published": longer}, row) == ("", 1)


@pytest.mark.parametrize("lost", HIT_OF_8)
def test_what_may_have_been_evicted_in_between_is_not_promised(lost: int) -> None:
    """Its key is gone, or it was free and is held now: it may have been handed out and published again."""
    rest = {block: name for block, name in HIT_OF_8.items() if block != lost}
    assert promised(CACHED, {"tables": {"r1": ELSEWHERE}, "published": rest}, MISSED) == ("", 0)
    taken = {"r1": ELSEWHERE, "r0": ((lost,), ())}
    assert promised(CACHED, {"tables": taken, **CACHED}, MISSED) == ("", 0)
    held = {"tables": {"r0": ((lost,), ())}, **CACHED}
    assert promised(held, {"tables": taken, **CACHED}, MISSED) == ("hit", 1)


def test_what_the_hit_itself_revives_is_promised() -> None:
    """A hit of one unit out of two, all of it free before: the second was there for certain, too."""
    deeper = {**HIT_OF_8, 4: key(0, 16), 7: key(1, 12), 8: key(1, 16)}
    table: Table = ((3, 10, 11), (5, 6, 12, 13, 14))
    row = PlannedRow("r1", 8, 9, 0, True, 8)
    assert promised({"published": deeper}, {"tables": {"r1": table}, "published": deeper}, row) == ("hit", 1)


def test_nothing_is_promised_where_there_is_nothing_to_promise() -> None:
    """Preemption may have evicted; a session goes on with what it kept; caching is off; the prompt is too short."""
    assert promised(CACHED, TAKES_OTHERS, MISSED, preempted=("r0",)) == ("", 0)
    assert promised(CACHED, TAKES_OTHERS, MISSED, tokens=8) == ("", 0)
    uncached = Layout(GROUPS, 20, 4, "none", False)
    assert promised(CACHED, TAKES_OTHERS, MISSED, layout=uncached) == ("", 0)
    context = context_of(ALIGN, r1=life_of("r1", 20, settled=2))
    context.before = view_of(ALIGN, **CACHED)
    kept = plan(context, PlannedRow("r1", 2, 9, 0, True, 0, kept=2), **TAKES_OTHERS)
    assert HitValidity().on_planned(context, kept) is None


def early(layout: Layout, row: PlannedRow, before: dict[int, Key], settled: int = 0, held: bool = True) -> str:
    """S5 on r1's hit of what is published now, while r0 (holding the state's block 3 before, or not) is at work."""
    tables = {"r0": R0} if held else {}
    context = context_of(layout, r0=life_of("r0", 20, settled=settled), r1=life_of("r1", 20))
    context.before = view_of(layout, tables, before)
    rows = (PlannedRow("r0", settled, 8, 0, False, 0), row) if held else (row,)
    now = {**tables, "r1": R0 if layout.mode != "slots" else ((12, 13), R0[1])}
    return field_of(Commit().on_planned(context, plan(context, *rows, tables=now, published=HIT_OF_8)))


HIT = PlannedRow("r1", 8, 1, 0, True, 8)


@pytest.mark.parametrize("layout", [ALIGN, SLOTS])
def test_a_state_is_hit_after_its_step_was_planned(layout: Layout) -> None:
    assert early(layout, HIT, {}) == "early-hit"
    assert early(layout, HIT, HIT_OF_8) == ""
    assert early(layout, HIT, {3: key(0, 8)}) == ""
    assert early(layout, HIT, {3: key(0, 16)}) == "early-hit"


@pytest.mark.parametrize(("settled", "held", "field"), [(7, True, "early-hit"), (8, True, ""), (8, False, "early-hit")])
def test_a_state_that_was_computed_may_be_published_late(settled: int, held: bool, field: str) -> None:
    """Whoever held its block has computed so many tokens."""
    assert early(ALIGN, HIT, {}, settled, held) == field


def test_a_state_slot_out_of_its_writers_hands_was_written() -> None:
    assert early(SLOTS, HIT, {}, held=False) == ""


@pytest.mark.parametrize("row", [
    PlannedRow("r1", 8, 1, 0, False, 8), PlannedRow("r1", 10, 1, 0, True, 8, external=2),
    PlannedRow("r1", 0, 1, 0, True, 0),
])  # fmt: skip
def test_who_hits_no_state_is_not_early(row: PlannedRow) -> None:
    """Not admitted now, or the state is loaded, or there is no hit."""
    assert early(ALIGN, row, {}) == ""


def test_of_several_slots_the_one_that_was_known_counts() -> None:
    context = context_of(SLOTS, r0=life_of("r0", 20), r1=life_of("r1", 20))
    context.before = view_of(SLOTS, {"r0": R0}, {15: key(0, 8)})
    for published in ({3: key(0, 8), 15: key(0, 8)}, {15: key(0, 8), 3: key(0, 8)}):
        rows = (PlannedRow("r0", 0, 8, 0, False, 0), HIT)
        step = len(context.reference.pending)
        tables = {"r0": R0, "r1": ((12, 13), R0[1])}
        planned = plan(context, *rows, step=step, tables=tables, published=published)
        assert Commit().on_planned(context, planned) is None


@pytest.mark.parametrize(("copies", "field"), [({9: 4}, ""), ({9: 3}, "key"), ({}, "key")])
def test_a_partial_key_may_move_to_the_block_that_its_own_is_copied_into(copies: dict[int, int], field: str) -> None:
    """Block 4 held the state after ten tokens; its request goes on writing to it, and the cache keeps a copy."""
    context = context_of(FINE, r0=life_of("r0", 20, settled=10))
    oracle = Hash()
    assert oracle.on_view(context, view_of(FINE, {"r0": R0}, {4: key(0, 10)})) is None
    view = msgspec.structs.replace(view_of(FINE, {"r0": R0}, {9: key(0, 10)}), copies=copies)
    assert field_of(oracle.on_view(context, view)) == field


@pytest.mark.parametrize(("copies", "named", "field"), [
    ({9: 4}, key(0, 10), ""), ({9: 3}, key(0, 10), "key"), ({9: 4}, key(0, 8), "key"), ({9: 4}, key(0, 10, "b"), "key"),
])  # fmt: skip
def test_a_loaded_state_may_be_published_on_a_copy_at_once(copies: dict[int, int], named: Key, field: str) -> None:
    """Block 4 is loaded with the state after ten tokens, and keyed, copied and written to by one planning."""
    context = context_of(FINE, r0=life_of("r0", 20, settled=10))
    view = msgspec.structs.replace(view_of(FINE, {"r0": R0}, {9: named}), copies=copies)
    assert field_of(Hash().on_view(context, view)) == field


@pytest.mark.parametrize(("published", "hit", "field"), [
    ((4, 8, 12), 8, ""),
    ((4, 8, 12), 12, "eagle-block"),
    ((4, 8, 12, 14), 12, ""),
    ((4, 8, 12, 16), 14, ""),
])  # fmt: skip
def test_eagle_drops_one_unit_of_the_keys_inside_blocks(published: tuple[int, ...], hit: int, field: str) -> None:
    layout = Layout(GROUPS, 20, 4, "align", True, hash_unit=2, eagle_drop=True, eagle_unit=2, eagle=frozenset({1}))
    context = context_of(layout, r0=life_of("r0", 20))
    blocks = {5 + index: key(1, depth) for index, depth in enumerate(published)}
    planned = plan(context, PlannedRow("r0", hit, 4, 0, True, hit), tables={"r0": R0}, published=blocks)
    violation = HitValidity()._block_given_up(context, planned, planned.rows[0])
    assert field_of(violation) == field


@pytest.mark.parametrize(("published", "field"), [((12, 16), ""), ((12,), "eagle-block")])
def test_eagle_drops_the_block_after_the_hit_from_a_window(published: tuple[int, ...], field: str) -> None:
    groups = (*GROUPS, Group("attention", 4, window=5))
    layout = Layout(groups, 20, 4, "align", True, eagle_drop=True, eagle=frozenset({2}))
    context = context_of(layout, r0=life_of("r0", 20))
    blocks = {5 + index: key(2, depth) for index, depth in enumerate(published)}
    tables = {"r0": (*R0, (0, 0, 9))}
    planned = plan(context, PlannedRow("r0", 12, 4, 0, True, 12), tables=tables, published=blocks)
    violation = HitValidity()._block_given_up(context, planned, planned.rows[0])
    assert field_of(violation) == field


def test_a_load_that_completes_hits_brings_the_block_that_eagle_drops_from_a_window() -> None:
    groups = (*GROUPS, Group("attention", 4, window=5))
    layout = Layout(groups, 20, 4, "align", True, eagle_drop=True, eagle=frozenset({2}), loads_complete_hits=True)
    context = context_of(layout, r0=life_of("r0", 20))
    row = PlannedRow("r0", 16, 4, 0, True, 12, external=4)
    planned = plan(context, row, tables={"r0": (*R0, (0, 0, 8, 9))}, published={})
    assert HitValidity()._block_given_up(context, planned, row) is None


@pytest.mark.parametrize(("alias", "field"), [
    (key(1, 6), ""), (key(1, 6, "b"), "alias"), (key(1, 4), "alias"), (key(0, 6), "alias"), (key(1, 10), "alias"),
])  # fmt: skip
def test_a_further_key_of_a_block_names_a_beginning_of_its_content(alias: Key, field: str) -> None:
    """Block 6 holds positions 4 to 7 of r0: depth 6 is a beginning of that, depth 4 is another block."""
    context = context_of(FINE, r0=life_of("r0", 20, settled=10))
    context.reference.note_published({6: key(1, 8)}, 0)
    view = msgspec.structs.replace(view_of(FINE, {"r0": R0}, {6: key(1, 8)}), aliases={6: [alias]})
    assert field_of(Hash().on_view(context, view)) == field


@pytest.mark.parametrize(("row", "delivered", "field"), [
    (PlannedRow("r1", 8, 12, 0, True, 8), 0, "prompt"), (PlannedRow("r1", 8, 12, 0, True, 8), 1, ""),
    (PlannedRow("r1", 8, 12, 0, True, 0, external=8), 0, "prompt"), (PlannedRow("r1", 0, 20, 0, True, 0), 0, ""),
    (PlannedRow("r1", 0, 20, 0, True, 0), 1, ""),
])  # fmt: skip
def test_a_prompt_with_log_probabilities_is_not_skipped(row: PlannedRow, delivered: int, field: str) -> None:
    """Neither by a hit nor by a load; and no hit is too short for it."""
    life = Life("r1", (("a", 20 - delivered),), 6, prompt_logprobs=True)
    life.delivered = delivered
    context = context_of(ALIGN, r1=life)
    planned = plan(context, row, tables={"r1": R0}, published=HIT_OF_8)
    violation = HitValidity().on_planned(context, planned)
    assert (violation.field if violation else "") == field


@pytest.mark.parametrize(("wanted_from", "field"), [(0, "prompt"), (7, "prompt"), (8, ""), (19, "")])
def test_what_comes_before_the_wanted_log_probabilities_may_be_skipped(wanted_from: int, field: str) -> None:
    life = Life("r1", (("a", 20),), 6, prompt_logprobs=True, logprobs_from=wanted_from)
    row = PlannedRow("r1", 8, 12, 0, True, 8)
    context = context_of(ALIGN, r1=life)
    violation = HitValidity().on_planned(context, plan(context, row, tables={"r1": R0}, published=HIT_OF_8))
    assert (violation.field if violation else "") == field
