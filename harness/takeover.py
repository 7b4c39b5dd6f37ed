"""How the reference's ledger takes over what the device did, once the oracles are content with it."""

from __future__ import annotations

from ..reference.ledger import Ledger
from ..targets.base.observe import Access, Copied, Loaded, Record, SlotWrite, StateWrite, Zeroed

MOVES = frozenset({Zeroed, Copied, Loaded})
"""Records that concern the ledger."""
WRITES = frozenset({StateWrite, SlotWrite})
"""Accesses that do."""


def take_over(ledger: Ledger, record: Record) -> None:
    """Zeroing, copies and loads; other records leave the ledger alone."""
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
    """The first slots of a block came from elsewhere."""
    slots = range(record.slots)
    ledger.write_slots([block] * len(slots), slots, record.layer, record.request, record.step)


def take_over_write(ledger: Ledger, access: Access, who: str, step: int) -> None:
    """One write of a kernel; reads leave the ledger alone."""
    if isinstance(access, StateWrite):
        temporal, conv = access.temporal is not None, access.window is not None
        ledger.write_state(access.block, access.layer, who, step, temporal, conv)
    elif isinstance(access, SlotWrite):
        ledger.write_slots(access.blocks, access.slots, access.layer, who, step)
