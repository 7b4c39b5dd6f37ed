"""M7 and M9 on observations made by hand: what was not observed, and blocks that stay for good reason."""

from dataclasses import replace

import pytest
from handmade import context_of, enter, life_of, plan, view_of

from hybridfuzz.harness.judge.oracles.block_accounting import Capacity, Leak, Partition
from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.prefix_cache import Key
from hybridfuzz.targets.base.observe import Planned, PlannedRow

LAYOUT = Layout((Group("attention", 8),), 12, 4, "align", True)
THREE_BLOCKS = {"r0": ((1, 2, 3),)}


@pytest.mark.parametrize(("estimated", "taken", "field"), [(-1, 3, ""), (0, 0, ""), (0, 1, "blocks"), (3, 2, "blocks")])
def test_an_estimate_that_was_not_observed_is_not_judged(estimated: int, taken: int, field: str) -> None:
    """And what stands behind it in the same plan is."""
    context = context_of(LAYOUT, r0=life_of("r0", 20), r1=life_of("r1", 20))
    rows = (PlannedRow("r0", 0, 9, 0, True, 0), PlannedRow("r1", 0, 9, 0, True, 0, estimated, taken))
    oracle = Capacity()
    violation = oracle.on_planned(context, plan(context, *rows))
    assert (violation.field if violation else "") == field
    assert oracle.exercised == {"M7": int(estimated >= 0)}


def test_blocks_for_rejected_drafts_stay_until_the_next_admission() -> None:
    """Planned far ahead and thrown back: the columns are kept, and are no leak. Admitted again, they would be."""
    context = context_of(LAYOUT, r0=life_of("r0", 20))
    oracle = Leak()
    far = plan(context, PlannedRow("r0", 0, 20, 0, True, 0), tables=THREE_BLOCKS)
    assert oracle.on_planned(context, far) is None
    enter(context, far)
    back = plan(context, PlannedRow("r0", 2, 1, 0, False, 0), step=1, tables=THREE_BLOCKS)
    assert oracle.on_planned(context, back) is None
    again = plan(context, PlannedRow("r0", 0, 3, 0, True, 0), step=2, tables=THREE_BLOCKS)
    violation = oracle.on_planned(context, again)
    assert violation is not None
    assert (violation.field, violation.expected, violation.observed) == ("peak", 1, 3)


@pytest.mark.parametrize(("over", "field"), [(0, "peak"), (4, "peak"), (5, "")])
def test_blocks_beyond_a_step_are_those_that_the_target_declares(over: int, field: str) -> None:
    layout = Layout((Group("attention", 8),), 12, 4, "align", True, overallocation=over)
    context = context_of(layout, r0=life_of("r0", 20))
    planned = plan(context, PlannedRow("r0", 0, 12, 0, True, 0), tables=THREE_BLOCKS)
    violation = Leak().on_planned(context, planned)
    assert (violation.field if violation else "") == field


def test_a_window_begins_at_the_row() -> None:
    """A request that computes its tokens again needs the columns that it had left behind before."""
    life = life_of("r0", 20)
    life.settled = 16
    layout = Layout((Group("attention", 4, window=8),), 12, 4, "none", False)
    planned = plan(context_of(layout, r0=life), PlannedRow("r0", 0, 4, 0, False, 0), tables={"r0": ((3,),)})
    assert Leak().on_planned(context_of(layout, r0=life), planned) is None
    more = plan(context_of(layout, r0=life), PlannedRow("r0", 0, 4, 0, False, 0), tables={"r0": ((3, 4),)})
    assert Leak().on_planned(context_of(layout, r0=life), more) is not None


@pytest.mark.parametrize("chunks", [[(0, 8)], [(0, 5), (5, 2), (7, 1)]])
@pytest.mark.parametrize(("lag", "fields"), [(0, ["peak", "peak"]), (1, ["", "peak"])])
def test_what_is_given_back_in_batches_may_stay_for_the_first_decode(
    lag: int, fields: list[str], chunks: list[tuple[int, int]]
) -> None:
    """A prompt of eight tokens and two decodes, and no column left of the window is given back."""
    layout = Layout((Group("attention", 1, window=4, lag=lag),), 20, 4, "none", False)
    oracle, life, found = Leak(), life_of("r0", 8), []
    for step, (start, count) in enumerate([*chunks, (8, 1), (9, 1)]):
        life.settled = start
        row = PlannedRow("r0", start, count, 0, not start, 0)
        context, columns = context_of(layout, r0=life), tuple(range(1, start + count + 1))
        violation = oracle.on_planned(context, plan(context, row, step=step, tables={"r0": (columns,)}))
        found.append(violation.field if violation else "")
    if lag:
        assert not any(found[: len(chunks)]), "a prefill may keep what it has read"
    assert found[len(chunks) :] == fields


