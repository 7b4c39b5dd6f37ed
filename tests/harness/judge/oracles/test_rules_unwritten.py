"""S4 and S7 on observations made by hand: which bytes may be relied on, which tokens a model has."""

from dataclasses import replace

import pytest
from handmade import context_of, life_of

from hybridfuzz.harness.judge.oracles.base import Context
from hybridfuzz.harness.judge.oracles.unwritten import Poison, Taint
from hybridfuzz.reference.layout import Group, Layout
from hybridfuzz.targets.base.observe import ForwardRow, SlotRead, StateRead

LAYOUT = Layout((Group("mamba", 4), Group("attention", 4)), 12, 4, "align", True)
NO_STATES = replace(LAYOUT, zeroing=False)


def owning(
    layout: Layout, *, zeroed: bool = False, temporal: bool = False, conv: bool = False, slots: int = 0
) -> Context:
    """r0 was handed block 3 (state), 5 and 6 (attention); this much of 3 and 5 was written; row 1 is padding."""
    context = context_of(layout)
    context.lives = [life_of("r0", 20, settled=6), None]
    ledger = context.reference.ledger
    for block, group in ((3, 0), (5, 1), (6, 1)):
        ledger.hand_out(block, "r0", group, 0)
        if zeroed:
            ledger.zero(block)
    ledger.write_state(3, 0, "r0", 0, temporal, conv)
    written = [slot for slot in range(slots.bit_length()) if slots >> slot & 1]
    ledger.write_slots([5] * len(written), written, 0, "r0", 0)
    return context


@pytest.mark.parametrize(("written", "read", "field"), [
    ("", "temporal", "temporal"), ("conv", "temporal", "temporal"), ("temporal", "temporal", ""),
    ("", "conv", "conv"), ("temporal", "conv", "conv"), ("conv", "conv", ""), ("", "neither", ""),
    ("zeroed", "temporal", ""), ("zeroed", "conv", ""),
])  # fmt: skip
def test_each_part_of_a_state_is_written_before_it_is_read(written: str, read: str, field: str) -> None:
    context, oracle = owning(LAYOUT, **({written: True} if written else {})), Taint()
    parts = (7 if read == "temporal" else None, (7, 7, 7) if read == "conv" else None)
    violation = oracle.on_state_read(context, StateRead(0, 0, 0, 0, 3, *parts))
    assert (violation.field if violation else "") == field
    assert oracle.exercised == {"S4": 1}


@pytest.mark.parametrize(("layout", "slots", "tags", "field"), [
    (LAYOUT, 0b1111, 4, ""), (LAYOUT, 0b1111, 2, ""), (LAYOUT, 0b0011, 2, "page-tail"), (NO_STATES, 0b0011, 2, ""),
    (NO_STATES, 0b0011, 3, "slot"), (LAYOUT, 0b0011, 3, "slot"), (NO_STATES, 0b0101, 2, "slot"),
    (NO_STATES, 0b0111, 4, "slot"), (NO_STATES, 0, 0, ""), (LAYOUT, 0, 0, ""), (LAYOUT, 0b1111, 5, "slot"),
    (NO_STATES, 0b1111, 5, "slot"),
])  # fmt: skip
def test_attention_reads_slots_that_were_written(layout: Layout, slots: int, tags: int, field: str) -> None:
    """Those of its context, and where states share the pool the rest of the page; no page behind the context."""
    read, oracle = SlotRead(0, 1, 0, (5, 6), (7,) * tags), Taint()
    violation = oracle.on_slot_read(owning(layout, slots=slots), read)
    assert (violation.field if violation else "") == field
    assert oracle.exercised == {"S4": -(-tags // 4)}


def test_a_zeroed_page_and_an_unallocated_one_are_skipped_and_the_next_is_checked() -> None:
    """Block 9 was never handed out (a connector's, say), block 5 is zeroed, block 6 is neither written nor zeroed."""
    context = owning(LAYOUT)
    context.reference.ledger.zero(5)
    violation = Taint().on_slot_read(context, SlotRead(0, 1, 0, (9, 5, 6), (7,) * 12))
    assert violation is not None
    assert (violation.field, violation.block) == ("slot", 6)
    context.reference.ledger.zero(6)
    assert Taint().on_slot_read(context, SlotRead(0, 1, 0, (9, 5, 6), (7,) * 12)) is None


def test_what_padding_rows_and_unknown_blocks_hold_is_not_judged() -> None:
    context, oracle = owning(LAYOUT), Taint()
    assert oracle.on_state_read(context, StateRead(1, 0, 0, 0, 3, 7, None)) is None
    assert oracle.on_slot_read(context, SlotRead(1, 1, 0, (5,), (7,))) is None
    assert oracle.on_state_read(context, StateRead(0, 0, 0, 0, 9, 7, None)) is None
    assert oracle.exercised == {"S4": 0}


@pytest.mark.parametrize(("sampled", "silent"), [
    ((), True), ((2,), True), ((127, 2), True), ((1,), False), ((128,), False), ((5, 0), False), ((-1,), False),
])  # fmt: skip
def test_a_sound_hidden_state_yields_tokens_of_the_model(sampled: tuple[int, ...], silent: bool) -> None:
    oracle = Poison()
    violation = oracle.on_row(context_of(LAYOUT), ForwardRow("r0", 0, (5,), 0, sampled), life_of("r0", 1))
    assert (violation is None) == silent
    assert oracle.exercised == {"S7": len(sampled)}


@pytest.mark.parametrize(("position", "structured", "silent"), [(8, 1, True), (8, 0, False), (7, 1, False)])
def test_behind_the_end_of_a_structured_answer_nothing_is_sampled_by_its_grammar(
    position: int, structured: int, silent: bool
) -> None:
    """The mask of a step in flight behind a stop token is that of another place; nobody reads what it lets through."""
    life = life_of("r0", 1)
    life.structured = structured
    assert life.total_length == 9
    row = ForwardRow("r0", position, (5,), 0, (1,))
    assert (Poison().on_row(context_of(LAYOUT), row, life) is None) == silent
