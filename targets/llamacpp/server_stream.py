"""Requests to llama.cpp's server that are sent while others are computed, and clients that leave before their answer.

An answer comes token by token, so a client can see that its request is computed. A client leaves by closing its
connection. Each request names its slot (`id_slot`), and those of a slot have an order: which requests a slot computes
one after the other does not depend on timing. How far others are when a request arrives, or its client leaves, does.

Scripts copy this file's definitions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from socket import create_connection
from typing import Any

EVENT = b"data: "
LAST = b'"stop":true'
"""In the last event of an answer alone."""


class Stream:
    """A request over a connection of its own, and what of its answer has come."""

    def __init__(self, address: str, content: Mapping[str, Any], seconds: float) -> None:
        host, _, port = address.rpartition("/")[2].partition(":")
        body = json.dumps({**content, "stream": True}).encode()
        head = f"POST /completion HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
        self._seconds = seconds
        self._socket = create_connection((host, int(port)), timeout=seconds)
        self._socket.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        self._received = b""
        self._is_open = True

    def wait(self) -> None:
        """Wait for the first token."""
        while self._is_open and EVENT not in self._received:
            self._read()

    def has_ended(self) -> bool:
        """Return True if the whole answer has come, without waiting for it."""
        self._socket.setblocking(False)
        try:
            while self._is_open:
                self._read()
        except BlockingIOError:
            pass
        finally:
            self._socket.settimeout(self._seconds)
        return not self._is_open or LAST in self._received

    def finish(self) -> None:
        """Wait for the whole answer."""
        while self._is_open:
            self._read()

    def answer(self) -> Mapping[str, Any]:
        """Wait for the whole answer; return it as if it had come at once. ValueError says what came instead."""
        self.finish()
        self.close()
        head, _, body = self._received.partition(b"\r\n\r\n")
        events = [json.loads(line[len(EVENT) :]) for line in _unchunked(body).split(b"\n") if line.startswith(EVENT)]
        if not events or not events[-1].get("stop"):
            raise ValueError(f"no whole answer: {(head + body)[-300:].decode(errors='replace')}")
        return {
            "tokens": [token for event in events for token in event["tokens"]],
            "completion_probabilities": [place for event in events for place in _places(event)],
            "id_slot": events[-1]["id_slot"],
        }

    def close(self) -> None:
        """Close the connection: before the answer is complete, the client leaves."""
        self._socket.close()

    def _read(self) -> None:
        part = self._socket.recv(1 << 16)
        self._is_open = bool(part)
        self._received += part


class Streams:
    """Requests that are sent one after the other, each once the one before is computed, unless that waits for its slot.

    queued     a request may be sent to a slot that has not yet answered the request before
    arrived    requests that were sent before the answer to an earlier one had come
    cancelled  requests whose clients left before their answer had come, and before that to another one had
    """

    def __init__(self, address: str, seconds: float, queued: bool) -> None:
        self.address, self.seconds, self.queued = address, seconds, queued
        self.streams: list[Stream] = []
        self.queues: dict[int, list[Stream]] = {}
        """Slot -> the requests that name it."""
        self.arrived = self.cancelled = 0

    def send(self, content: Mapping[str, Any], slot: int) -> Stream:
        """Send a request to a slot."""
        queue = self.queues.setdefault(slot, [])
        if self.streams and self.streams[-1:] in self.queues.values():
            self.streams[-1].wait()
        if queue and not self.queued:
            queue[-1].finish()
        if len(queue) > 1:
            queue[-1].wait()  # two that wait for a slot would have no order
        stream = Stream(self.address, {**content, "id_slot": slot}, self.seconds)
        self.arrived += not all(one.has_ended() for one in self.streams)
        self.streams.append(stream)
        queue.append(stream)
        return stream

    def leave(self, leaving: Sequence[Stream]) -> None:
        """Close the connections of some, while the others wait or are computed."""
        staying = [one for one in self.streams if one not in leaving]
        for one in leaving:
            self.cancelled += not one.has_ended() and not all(other.has_ended() for other in staying)
            one.close()
        self.streams = staying

    def answers(self) -> Iterator[Mapping[str, Any]]:
        """Yield the answers of those that stayed, in the order in which they were sent."""
        for one in self.streams:
            yield one.answer()

    def close(self) -> None:
        """Close all connections."""
        for one in self.streams:
            one.close()


def _unchunked(body: bytes) -> bytes:
    """Return the content of a chunked body."""
    content = b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        content, body = content + body[:length], body[length + 2 :] if length else b""
    return content


def _places(event: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the probabilities of the tokens of an event, none for a token of a batch with drafts."""
    unknown: list[Mapping[str, Any]] = [{"top_logprobs": []} for _ in event["tokens"]]
    return event.get("completion_probabilities") or unknown
