"""A campaign as a stream of JSON lines, for dashboards and scripts: {"event": "found", "time": ..., ...}.

`--events FILE`. Clean traces, the states of workers and most ticks are left out: they would be gigabytes in a night. A
resumed campaign appends.

FILE may be a FIFO. Writing to it never blocks the campaign: lines wait in memory until a reader takes them, and a
reader that leaves, or does not keep up, ends the stream with a warning.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import stat
import time
from pathlib import Path

import msgspec

from ...campaign_events import CampaignEvent, Tick, TraceDone, TracesDone, WorkerState
from ...group.findings.finding_store import OutputError
from .handler import CampaignInfo

TICK_SECONDS = 10.0
PENDING_BYTES_MAX = 1 << 20
"""Bytes that may wait for the reader of a FIFO."""
LAST_SECONDS = 1.0
"""Time that the reader of a FIFO has, at the end, to take what is left."""


def make_handler(options: argparse.Namespace) -> EventStream | None:
    """Return the handler for --events."""
    return EventStream(options.events) if options.events else None


def event_name(event: CampaignEvent) -> str:
    """Return the name of an event in the stream: `CampaignStarted` is "campaign_started"."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()


class EventStream:
    """Writes each event at once."""

    name = "--events"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = -1
        self._is_pipe = False
        self._pending = bytearray()
        self._ticked = float("-inf")

    def start(self, campaign: CampaignInfo) -> None:
        """Open the file. A FIFO without a reader is opened when there is one."""
        try:
            self._is_pipe = self.path.exists() and stat.S_ISFIFO(self.path.stat().st_mode)
            if not self._is_pipe:
                mode = os.O_APPEND | (0 if campaign.resumed else os.O_TRUNC)  # append: others may write to it, too
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | mode, 0o644)
        except OSError as error:
            raise self._error(error) from error

    def handle_event(self, event: CampaignEvent) -> None:
        """Write one line."""
        if isinstance(event, WorkerState | TracesDone) or (isinstance(event, TraceDone) and not event.signature):
            return
        if isinstance(event, Tick):
            if not event.summary.seconds or time.monotonic() - self._ticked < TICK_SECONDS:
                return
            self._ticked = time.monotonic()
        line = {"event": event_name(event), "time": round(time.time(), 3), **msgspec.to_builtins(event)}
        self._pending += msgspec.json.encode(line) + b"\n"
        self._flush()
        if len(self._pending) > PENDING_BYTES_MAX:
            self._pending.clear()
            raise OutputError(f"cannot write events to {self.path}: its reader takes none")

    def _flush(self) -> None:
        """Write as much as fits without waiting."""
        try:
            if self._file < 0:
                self._file = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
            while self._pending:
                del self._pending[: os.write(self._file, self._pending)]
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno == errno.ENXIO and self._is_pipe:  # no reader yet
                return
            raise self._error(error) from error

    def shutdown(self) -> None:
        """Write what is left and close the file."""
        deadline = time.monotonic() + LAST_SECONDS
        try:
            self._flush()
            while self._pending and time.monotonic() < deadline:
                time.sleep(0.01)
                self._flush()
        finally:
            if self._file >= 0:
                os.close(self._file)
        if self._pending:
            raise OutputError(f"cannot write events to {self.path}: its reader did not take the last ones")

    def _error(self, error: OSError) -> OutputError:
        return OutputError(f"cannot write events to {self.path}: {error.strerror}")
