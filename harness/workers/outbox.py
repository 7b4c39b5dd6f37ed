"""The worker's end of the pipe to its coordinator.

A target runs in the same process. It may write to the pipe by accident, and a copy of the process that it forks may
come back into the worker. So each reply begins with a seal, a word that the coordinator gave to this worker alone, and
a copy says that it is one and ends. This is no protection against a target that looks for the seal.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import BinaryIO

import msgspec

from ..quoting import clean
from .messages import EventStarted, Forked, Reply


class Outbox:
    """Sends replies. Make it before the target is loaded: it keeps the functions that it needs."""

    def __init__(self, stream: BinaryIO, seal: bytes) -> None:
        self._stream = stream
        self._seal = seal
        self._sending = Lock()  # a compiler may speak from a thread of its own
        self._encode = msgspec.json.Encoder().encode
        self._own = os.getpid()
        self._pid = os.getpid
        self._event = 0

    def send(self, reply: Reply) -> None:
        """Send a reply."""
        self.end_copy()
        if isinstance(reply, EventStarted):
            self._event = reply.event
        with self._sending:
            self._write(reply)

    def end_copy(self) -> None:
        """Return in the worker. A copy of it, which a target has forked, says so and ends."""
        if self._pid() != self._own:
            try:
                self._write(Forked(self._event))
            finally:
                os._exit(1)

    def _write(self, reply: Reply) -> None:
        self._stream.write(self._seal + self._encoded(reply) + b"\n")
        self._stream.flush()

    def _encoded(self, reply: Reply) -> bytes:
        """Return JSON. Lone surrogates, which a target's strings may contain, are escaped."""
        try:
            return self._encode(reply)
        except UnicodeEncodeError:
            return self._encode(_valid(msgspec.to_builtins(reply)))


def _valid(value: object) -> object:
    if isinstance(value, str):
        return clean(value, len(value))
    if isinstance(value, dict):
        return {_valid(key): _valid(each) for key, each in value.items()}
    return [_valid(each) for each in value] if isinstance(value, list | tuple) else value
