"""Journals: the answers of an exploration as they come. One that was killed goes on where it was, and shards of one
exploration, which share a folder, read each other's answers there.

A shard asks its workers for every N-th request alone. Each of them sees all answers in the same order, and so comes to
the same states, numbers and digest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import BinaryIO

import msgspec
from msgspec import Struct

from ...targets.base.trace import TraceError
from ..draw.trace_files import ERROR_LENGTH_MAX, read_regular
from ..quoting import one_line
from ..units import Shard
from .expand import Grown

JOURNAL_FILE = "journal"
JOURNAL_BYTES_MAX = 1 << 30
POLL_SECONDS = 0.02


class Entry(Struct, frozen=True, array_like=True):
    """A line of a journal: the answer to one request."""

    grown: tuple[Grown, ...] = ()
    oracles: dict[str, int] = {}
    whole: bool = True
    differences: tuple[str, ...] = ()


class Halted(Exception):
    """The exploration was ended while it waited for another shard."""


class Journals:
    """The journal of one shard, for whom `earlier` are the answers of a run that was killed, and those of the others.

    `identity` is what a journal must have been written for. Raises TraceError for one that cannot be used.
    """

    def __init__(self, folder: Path, identity: str, shard: Shard, halt: Event) -> None:
        self._folder = folder
        self._identity = identity.encode()
        self._shard = shard
        self._halt = halt
        self.earlier = self._begin()
        self._own: BinaryIO = self._path(shard.number).open("ab")
        self._others = {number: self._followed(number) for number in range(1, shard.of + 1) if number != shard.number}

    def __enter__(self) -> Journals:
        return self

    def __exit__(self, *_: object) -> None:
        self._own.close()

    def _path(self, number: int) -> Path:
        return self._folder / (JOURNAL_FILE if self._shard.of == 1 else f"{JOURNAL_FILE}-{number}-of-{self._shard.of}")

    def _begin(self) -> Iterator[Entry]:
        """Read one's own journal; begin it if there is none.

        A last line that is cut off is dropped: it was being written when the process ended.
        """
        path = self._path(self._shard.number)
        data = read_regular(path, JOURNAL_BYTES_MAX, "a journal") if os.path.lexists(path) else b""
        whole = data[: data.rfind(b"\n") + 1]
        lines = whole.splitlines()
        if lines:
            self._check(lines[0])
        else:
            whole = self._identity + b"\n"
        if whole != data:
            path.write_bytes(whole)
        return iter([_entry(path, line) for line in lines[1:]])

    def _check(self, first: bytes) -> None:
        if first != self._identity:
            raise TraceError(
                f"{self._folder} holds another exploration, unfinished: its target, scope, --fixes, --disturbances or "
                "--check-merges are others; repeat those, or choose another folder"
            )

    def add(self, entry: Entry) -> None:
        """Write an answer of one's own."""
        self._own.write(msgspec.json.encode(entry) + b"\n")
        self._own.flush()

    def of_another(self, number: int) -> Entry:
        """Return the next answer of another shard; wait for it. Raises Halted if the exploration is ended."""
        return next(self._others[number])

    def _followed(self, number: int) -> Iterator[Entry]:
        path, read, is_first = self._path(number), 0, True
        while True:
            data = b""
            if path.is_file():
                with path.open("rb") as file:
                    file.seek(read)
                    data = file.read()
            whole = data[: data.rfind(b"\n") + 1]  # of a line that is cut off nothing is read
            read += len(whole)
            for line in whole.splitlines():
                if is_first:
                    self._check(line)
                    is_first = False
                else:
                    yield _entry(path, line)
            if not whole and self._halt.wait(POLL_SECONDS):
                raise Halted

    def remove(self) -> None:
        """Remove one's own journal; shards keep theirs, which others may still read."""
        if self._shard.of == 1:
            self._path(1).unlink()


def _entry(path: Path, line: bytes) -> Entry:
    try:
        return msgspec.json.decode(line, type=Entry)
    except (ValueError, RecursionError) as error:  # of msgspec, too
        raise TraceError(f"{path}: {one_line(str(error), ERROR_LENGTH_MAX)}; remove it to begin anew") from None
