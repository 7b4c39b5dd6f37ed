"""M3, M4 and M5 on hand-made observations: attention reads, scratch blocks that moved, sinks, writes to own keys."""

from typing import Any

import msgspec
import pytest
from handmade import context_of, enter, life_of, plan

from hybridfuzz.harness.judge.oracles.base import ACCESS_HOOKS, RECORD_HOOKS, Context
from hybridfuzz.harness.judge.oracles.device_accesses import DeadRows, TableMirror
from hybridfuzz.harness.judge.oracles.writers import Writer
from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.reference.prefix_cache import Key
from hybridfuzz.reference.tokens import Truth
from hybridfuzz.targets.base.observe import (
    Access,
    Copied,
    Forward,
    ForwardRow,
    Loaded,
    PlannedRow,
    SlotRead,
    SlotWrite,
    StateRead,
    StateWrite,
)

LAYOUT = Layout((Group("mamba", 4), Group("attention", 4)), 12, 4, "align", True)
TABLE = ((1, 0, 2, 3), (4, 5, 6))
"""Of r0: block 3 is scratch that stood in column 1 before. Blocks 1 and 4 are shared with r1."""
SHARED = ((1,), (4,))


def entered(layout: Layout = LAYOUT, **published: Any) -> Context:
    """r0 in row 0, r1 in row 1, a padding row; r0 has computed ten tokens."""
    context = context_of(layout, r0=life_of("r0", 20, settled=10), r1=life_of("r1", 20))
    rows = [PlannedRow(name, 0, 1, 0, False, 0) for name in ("r0", "r1")]
    enter(context, plan(context, *rows, tables={"r0": TABLE, "r1": SHARED}, **published))
    for columns in TABLE:
        for block in columns:
            assert not block or context.reference.ledger.facts[block]
    context.set_batch_rows(["r0", "r1", None])
    return context


def verdict(oracle: TableMirror | DeadRows | Writer, context: Context, access: Access | Copied | Loaded) -> str:
    violation = getattr(oracle, (ACCESS_HOOKS | RECORD_HOOKS)[type(access)])(context, access)
    return violation.field if violation else ""


def slot_write(row: int, position: int, *blocks: int) -> SlotWrite:
    slots = [(position + offset) % 4 for offset in range(len(blocks))]
    return SlotWrite(row, 1, 0, position, blocks, slots, (7,) * len(blocks))


@pytest.mark.parametrize(("blocks", "first", "field"), [
    ((4, 5, 6), 0, ""), ((4, 5), 0, ""), ((5, 6), 1, ""), ((4, 6), 0, "column"), ((4, 5, 7), 0, "column"),
    ((5, 6), 0, "column"), ((4, 5, 6, 7), 0, "column"), ((4, 5, 6, 6), 0, "column"), ((6, 6), 2, "column"),
])  # fmt: skip
def test_attention_reads_the_columns_of_the_scheduler(blocks: tuple[int, ...], first: int, field: str) -> None:
    """From the first column that it names on, none of them beyond the table."""
    oracle = TableMirror()
    assert verdict(oracle, entered(), SlotRead(0, 1, 0, blocks, (7,) * 12, first)) == field
    assert oracle.exercised["M3"]


@pytest.mark.parametrize(("position", "blocks", "field"), [
    (3, (4, 5, 5), ""), (11, (6,), ""), (3, (4, 4), "column"), (4, (4,), "column"), (11, (6, 6), "column"),
    (12, (7,), "column"), (3, (), ""),
])  # fmt: skip
def test_attention_writes_the_column_of_each_position(position: int, blocks: tuple[int, ...], field: str) -> None:
    oracle = TableMirror()
    assert verdict(oracle, entered(), slot_write(0, position, *blocks)) == field
    assert oracle.exercised == {"M3": 1}


