"""Builds the marks of a history from records and views, in the order in which they come.

A record (a write, a copy) becomes a mark at once. What only the difference between two views shows (a block was
allocated, published, freed) becomes a mark at the later view.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from ...reference.layout import Layout
from ...reference.prefix_cache import Key
from ...targets.base.observe import (
    Access,
    Copied,
    Delivered,
    Forward,
    Loaded,
    OutOfRange,
    Planned,
    Record,
    SlotRead,
    SlotWrite,
    StateRead,
    StateWrite,
    View,
    Zeroed,
)
from ...targets.base.trace import Event, Fork, Resume, Truncate, tag_of
from ..judge.violation import Violation, wanted_depth
from ..units import plural
from .history import Mark, Moment, RequestStep, What
from .tag_names import Names

UNNAMED = "content that matches no known prefix"


class HistoryBuilder:
    """Marks of one run. Call `begin` before each event, then `take` for each record and `see` for each view."""

    def __init__(self, layout: Layout, events: Iterable[Event]) -> None:
        self.layout = layout
        self.moments: list[Moment] = []
        self.request_steps: dict[tuple[int, str], RequestStep] = {}
        self._marks: dict[Mark, None] = {}
        self._names = Names(events)
        self._view: View | None = None
        self._step = -1
        self._resuming: Resume | None = None

    def begin(self, event: Event) -> None:
        """Start the moment of an event that is about to happen."""
        kind = tag_of(event)
        name = getattr(event, "name", "")
        self.moments.append(Moment(len(self.moments), kind, f"{kind} {name}".strip()))
        self._resuming = event if isinstance(event, Resume) else None

    def edited(self, event: Event) -> None:
        """Note an edit of a parked session (truncation, fork) that was not refused."""
        parked = self._view.parked if self._view else ()
        if isinstance(event, Truncate) and event.name in parked:
            self._names.truncate(event.name, event.length)
        elif isinstance(event, Fork) and event.parent in parked and not self._names.knows(event.name):
            self._names.fork(event.name, event.parent)

    def take(self, record: Record) -> None:
        """Add a record of the current event."""
        moment = self.moments[-1]
        if record.step not in moment.steps:
            self.moments[-1] = msgspec.structs.replace(moment, steps=(*moment.steps, record.step))
        if isinstance(record, Planned):
            self._planned(record)
        elif isinstance(record, Zeroed):
            for block in record.blocks:
                self._mark(record.step, block, "zero")
        elif isinstance(record, Copied):
            self._copied(record)
        elif isinstance(record, Loaded):
            parts = ("state", record.temporal), ("window", record.conv), ("KV", record.slots)
            content = " and ".join(name for name, arrived in parts if arrived)
            self._mark(record.step, record.block, "load", record.request, record.group, record.column, content)
        elif isinstance(record, Forward):
            self._forward(record)
        elif isinstance(record, Delivered):
            for name, tokens in record.outputs:
                self._names.deliver(name, len(tokens))

    def see(self, view: View, missing: Collection[str] = ()) -> None:
        """Add the metadata at this point. `missing`: requests that were admitted without a hit. A block that one of
        them gets may have the key that it had before, published again."""
        before, self._view = self._view, view
        if self.moments:
            there = self.moments[-1]
            self.moments[-1] = msgspec.structs.replace(there, waiting=tuple(view.waiting), free=self._free(view))
        if before is None or before == view:
            return
        if self._resuming and self._resuming.name in set(before.parked) - set(view.parked):
            self._names.resume(self._resuming, self.layout.resume_drops)
        null, step = self.layout.null_block, self._step
        old, new = _places(before, null), _places(view, null)
        entered, left = [place for place in new if place not in old], [place for place in old if place not in new]
        again = {block for _, _, block in entered}
        freed = set(view.free) - set(before.free)
        for block, key in before.published.items():
            if view.published.get(block) != key:
                self._mark(step, block, "drop", group=key.group, content=self._content(key))
        self._released(before, [place for place in left if place[2] in again], freed)
        for name, group, block in entered:
            had = before.published.get(block)
            kept = had is not None and had == view.published.get(block) and name not in missing
            column = list(view.tables[name][group]).index(block)
            self._mark(step, block, "hit" if kept else "alloc", name, group, column)
        for block, key in view.published.items():
            if before.published.get(block) != key:
                self._mark(step, block, "hash", group=key.group, content=self._content(key))
        self._released(before, [place for place in left if place[2] not in again], freed)
        for block in sorted(freed - {place[2] for place in left}):
            self._mark(step, block, "free")

    def _content(self, key: Key) -> str:
        return self._names.key(key.tag, self.layout.lookahead)

    def _free(self, view: View) -> dict[str, int]:
        if not self.layout.num_blocks:
            return {}
        return {name: sum(block in ids for block in view.free) for name, ids in self.layout.pools.items()}

    def _released(self, before: View, places: Sequence[tuple[str, int, int]], freed: set[int]) -> None:
        for name, group, block in places:
            self._mark(self._step, block, "release", name, group, list(before.tables[name][group]).index(block))
        for block in dict.fromkeys(block for _, _, block in places):
            if block in freed:
                self._mark(self._step, block, "free")

    def wanted(self, violation: Violation | None) -> str:
        """Return the state that the violation expected, as marks name it; "" if it expected none."""
        depth = wanted_depth(violation) if violation else -1
        return self._names.of(violation.request, depth) if violation and depth >= 0 else ""

    def marks_until(self, violation: Violation | None) -> Iterator[Mark]:
        """Yield all marks, then one for the violation."""
        yield from self._marks
        if violation and violation.block >= 0 and self.moments:
            moment = len(self.moments) - 1
            yield Mark(moment, violation.step, violation.block, "violation", violation.request, violation.group)

    def _mark(
        self, step: int, block: int, what: What, who: str = "", group: int = -1, column: int = -1, content: str = "",
        other: int = -1,
    ) -> None:  # fmt: skip
        self._marks[Mark(len(self.moments) - 1, step, block, what, who, group, column, content, other)] = None

    def _planned(self, planned: Planned) -> None:
        self._step = planned.step
        moment = len(self.moments) - 1
        for row in planned.rows:
            self.request_steps[planned.step, row.name] = RequestStep(
                moment, planned.step, row.name, row.start, row.num_tokens, row.drafts, row.admitted, row.hit,
                kept=row.kept, external=row.external,
            )  # fmt: skip
        self.see(planned.view, [row.name for row in planned.rows if row.admitted and not row.hit])

    def _copied(self, copied: Copied) -> None:
        parts = [name for name, moved in (("state", copied.temporal), ("window", copied.conv)) if moved]
        parts = parts or [f"KV in the first {plural(copied.slots, 'slot')}"]
        content = " and ".join(parts) + (f", shifted by {copied.shift}" if copied.shift else "")
        source, destination, who, group = copied.source, copied.destination, copied.request, copied.group
        self._mark(copied.step, source, "copied", who, group, copied.source_column, content, destination)
        self._mark(copied.step, destination, "copy", who, group, copied.destination_column, content, source)

    def _forward(self, forward: Forward) -> None:
        self._step = max(self._step, forward.step)
        for row in forward.rows:
            turn = self.request_steps.get((forward.step, row.request or ""))
            if turn:
                self.request_steps[forward.step, turn.request] = msgspec.structs.replace(
                    turn, accepted=len(row.sampled)
                )
        for access in forward.accesses:
            request = forward.rows[access.row].request if access.row < len(forward.rows) else None
            kind = "dummy row" if forward.dummy else "padding row"
            self._access(forward.step, access, request or f"{kind} {access.row}", request is not None)

    def _access(self, step: int, access: Access, who: str, live: bool) -> None:
        write: What = "write" if live else "dead write"
        names = self._names
        if isinstance(access, StateRead | StateWrite):
            what, block = write if isinstance(access, StateWrite) else "read", access.block
            if access.temporal is not None:
                if what == "read":
                    content = names.name(access.temporal)
                else:
                    names.note(access.temporal, f"{who} wrote in step {step}")
                    content = names.name(access.temporal, UNNAMED)
            elif access.window:
                content = f"window of {names.name(access.window[-1])}"
            else:
                return
            self._mark(step, block, what, who, access.group, access.column, content)
            return
        if isinstance(access, OutOfRange):
            return
        size = self.layout.groups[access.group].block_size
        if isinstance(access, SlotRead):
            for index, block in enumerate(access.blocks[: -(-len(access.tags) // size)]):
                part, column = access.tags[index * size : (index + 1) * size], access.first_column + index
                self._mark(step, block, "read", who, access.group, column, names.span(column * size, part))
        elif isinstance(access, SlotWrite):
            self._slot_write(step, access, who, write, size)

    def _slot_write(self, step: int, access: SlotWrite, who: str, what: What, size: int) -> None:
        runs: dict[tuple[int, int], list[int]] = {}
        for offset, (block, tag) in enumerate(zip(access.blocks, access.tags, strict=True)):
            self._names.note(tag, f"{who} wrote in step {step}")
            runs.setdefault((block, (access.position + offset) // size), []).append(tag)
        position = access.position
        for (block, column), tags in runs.items():
            self._mark(step, block, what, who, access.group, column, self._names.span(position, tags))
            position += len(tags)


def _places(view: View, null: int | None) -> dict[tuple[str, int, int], None]:
    """Return every (request, group, block) of the tables, in order."""
    return {
        (name, group, block): None
        for name, table in view.tables.items()
        for group, columns in enumerate(table)
        for block in columns
        if block != null
    }
