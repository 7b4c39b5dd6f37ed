"""Bounds checks for the indices of a launched batch. A row with one out of range is recorded and skipped.

A kernel would access memory out of bounds; Python would raise for an index that is too large and count a negative one
from the end. Neither reports what the batch contains.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..base.observe import OutOfRange
from .batch_rows import Row
from .compat.engine import ATTENTION, STATES, WINDOW, SglangEngine
from .snapshots import Plan


class Bounds:
    """The sizes in one engine: request rows and their columns, state slots, token slots."""

    def __init__(self, engine: SglangEngine) -> None:
        self.num_rows, self.num_columns = engine.rows.req_to_token.shape
        self.num_slots = engine.states.temporal.shape[1]
        self.num_locations = len(engine.states.keys[0])
        self.num_entries = engine.sizes.ring
        self.num_window_locations = engine.sizes.num_window_pages * engine.sizes.page

    def row(self, index: int, row: Row) -> OutOfRange | None:
        """Return the first index of a row that is out of range, None if there is none."""
        if row.outside:
            return row.outside
        pools = (
            (ATTENTION, (row.locations, row.written), self.num_locations),
            (WINDOW, (row.window_locations, row.window_written), self.num_window_locations),
        )
        ends = [
            (group, "location", end(places), size)
            for group, both, size in pools
            for places in both
            if len(places)
            for end in (min, max)
        ]
        columns = self.num_columns if row.columns is None else min(row.columns, self.num_columns)
        return _first(
            index,
            [
                (STATES, "row", row.pool_row, self.num_rows),
                *([(STATES, "slot", row.slot, self.num_slots)] if row.has_state else ()),
                *([(STATES, "ring entry", row.replay.entries, self.num_entries)] if row.replay else ()),
                (ATTENTION, "position", row.prefix, self.num_columns),
                (ATTENTION, "column", row.prefix + row.num_tokens - 1, columns),
                *ends,
            ],
        )

    def snapshots(self, plan: Plan, num_tokens: int) -> Iterable[OutOfRange]:
        """Return, for each row that leaves a snapshot, the first index out of range: its slot, or a window's input."""
        inputs = plan.metadata.track_conv_indices.tolist() if plan.metadata else [()] * len(plan.rows)
        for (index, _, place, _), taps in zip(plan.rows, inputs, strict=True):
            tokens = [(STATES, "token", tap, num_tokens) for tap in taps]
            # A prefill copies from states of its chunks, a decode from the working slot.
            source = [] if plan.metadata else [(STATES, "slot", plan.working[index], self.num_slots)]
            found = _first(index, [(STATES, "slot", place, self.num_slots), *source, *tokens])
            if found:
                yield found


def _first(index: int, entries: list[tuple[int, str, int, int]]) -> OutOfRange | None:
    """Return the first of (group, kind, index, size) whose index is out of range."""
    for group, what, number, size in entries:
        if not 0 <= number < size:
            return OutOfRange(index, group, what, number, size)
    return None