def test_the_column_that_differs_is_named() -> None:
    violation = TableMirror().on_slot_write(entered(), slot_write(0, 3, 4, 4))
    assert violation is not None
    assert (
        "writes block 4 in column 1 of r0's attention group 1, where the scheduler's table holds block 5"
        in violation.message
    )


@pytest.mark.parametrize(("column", "block", "reads", "writes"), [
    (0, 1, "", ""), (2, 2, "", ""), (1, 3, "", "column"), (1, 7, "column", "column"), (2, 3, "column", "column"),
    (1, 0, "", ""), (4, 3, "column", "column"), (9, 3, "column", "column"), (-1, 9, "", ""),
])  # fmt: skip
def test_scratch_that_moved_may_be_read_where_it_was(column: int, block: int, reads: str, writes: str) -> None:
    """Only where the scheduler has nothing now, only if it is still the request's, and never written."""
    context = entered()
    assert verdict(TableMirror(), context, StateRead(0, 0, 0, column, block, 7, None)) == reads
    assert verdict(TableMirror(), context, StateWrite(0, 0, 0, column, block, 9, 7, None)) == writes
    assert verdict(TableMirror(), context, Copied(0, "r0", 0, column, block, 0, 1, 0, True, True)) == reads
    assert verdict(TableMirror(), context, Copied(0, "r0", 0, 0, 1, column, block, 0, True, True)) == writes
    if column >= 0:
        assert verdict(TableMirror(), context, Loaded(0, "r0", 0, 0, column, block, True)) == writes


@pytest.mark.parametrize("access", [
    SlotRead(2, 1, 0, (9,), (7,)), slot_write(2, 0, 9), StateRead(2, 0, 0, 0, 9, 7, None),
    StateWrite(2, 0, 0, 0, 9, 9, 7, None),
])  # fmt: skip
def test_rows_of_no_request_have_no_table(access: Access) -> None:
    oracle = TableMirror()
    assert verdict(oracle, entered(), access) == ""
    assert oracle.exercised == {"M3": 0}


SINKS = Layout((Group("mamba", 4), Group("attention", 4)), 12, 4, "align", True, sinks=frozenset({0, 11}))


@pytest.mark.parametrize("layout", [LAYOUT, SINKS])
@pytest.mark.parametrize("block", [0, 9, 11])
def test_padding_rows_write_to_sinks_alone(layout: Layout, block: int) -> None:
    """A slot mapping may name the null block for "nowhere"; a state has no such word."""
    context = entered(layout)
    state, slot = StateWrite(2, 0, 0, 0, block, 9, 7, None), slot_write(2, 0, block)
    assert verdict(DeadRows(), context, state) == ("" if block in layout.sinks else "dead-write")
    assert verdict(DeadRows(), context, slot) == ("" if block in {0} | layout.sinks else "dead-write")
    # Behind a harmless one the next is still seen.
    assert verdict(DeadRows(), context, slot_write(2, 0, 0, 9)) == "dead-write"
    for access in (StateWrite(0, 0, 0, 0, 9, 9, 7, None), slot_write(0, 0, 9)):
        assert verdict(DeadRows(), context, access) == ""


@pytest.mark.parametrize(("block", "history"), [(0, "the null block"), (9, "never allocated")])
def test_what_a_padding_row_wrote_over_is_named(block: int, history: str) -> None:
    violation = DeadRows().on_state_write(entered(), StateWrite(2, 0, 0, 0, block, 9, 7, None))
    assert violation is not None
    assert f"block {block}, {history}" in violation.message


@pytest.mark.parametrize(("block", "field"), [(9, ""), (6, ""), (10, "dead-write"), (3, "dead-write")])
def test_the_row_of_an_ended_request_writes_to_what_nobody_has_got(block: int, field: str) -> None:
    """It had blocks 9 and 10 and its session has kept block 6; the cache has got block 10."""
    oracle, context = DeadRows(), entered()
    planned = plan(context, step=1, free=[3, 9], tables={"r1": SHARED, "r2": ((), (6,))})
    planned = msgspec.structs.replace(planned, left={"r2": ((9,), (10, 6))})
    oracle.on_planned(context, planned)
    context.step = 1
    assert verdict(oracle, context, slot_write(2, 0, block)) == field
    oracle.on_forward(context, Forward(1, [ForwardRow("r2", 0, [1], 0, [])], []))
    assert verdict(oracle, context, slot_write(2, 0, block)) == "dead-write"


