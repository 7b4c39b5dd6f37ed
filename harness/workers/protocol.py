"""The interface of a worker as a campaign uses it: a process here (`worker_client`), or one on a node of a cluster.

A worker survives the crash of its engine by itself. If its node is lost, its methods raise `NodeLost`, and `start` puts
it on another node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from ...targets.base.trace import Trace
from ..judge.outcome import Outcome
from ..record.activity import Observation
from ..record.answers import Answers
from ..record.history import History
from .messages import Fuzz, Ready
from .results import Counts, Ran


class NodeLost(Exception):
    """The node of a worker, or the process that had it there, is gone. The message is one line."""


class NodeRefused(Exception):
    """A worker was placed on a node that cannot take part. The message is one line; `start` tries another node."""

    def __init__(self, node: str, reason: str) -> None:
        super().__init__(reason)
        self.node = node


class Worker(Protocol):
    """Runs traces on one target. Use as a context manager, from one thread; `stop` may come from another one.

    Each method may raise Stopped, NodeLost, TargetError, TraceError and InternalError; `start` also NodeRefused.

    trace_seconds    time limit of one trace; may be changed between calls
    on_busy          told what the worker waits for, in a few words, and "" once it goes on; not by remote workers
    """

    trace_seconds: float
    on_busy: Callable[[str], None]

    def __enter__(self) -> Worker: ...

    def __exit__(self, *_: object) -> None: ...

    @property
    def node(self) -> str:
        """Return the name of its node, "" for this machine."""

    @property
    def batch(self) -> int:
        """Return how many traces it should be given at once."""

    def start(self) -> Ready:
        """Start, or start again. Return the target's capabilities."""

    def pause(self, *, apart: bool = False) -> None:
        """Give up all memory until the next call. From then on it shares no device with others, if `apart`."""

    def stop(self) -> None:
        """End the current call soon, and refuse further ones."""

    def run(self, trace: Trace, *, twice: bool = False) -> Outcome:
        """Run one trace."""

    def explain(self, trace: Trace) -> tuple[Outcome, History]:
        """Run one trace and record its history."""

    def observe(self, trace: Trace, *, lines: bool = False, most: int | None = None) -> Observation:
        """Run one trace and record its steps and, with `lines`, the engine's lines in its first `most` events."""

    def serve(self, trace: Trace, request: str = "") -> Answers:
        """Run one trace to its end and return what its clients receive. `request` is the violation's."""

    def fuzz(self, request: Fuzz) -> Iterator[Ran | Counts]:
        """Draw and run many traces. After a violation the worker may be used otherwise before the next is fetched.

        It may end early: traces that it did not yield have not been counted.
        """


OpenWorker = Callable[[Callable[[], bool]], Worker]
"""Returns a worker that is not started. The argument returns True while there is work for one that waits for a node."""
