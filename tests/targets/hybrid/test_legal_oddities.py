"""Legal behaviour that looks like a bug: it occurs in the embedded target, and no oracle fires.

One test for each entry of the list. Each proves first that the situation really occurred.
"""

from itertools import pairwise
from typing import Any

from support import ATTENTION, MAMBA, Watching, arrive, make_trace, steps, watch

from hybridfuzz.reference.prefix_cache import is_valid_hit
from hybridfuzz.reference.tokens import Truth
from hybridfuzz.targets.base.observe import Copied, Forward, Planned, StateContent, StateWrite, Zeroed
from hybridfuzz.targets.base.trace import Group, Step, Trace

DRAFTS: dict[str, Any] = {"num_speculative_tokens": 3}


def silent(trace: Trace) -> Watching:
    watched = watch(trace)
    assert watched.outcome.violation is None, watched.outcome.violation.message
    return watched


def admissions(watched: Watching) -> list[Any]:
    return [row for plan in watched.of(Planned) for row in plan.rows if row.admitted]


def tables(watched: Watching, name: str, group: int) -> list[tuple[int, ...]]:
    """Return the request's columns in each plan with it."""
    plans = [plan for plan in watched.of(Planned) if name in plan.view.tables]
    return [tuple(plan.view.tables[name][group]) for plan in plans]


def test_boundary_state_is_copied_backward() -> None:
    """Mode align with drafts copies a state, after the step, to the column left of the running one."""
    watched = silent(make_trace(arrive("r0", 5, new=20), *steps(9, drafts=3, right=3), **DRAFTS))
    ran, backward = set(), []
    for one in watched.records:
        if isinstance(one, Forward):
            ran.add(one.step)
        elif isinstance(one, Copied) and one.step in ran and one.destination_column < one.source_column:
            backward.append(one)
    assert len(backward) > 1
    assert watched.outcome.reached["state copied back to its boundary block"]


def test_null_blocks_stand_inside_tables() -> None:
    """Mode align keeps no skipped state: earlier columns are null in mamba groups, not in attention groups."""
    watched = silent(make_trace(arrive("r0", 40, new=9), *steps(12)))
    inside = [table for table in tables(watched, "r0", 0) if 0 in table and any(table)]
    assert inside
    assert inside[0].index(0) < max(index for index, block in enumerate(inside[0]) if block)
    assert not any(0 in table for table in tables(watched, "r0", 1))


def test_a_given_back_column_becomes_null_while_the_request_runs() -> None:
    watched = silent(make_trace(arrive("r0", 16, new=20), *steps(22)))
    states = tables(watched, "r0", 0)
    turned = [
        (before, after)
        for before, after in pairwise(states)
        if any(old and not new for old, new in zip(before, after, strict=False))
    ]
    assert turned