def test_the_row_of_an_ended_request_writes_before_the_next_content_comes() -> None:
    """r0 has got block 9 since: harmless until it is zeroed or written, of each layer."""
    oracle, context = DeadRows(), entered()
    context.reference.ledger.hand_out(9, "r0", 0, 1)
    planned = plan(context, step=1, tables={"r0": ((9,), ()), "r1": SHARED})
    oracle.on_planned(context, msgspec.structs.replace(planned, left={"r2": ((9,), ())}))
    context.step = 1
    assert verdict(oracle, context, StateWrite(2, 0, 0, 0, 9, 9, 7, None)) == ""
    context.reference.ledger.write_state(9, 0, "r0", 1, temporal=True, conv=False)
    assert verdict(oracle, context, StateWrite(2, 0, 0, 0, 9, 9, 7, None)) == "dead-write"
    context.reference.ledger.hand_out(9, "r0", 0, 1)
    context.reference.ledger.zero(9)
    assert verdict(oracle, context, StateWrite(2, 0, 0, 0, 9, 9, 7, None)) == "dead-write"


def test_each_padding_row_counts() -> None:
    oracle = DeadRows()
    oracle.on_forward(entered(), Forward(0, [ForwardRow(None, 0, (), 0, ())] * 3, ()))
    assert oracle.exercised == {"M4": 1}


def test_two_padding_rows_may_share_a_sink() -> None:
    context, oracle = entered(SINKS), Writer()
    context.set_batch_rows(["r0", "r1", None, None])
    assert verdict(oracle, context, StateWrite(2, 0, 0, 0, 11, 9, 7, None)) == ""
    assert verdict(oracle, context, StateWrite(3, 0, 0, 0, 11, 9, 7, None)) == ""
    assert verdict(oracle, context, StateWrite(0, 0, 0, 0, 11, 9, 7, None)) == ""
    assert verdict(oracle, context, StateWrite(1, 0, 0, 0, 11, 9, 7, None)) == "two-writers"


def test_one_writer_is_a_row_and_a_group_in_a_step() -> None:
    """The same row may write a block again, in every layer; the next step may belong to another. Block 7 is in no
    table."""
    context, oracle = entered(), Writer()
    for layer in (0, 1):
        assert verdict(oracle, context, StateWrite(0, 0, layer, 2, 7, 9, 7, None)) == ""
    assert verdict(oracle, context, StateWrite(1, 0, 0, 2, 7, 9, 7, None)) == "two-writers"
    assert verdict(oracle, context, slot_write(0, 8, 7)) == "two-writers"
    context.step = 1
    assert verdict(oracle, context, StateWrite(1, 0, 0, 2, 7, 9, 7, None)) == ""


def key(group: int, depth: int, document: str = "a") -> Key:
    return Key(group, depth, Truth([(document, 20)]).tag(depth))


RIGHT = key(0, 12).tag


@pytest.mark.parametrize(("row", "block", "published", "temporal", "field"), [
    (0, 2, {}, 7, ""),
    (0, 3, {2: key(0, 12)}, 7, ""),
    (0, 2, {2: key(0, 12)}, RIGHT, ""),
    (0, 2, {2: key(0, 12)}, 7, "shared-write"),
    (0, 2, {2: key(0, 12)}, None, "shared-write"),
    (0, 2, {2: key(1, 12)}, RIGHT, "shared-write"),
    (1, 2, {2: key(0, 12)}, RIGHT, "shared-write"),
    (0, 1, {}, 7, "shared-write"),
    (2, 2, {2: key(0, 12)}, 7, ""),
    (2, 0, {}, 7, "null-write"),
])  # fmt: skip
def test_a_state_is_written_to_a_block_of_ones_own(
    row: int, block: int, published: dict[int, Key], temporal: int | None, field: str
) -> None:
    """Unpublished and unshared, or published as the very state that is written; a padding row is M4's business."""
    write = StateWrite(row, 0, 0, 0, block, 12, temporal, None)
    oracle = Writer()
    assert verdict(oracle, entered(published=published), write) == field
    assert oracle.exercised == {"M5": 1}


