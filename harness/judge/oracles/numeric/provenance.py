"""The cause of a wrong number: what tags and ledger tell about the bytes that were read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .....reference.numeric.tiny_model import ATTENTION_DIM, ITEM_BYTES, KV_HEADS, TinyModel
from .....reference.request import Life
from .....reference.tokens import first_difference
from .....targets.base.numbers import LayerOutput
from .....targets.base.observe import Access, Numeric, SlotRead, SlotWrite, StateRead
from ...verdict import Because, Request, Value
from ..base import Context, found


def model_of(numeric: Numeric) -> TinyModel:
    """Return the model that a numeric target executes. Raises TypeError for one without a float64 reference."""
    if not isinstance(numeric.model, TinyModel):
        raise TypeError(f"Numeric.model is a {type(numeric.model).__name__}, expected a TinyModel")
    return numeric.model


def explain(context: Context, numeric: Numeric, output: LayerOutput, life: Life) -> tuple[Because, int]:
    """Return one clause about the first wrong read of a layer, and its block; -1 if all tags are right."""
    row = numeric.rows[output.row].row
    reads = [
        access
        for access in numeric.accesses
        if isinstance(access, StateRead | SlotRead)
        and (access.row, access.group, access.layer) == (row, output.group, output.layer)
    ]
    for read in reads:
        clauses = (
            _of_slots(context, numeric, read, life) if isinstance(read, SlotRead) else _of_state(context, read, life)
        )
        for clause, block in clauses:
            return clause, block
    return Because("because-unknown"), -1


def _of_state(context: Context, read: StateRead, life: Life) -> Iterator[tuple[Because, int]]:
    depth = life.settled
    where: dict[str, Value] = {"block": read.block, "past": context.past(read.block, read.layer)}
    if read.temporal is not None and read.temporal != life.truth.tag(depth):
        yield Because("because-state", {**where, "found": found(context, read.temporal)}), read.block
    if read.window is not None and read.window != life.truth.window(depth, context.layout.conv_width):
        yield Because("because-window", where), read.block


def _of_slots(context: Context, numeric: Numeric, read: SlotRead, life: Life) -> Iterator[tuple[Because, int]]:
    size = context.layout.groups[read.group].block_size
    now = _written_now(numeric.accesses, read)
    for block in read.blocks:
        cell = context.reference.ledger.cell(block, read.layer)
        if cell is None or cell.zeroed:
            continue
        stale = size - (cell.slots | now.get(block, 0)).bit_count()
        if stale:
            yield _stale_bytes(context, model_of(numeric), block, stale), block
    first = read.first_column * size
    wanted = life.truth.slots(first, first + len(read.tags))
    if list(read.tags) != wanted:
        position = first_difference(wanted, read.tags)
        block = read.blocks[position // size] if position // size < len(read.blocks) else -1
        seen = found(context, read.tags[position], "KV") if position < len(read.tags) else None
        yield Because("because-slot", {"position": first + position, "found": seen, "block": block}), block


def _written_now(accesses: Sequence[Access], read: SlotRead) -> dict[int, int]:
    """Return the slots that this forward stores before its attention reads: block -> bit mask."""
    masks: dict[int, int] = {}
    for access in accesses:
        if isinstance(access, SlotWrite) and (access.group, access.layer) == (read.group, read.layer):
            for block, slot in zip(access.blocks, access.slots, strict=True):
                masks[block] = masks.get(block, 0) | 1 << slot
    return masks


def _stale_bytes(context: Context, model: TinyModel, block: int, slots: int) -> Because:
    facts = context.reference.ledger.facts[block]
    count = slots * 2 * KV_HEADS * ATTENTION_DIM * ITEM_BYTES[model.kv_dtype]
    if not facts.previous_owner:
        return Because("because-never-owned", {"bytes": count, "block": block})
    kind = context.layout.groups[facts.previous_group].kind
    return Because(
        "because-stale",
        {
            "bytes": count,
            "block": block,
            "previous": Request(facts.previous_owner),
            "previous_kind": kind,
            "dtype": str(model.kv_dtype if kind == "attention" else model.state_dtype),
            "owner": Request(facts.owner),
            "since": facts.step,
        },
    )
