"""A campaign as a stream of JSON lines, for dashboards and scripts: {"event": "found", "time": ..., ...}.

Every record but clean traces and most ticks, which would be gigabytes in a night. A continued campaign appends.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from ..events import CampaignEvent, Tick, TraceDone, WorkerState
from ..findings.store import OutputError

TICK_SECONDS = 10.0


class EventLog:
    """Writes each record at once. Raises OutputError. Use as a context manager."""

    def __init__(self, path: Path, *, append: bool = False) -> None:
        self.path = path
        self._ticked = float("-inf")
        try:
            self._file: IO[bytes] = path.open("ab" if append else "wb")
        except OSError as error:
            raise self._error(error) from error

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._file.close()

    def show(self, record: CampaignEvent) -> None:
        """One line."""
        if isinstance(record, WorkerState) or (isinstance(record, TraceDone) and not record.signature):
            return
        if isinstance(record, Tick):
            if not record.summary.seconds or time.monotonic() - self._ticked < TICK_SECONDS:
                return
            self._ticked = time.monotonic()
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(record).__name__).lower()
        line = {"event": name, "time": round(time.time(), 3), **msgspec.to_builtins(record)}
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
        except OSError as error:
            raise self._error(error) from error

    def _error(self, error: OSError) -> OutputError:
        return OutputError(f"cannot write events to {self.path}: {error.strerror}")
