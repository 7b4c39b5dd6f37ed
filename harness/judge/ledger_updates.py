"""Applies device work to the reference's ledger, once the oracles have accepted it."""

from __future__ import annotations

from ...reference.ledger import Ledger
from ...targets.base.observe import Copied, Loaded, Record, SlotWrite, StateWrite, Zeroed
from .oracles.base import Context

MOVES = frozenset({Zeroed, Copied, Loaded})
"""Record types that change the ledger as a whole; stores of kernels change it one by one."""


def take_over(ledger: Ledger, record: Record) -> None:
    """Apply zeroing, a copy or a load; ignore other records."""
    if isinstance(record, Zeroed):
        for block in record.blocks:
            ledger.zero(block)
    elif isinstance(record, Copied) and record.slots:
        _fill(ledger, record.destination, record)
    elif isinstance(record, Copied):
        source = record.source if record.source_column >= 0 else None
        ledger.move(source, record.destination, record.layer, record.request, record.step, record.temporal, record.conv)
    elif isinstance(record, Loaded):
        if record.slots:
            _fill(ledger, record.block, record)
        else:
            ledger.write_state(record.block, record.layer, record.request, record.step, record.temporal, record.conv)


def _fill(ledger: Ledger, block: int, record: Copied | Loaded) -> None:
    """Mark the first `record.slots` slots of a block as written."""
    slots = range(record.slots)
    ledger.write_slots([block] * len(slots), slots, record.layer, record.request, record.step)


def take_over_state(context: Context, write: StateWrite) -> None:
    """Apply a kernel's store of a state."""
    ledger, temporal, conv = context.reference.ledger, write.temporal is not None, write.window is not None
    ledger.write_state(write.block, write.layer, context.names[write.row], context.step, temporal, conv)


def take_over_slots(context: Context, write: SlotWrite) -> None:
    """Apply a kernel's store of keys and values."""
    ledger = context.reference.ledger
    ledger.write_slots(write.blocks, write.slots, write.layer, context.names[write.row], context.step)