def test_every_list_and_every_peak_counts() -> None:
    """M9 is exercised by each list that was looked at, and by each group of each row."""
    context = context_of(LAYOUT, r0=life_of("r0", 20))
    oracle = Leak()
    oracle.on_planned(context, plan(context, PlannedRow("r0", 0, 20, 0, True, 0), tables=THREE_BLOCKS))
    assert oracle.exercised == {"M9": 1}
    oracle.on_view(context, view_of(LAYOUT, drained={"one": 0, "two": 0}))
    assert oracle.exercised == {"M9": 3}
    oracle.on_idle(context, view_of(LAYOUT, leftovers={"requests": 0}))
    assert oracle.exercised == {"M9": 4}


@pytest.mark.parametrize("cache_owns", [True, False])
def test_a_published_block_waits_in_the_free_queue_or_belongs_to_the_cache(cache_owns: bool) -> None:
    layout = Layout((Group("attention", 8),), 12, 4, "slots", True, cache_owns=cache_owns)
    published, apart = {3: Key(0, 8, 7)}, [block for block in range(1, 12) if block != 3]
    waiting = Partition().on_view(context_of(layout), view_of(layout, published=published))
    owned = Partition().on_view(context_of(layout), view_of(layout, published=published, free=apart))
    assert (waiting is None, owned is None) == (not cache_owns, cache_owns)


def test_a_fault_names_who_holds_the_block() -> None:
    """And no other request; none if it is in no table."""
    context = context_of(LAYOUT)
    tables = {"r0": ((1, 2),), "r1": ((3,),)}
    violation = Partition().on_view(context, view_of(LAYOUT, tables, free=range(3, 12)))
    assert violation is not None
    assert (violation.block, violation.request) == (3, "r1")
    assert violation.message.endswith("held by r1 (step 0)")
    violation = Partition().on_view(context, view_of(LAYOUT, tables, free=range(5, 12)))
    assert violation is not None
    assert (violation.block, violation.request) == (4, "")
    assert "held by" not in violation.message


@pytest.mark.parametrize("cache_owns", [True, False])
def test_what_the_cache_owns_is_not_missing_at_the_end(cache_owns: bool) -> None:
    """A radix tree keeps its blocks when all requests ended; in a free queue they have to be back."""
    layout = Layout((Group("attention", 8),), 12, 4, "slots", True, cache_owns=cache_owns)
    kept = view_of(layout, published={3: Key(0, 8, 7)}, free=[block for block in range(1, 12) if block != 3])
    violation = Leak().on_idle(context_of(layout), kept)
    assert (violation is None) == cache_owns


def test_of_two_pools_the_one_is_named_that_lacks_a_block() -> None:
    """Their sum was told, and a block too many in one hid one that was missing in the other."""
    layout = replace(LAYOUT, state_ids=4)
    assert Leak().on_idle(context_of(layout), view_of(layout)) is None
    violation = Leak().on_idle(context_of(layout), view_of(layout, free=[1, 2, 3, *range(5, 12)]))
    assert violation and violation.sentence.endswith("only 7 of 8 attention blocks are free (step 0)")
    violation = Leak().on_idle(context_of(layout), view_of(layout, free=[1, 2, *range(4, 12), 4]))
    assert violation and violation.sentence.endswith("only 2 of 3 state slots are free (step 0)")


def test_a_block_in_no_list_is_missing_at_the_end() -> None:
    context = context_of(LAYOUT)
    assert Leak().on_idle(context, view_of(LAYOUT)) is None
    violation = Leak().on_idle(context, view_of(LAYOUT, free=range(1, 11)))
    assert violation is not None
    assert (violation.field, violation.expected, violation.observed) == ("blocks", 11, 10)


@pytest.mark.parametrize(
    ("estimated", "hit", "external", "field"),
    [(3, 8, 0, ""), (4, 8, 0, "blocks"), (4, 8, 8, ""), (5, 8, 8, "blocks"), (2, 8, 8, "blocks"), (4, 0, 8, "blocks")],
)
def test_the_state_of_a_hit_is_not_needed_behind_a_load(estimated: int, hit: int, external: int, field: str) -> None:
    """One state group: an admission that takes three blocks may have been estimated with the block of its hit."""
    layout = Layout((Group("mamba", 8), Group("attention", 8)), 12, 4, "align", True)
    context = context_of(layout, r0=life_of("r0", 40))
    row = PlannedRow("r0", hit + external, 0, 0, True, hit, estimated, 3, external)
    violation = Capacity().on_planned(context, Planned(0, (row,), (), 99, view_of(layout)))
    assert (violation.field if violation else "") == field
