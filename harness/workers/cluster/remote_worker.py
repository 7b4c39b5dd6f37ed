"""The campaign's side of a worker on another node: a `workers.protocol.Worker` that leases traces for some seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from ....targets.base.trace import Trace
from ...judge.outcome import Outcome
from ...record.activity import Observation
from ...record.answers import Answers
from ...record.history import History
from ..messages import Answer as Serve
from ..messages import Answered, Done, Explain, Explained, Failed, Fuzz, Observe, Ready, Run
from ..protocol import NodeRefused
from ..results import Counts, Ran
from ..worker_client import Stopped, error_of
from .messages import Answer, Call, Halted, NodeReport, Pause, Refused, Started, pack, unpack_answer

LEASE_SECONDS = 10.0
"""A worker is given so many traces at once that it needs about this long, and reports after this time at the latest.

A coordinator with 1,000 workers thus gets about 100 reports a second, whatever the engine's speed.
"""
LEASE_MAX = 1000


class Seat(Protocol):
    """Carries bytes to a `node_worker.NodeWorker`, wherever it is. Methods raise NodeLost and Stopped."""

    def start(self) -> tuple[str, bytes]:
        """Place the worker, again after a loss. Return the name of its node, and its answer."""

    def call(self, call: bytes) -> bytes:
        """Return the answer to a `Call`."""

    def stop(self) -> None:
        """End the call that is running; it may come from another thread."""

    def refuse(self, reason: str) -> None:
        """Leave this node for good."""

    def close(self) -> None:
        """Release everything."""


class RemoteWorker:
    """A worker on another node."""

    def __init__(self, seat: Seat, trace_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.trace_seconds = trace_seconds
        self.on_busy: Callable[[str], None] = lambda what: None
        self._seat = seat
        self._clock = clock
        self._node = ""
        self._batch = 1
        self._stopped = False

    def __enter__(self) -> RemoteWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self._seat.close()

    @property
    def node(self) -> str:
        """Return the name of its node."""
        return self._node

    @property
    def batch(self) -> int:
        """Return how many traces it should be given at once."""
        return self._batch

    def start(self) -> Ready:
        """Place the worker. Returns the target's capabilities."""
        if self._stopped:
            raise Stopped
        name, data = self._seat.start()
        answer = unpack_answer(data)
        if isinstance(answer, Refused):
            self._seat.refuse(answer.reason)
            raise NodeRefused(name, answer.reason)
        started = _checked(answer)
        assert isinstance(started, Started)
        self._node, self._batch = name, 1
        return started.ready

    def pause(self, *, apart: bool = False) -> None:
        """End its process until the next call. Workers of a cluster share no device through a service, ever."""
        self._call(Pause())

    def stop(self) -> None:
        """Make the call that is running report what it has; no other one follows."""
        self._stopped = True
        self._seat.stop()

    def run(self, trace: Trace, *, twice: bool = False) -> Outcome:
        """Run one trace."""
        answer = self._call(Run(trace, twice))
        assert isinstance(answer, Done)
        return answer.outcome

    def explain(self, trace: Trace) -> tuple[Outcome, History]:
        """Run one trace and record its history."""
        answer = self._call(Explain(trace))
        assert isinstance(answer, Explained)
        return answer.outcome, answer.history

    def observe(self, trace: Trace, *, lines: bool = False, most: int | None = None) -> Observation:
        """Run one trace and record its steps and, with `lines`, the lines executed in its first `most` events."""
        answer = self._call(Observe(trace, lines, most))
        assert isinstance(answer, Observation)
        return answer

    def serve(self, trace: Trace, request: str = "") -> Answers:
        """Run one trace to its end and return what its clients receive."""
        answer = self._call(Serve(trace, request))
        assert isinstance(answer, Answered)
        return answer.answers

    def fuzz(self, request: Fuzz) -> Iterator[Ran | Counts]:
        """Run traces until the lease is over, or up to a new violation."""
        began = self._clock()
        answer = self._call(request, LEASE_SECONDS)
        assert isinstance(answer, NodeReport)
        done = len(answer.counts.indexes) + len(answer.rans)
        if done:
            each = max((self._clock() - began) / done, 1e-6)
            self._batch = max(1, min(LEASE_MAX, 2 * self._batch, int(LEASE_SECONDS / each)))
        if answer.counts.indexes:
            yield answer.counts
        yield from answer.rans

    def _call(self, request: Run | Explain | Serve | Observe | Fuzz | Pause, seconds: float = 0.0) -> Answer:
        if self._stopped:
            raise Stopped
        return _checked(unpack_answer(self._seat.call(pack(Call(request, self.trace_seconds, seconds)))))


def _checked(answer: Answer) -> Answer:
    """Return an answer that is not an error; raise the others."""
    if isinstance(answer, Halted):
        raise Stopped
    if isinstance(answer, Failed):
        raise error_of(answer)
    return answer
