"""The standard streams of the command line: closed ones, full disks, readers that are gone, and long silences."""

from __future__ import annotations

import errno
import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
SILENT_SECONDS = 3.0
"""A command that prints nothing for so long says that it is at work."""
_CLEAR = b"\r\x1b[K"


class Elapsed:
    """Says on a terminal for how long a command has been at work while it prints nothing.

    `terminal` is the number of the file that is the terminal, `tick` the seconds between two looks at the clock. What
    it says is erased before anything else is printed.
    """

    def __init__(self, terminal: int = 2, clock: Callable[[], float] = time.monotonic, tick: float = 1.0) -> None:
        self._terminal = terminal
        self._clock = clock
        self._tick = tick
        self._last = clock()
        self._is_shown = False
        self._lock = RLock()

    @contextmanager
    def of(self, command: str) -> Iterator[None]:
        """Say it of a command while the block runs, if there is a terminal that can erase a line."""
        ended, began = Event(), self._clock()

        def watch() -> None:
            while not ended.wait(self._tick):
                self.look(command, began)

        if os.isatty(self._terminal) and os.environ.get("TERM", "dumb") != "dumb":
            Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                ended.set()
                self._erase()

    def look(self, command: str, began: float) -> None:
        """Say it if it is time."""
        with self._lock:
            now = self._clock()
            if now - self._last >= SILENT_SECONDS:
                self._put(_CLEAR + f"hybridfuzz {command}: {now - began:.0f} s so far".encode())
                self._is_shown = True

    @contextmanager
    def printing(self) -> Iterator[None]:
        """Make way for what the block prints."""
        with self._lock:
            self._erase()
            yield
            self._last = self._clock()

    def _erase(self) -> None:
        if self._is_shown:
            self._put(_CLEAR)
            self._is_shown = False

    def _put(self, data: bytes) -> None:
        with suppress(OSError):  # the terminal is gone
            os.write(self._terminal, data)


class Output(io.FileIO):
    """A standard stream. What a full disk does not take is dropped, and the first error kept: the work goes on."""

    def __init__(self, number: int, elapsed: Elapsed) -> None:
        super().__init__(number, "w", closefd=False)
        self.elapsed = elapsed
        self.lost: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        """Write, or drop."""
        if self.lost is None:
            try:
                with self.elapsed.printing():
                    return super().write(data)
            except OSError as error:
                if error.errno not in NO_SPACE:
                    raise
                self.lost = error
        return memoryview(data).nbytes


def open_standard_streams() -> None:
    """Connect a standard stream that the caller closed (`>&-`) with the null device.

    Otherwise the next file or pipe gets its number, and Python's stream is None.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number: this one
            if null != number:
                os.dup2(null, number)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))


def outlast_full_disks(elapsed: Elapsed) -> Output:
    """Make standard output and error streams that outlast a full disk; return what is below standard output."""
    outputs = []
    for name in ("stdout", "stderr"):
        before: TextIO = getattr(sys, name)
        before.flush()
        raw = Output(before.fileno(), elapsed)
        lines = name == "stderr" or raw.isatty()
        stream = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding=before.encoding, errors="replace", line_buffering=lines
        )
        setattr(sys, name, stream)
        outputs.append(raw)
    return outputs[0]


def drop_output() -> None:
    """Discard buffered output after its reader is gone, so that no traceback is printed at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
