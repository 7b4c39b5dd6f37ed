"""The cause of a wrong number: what tags and ledger tell about the bytes that were read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .....reference.numeric.tiny_model import ATTENTION_DIM, ITEM_BYTES, KV_HEADS, TinyModel
from .....reference.request import Life
from .....targets.base.numbers import LayerOutput
from .....targets.base.observe import Access, Numeric, SlotRead, SlotWrite, StateRead
from ..base import Context, first_difference, name_tag


def model_of(numeric: Numeric) -> TinyModel:
    """Return the model that a numeric target executes. Raises TypeError for one without a float64 reference."""
    if not isinstance(numeric.model, TinyModel):
        raise TypeError(f"Numeric.model is a {type(numeric.model).__name__}, expected a TinyModel")
    return numeric.model


def explain(context: Context, numeric: Numeric, output: LayerOutput, life: Life) -> tuple[str, int]:
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
    return "the tags of everything that it read are right", -1


def _of_state(context: Context, read: StateRead, life: Life) -> Iterator[tuple[str, int]]:
    depth = life.settled
    history = context.reference.ledger.describe(read.block, read.layer)
    if read.temporal is not None and read.temporal != life.truth.tag(depth):
        yield f"it resumes from {name_tag(context, read.temporal)} in block {read.block}, {history}", read.block
    if read.window is not None and read.window != life.truth.window(depth, context.layout.conv_width):
        yield f"its convolution window in block {read.block} belongs to another prefix, {history}", read.block


def _of_slots(context: Context, numeric: Numeric, read: SlotRead, life: Life) -> Iterator[tuple[str, int]]:
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
        seen = name_tag(context, read.tags[position], "KV") if position < len(read.tags) else "nothing"
        yield f"for position {first + position} it reads {seen} in block {block}", block


def _written_now(accesses: Sequence[Access], read: SlotRead) -> dict[int, int]:
    """Return the slots that this forward stores before its attention reads: block -> bit mask."""
    masks: dict[int, int] = {}
    for access in accesses:
        if isinstance(access, SlotWrite) and (access.group, access.layer) == (read.group, read.layer):
            for block, slot in zip(access.blocks, access.slots, strict=True):
                masks[block] = masks.get(block, 0) | 1 << slot
    return masks


def _stale_bytes(context: Context, model: TinyModel, block: int, slots: int) -> str:
    facts = context.reference.ledger.facts[block]
    count = slots * 2 * KV_HEADS * ATTENTION_DIM * ITEM_BYTES[model.kv_dtype]
    before = "which had no earlier owner"
    if facts.previous_owner:
        kind = context.layout.groups[facts.previous_group].kind
        dtype = model.kv_dtype if kind == "attention" else model.state_dtype
        before = f"owned by {facts.previous_owner} ({kind}, {dtype}) until {facts.owner} got it in step {facts.step}"
    return f"it reads {count} bytes of block {block}, {before}, never zeroed"