@pytest.mark.parametrize(("row", "position", "blocks", "published", "field"), [
    (0, 4, (5, 5), {}, ""),
    (0, 4, (5,), {5: key(1, 8)}, ""),
    (0, 6, (5, 5), {5: key(1, 8)}, ""),
    (0, 4, (5,), {5: key(1, 7)}, ""),
    (0, 4, (5,), {5: key(1, 5)}, ""),
    (0, 4, (5,), {5: key(1, 4)}, "shared-write"),
    (0, 4, (5,), {5: key(1, 9)}, "shared-write"),
    (0, 4, (5,), {5: key(1, 8, "b")}, "shared-write"),
    (1, 4, (5,), {5: key(1, 8)}, "shared-write"),
    (0, 3, (4, 5), {}, "shared-write"),
    (0, 7, (5, 6), {6: key(1, 12, "b")}, "shared-write"),
    (0, 6, (5, 5, 6), {6: key(1, 12)}, ""),
    (0, 6, (5, 5, 6), {6: key(1, 12, "b")}, "shared-write"),
    (2, 4, (5,), {5: key(1, 8, "b")}, ""),
    (0, 7, (5, 0), {}, "null-write"),
])  # fmt: skip
def test_slots_are_written_to_a_block_of_ones_own(
    row: int, position: int, blocks: tuple[int, ...], published: dict[int, Key], field: str
) -> None:
    """Unpublished and unshared, or published as a prefix of the writer that ends in this very block."""
    assert verdict(Writer(), entered(published=published), slot_write(row, position, *blocks)) == field


@pytest.mark.parametrize(("request_name", "column", "block", "published", "field"), [
    ("r0", 2, 2, {}, ""),
    ("r0", 2, 2, {2: key(0, 12)}, ""),
    ("r0", 2, 2, {2: key(0, 12, "b")}, "shared-write"),
    ("r1", 2, 2, {2: key(0, 12)}, "shared-write"),
    ("ghost", 2, 2, {2: key(0, 12)}, "shared-write"),
    ("r0", 0, 1, {}, "shared-write"),
    ("r0", -1, 9, {}, ""),
    ("r0", -1, 9, {9: key(0, 8)}, ""),
    ("r0", -1, 9, {9: key(0, 8, "b")}, "shared-write"),
    ("r0", 1, 9, {9: key(0, 8)}, "shared-write"),
    ("r0", 1, 0, {}, "null-write"),
])  # fmt: skip
def test_copies_and_loads_arrive_in_a_block_of_ones_own(
    request_name: str, column: int, block: int, published: dict[int, Key], field: str
) -> None:
    """Or, without a column, in one of the cache that is published as a prefix of the request."""
    context = entered(published=published)
    assert verdict(Writer(), context, Copied(0, request_name, 0, 0, 3, column, block, 0, True, True)) == field
    if column >= 0:
        assert verdict(Writer(), context, Loaded(0, request_name, 0, 0, column, block, True)) == field


def test_a_write_of_an_unplanned_step_needs_no_owner() -> None:
    context = entered()
    context.facts = None
    assert verdict(Writer(), context, StateWrite(0, 0, 0, 0, 1, 12, 7, None)) == ""
    assert verdict(Writer(), context, slot_write(0, 3, 4)) == ""
    assert verdict(Writer(), context, Copied(0, "r0", 0, 0, 3, 0, 1, 0, True, True)) == ""