def test_columns_are_over_allocated_after_rejected_drafts() -> None:
    """Blocks for drafts are kept when the drafts are rejected."""
    watched = silent(make_trace(arrive("r0", 6, new=9), *steps(9, drafts=3, right=0), **DRAFTS))
    settled = 0
    surplus = []
    for plan in watched.of(Planned):
        for row in plan.rows:
            settled = row.start
            columns = len(plan.view.tables["r0"][1])
            surplus.append(columns > -(-(settled + 1) // 8))
    assert any(surplus)
    assert watched.outcome.reached["draft rejected"]


def test_eagle_drops_a_block_that_was_found() -> None:
    """With EAGLE the same trace hits one block less, which is recomputed."""
    events = (arrive("r0", 30, new=2), *steps(5), arrive("r1", 30, new=2), *steps(5))
    eagle = {**DRAFTS, "groups": (ATTENTION,)}
    plain = silent(make_trace(*events, **eagle))
    dropped = silent(make_trace(*events, **eagle, eagle_block_drop=True))
    assert [row.hit for row in admissions(plain)] == [0, 24]
    assert [row.hit for row in admissions(dropped)] == [0, 16]
    plan = next(plan for plan in dropped.of(Planned) if any(row.hit for row in plan.rows))
    published = set(plan.view.published.values())
    assert is_valid_hit(dropped.target.layout, published, Truth([("d", 30)]).tags, 24)


def test_a_hit_is_deferred_while_its_state_is_being_written() -> None:
    """The second request waits for one step, with blocks, rows and budget to spare."""
    watched = silent(make_trace(arrive("r0", 20, new=9), arrive("r1", 20, new=2), *steps(6)))
    first, second = watched.of(Planned)[:2]
    assert [row.name for row in first.rows] == ["r0"]
    assert list(first.view.waiting) == ["r1"]
    assert len(first.view.free) > 20
    assert first.budget - first.rows[0].num_tokens >= 20
    [r1] = [row for row in second.rows if row.name == "r1"]
    assert r1.hit == 16


def test_last_partial_column_is_off_the_grid_until_decoding_completes_it() -> None:
    """Its state is written but not published until decoding reaches the boundary."""
    watched = silent(make_trace(arrive("r0", 13, new=9), *steps(12)))
    writes = [
        access
        for forward in watched.of(Forward)
        for access in forward.accesses
        if isinstance(access, StateWrite) and access.depth == 13
    ]
    [partial] = writes
    assert partial.column == 1
    states = {0: [], 1: []}  # type: dict[int, list[int]]
    for plan in watched.of(Planned):
        [row] = plan.rows or [None]
        if row:
            published = [key.depth for key in plan.view.published.values() if key.group == 0]
            states[row.start + row.num_tokens >= 16] += [max(published, default=0)]
    assert max(states[0]) <= 8
    assert 16 in states[1]


def test_freed_blocks_stay_reachable_and_are_hit_again() -> None:
    """The block is in the free queue with a key; the hit removes it from the queue."""
    watched = silent(make_trace(arrive("r0", 20), *steps(5), arrive("r1", 20), *steps(5)))
    hit = next(plan for plan in watched.of(Planned) if any(row.hit for row in plan.rows))
    before = next(plan for plan in reversed(watched.of(Planned)) if plan.step == hit.step - 1)
    revived = [block for block in hit.view.tables["r1"][0] if block in before.view.published]
    assert revived
    assert set(revived) <= set(before.view.free)
    assert all(before.view.references[block] == 0 for block in revived)
    assert all(block not in hit.view.free for block in revived)


def test_state_blocks_are_not_zeroed_attention_blocks_are() -> None:
    """A prefill overwrites a whole state, so the block is not zeroed before."""
    watched = silent(
        make_trace(
            arrive("r0", 30, new=9), *steps(12), arrive("r1", ("e", 30), new=9), *steps(9),
            num_blocks=9, max_model_len=40,
        )
    )  # fmt: skip
    zeroed = {(one.step, block) for one in watched.of(Zeroed) for block in one.blocks}
    kinds = {0: 0, 1: 0}
    for plan in watched.of(Planned):
        for row in plan.rows:
            for group, columns in enumerate(plan.view.tables[row.name]):
                kinds[group] += sum((plan.step, block) in zeroed for block in columns if block)
    assert kinds[0] == 0
    assert kinds[1] > 4
    assert watched.outcome.reached["block reused by another kind of group"]


def test_two_blocks_may_have_one_key() -> None:
    """Two requests that compute the same prefix side by side publish it twice."""
    events = (arrive("r0", 20), arrive("r1", 20), Step(chunks={"r0": 5, "r1": 5}), *steps(5))
    watched = silent(make_trace(*events))
    assert any(len(set(plan.view.published.values())) < len(plan.view.published) for plan in watched.of(Planned))


def test_groups_of_different_block_size_hit_on_the_common_grid_only() -> None:
    """40 tokens of attention and a state at 40 are cached; with block sizes 16 and 8 only 32 fits both."""
    groups = (Group("mamba", 8), Group("attention", 16))
    again = make_trace(
        arrive("r0", 45), *steps(5), arrive("r1", 45), *steps(5), groups=groups,
        mamba_cache_mode="all",
    )  # fmt: skip
    watched = silent(again)
    assert [row.hit for row in admissions(watched)] == [0, 32]


def test_a_state_of_a_freed_block_can_still_be_read() -> None:
    """A published block keeps its content although it has no owner."""
    watched = silent(make_trace(arrive("r0", 20), *steps(5), groups=(MAMBA,)))
    _, _, view = watched.history[-1]
    [(block, key)] = [(block, key) for block, key in view.published.items() if key.depth == 16]
    assert block in view.free
    content = watched.target.read(0, 0, block)
    assert isinstance(content, StateContent)
    assert content.temporal == key.tag
