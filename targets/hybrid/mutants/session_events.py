"""Broken handlers of session events."""

from __future__ import annotations

from ...base.observe import Record
from ...base.trace import Truncate
from ..session_events import SessionEvents


class TrimReset(SessionEvents):
    """A state that cannot be rolled back is zeroed, while the attention content before it is kept.

    mlx-lm #1253, #1254: a cache of arrays was declared trimmable by resetting it.
    """

    def truncate(self, event: Truncate) -> list[Record]:
        records = super().truncate(event)
        request = self.engine.scheduler.requests.get(event.name)
        if request is None or not self.engine.refused:
            return records
        self.engine.refused = ""
        request.truncate(event.length, event.length)
        for group in self.engine.cache.groups:
            for block in group.tables[event.name] if group.kind == "mamba" else ():
                self.engine.memory.zero(block)
        return records


PARTS: dict[str, type] = {
    "trim-reset": TrimReset,
}
