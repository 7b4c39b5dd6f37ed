"""The coordinator's side of a worker. A lost process becomes an outcome, and the next request starts a new one.

An engine may not start again after a crash (a GPU that hangs): the crash is an outcome all the same, and TargetError is
for the request after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Event
from typing import TypeVar

from msgspec import structs

from ...targets.base.launch import Launch, unshared
from ...targets.base.protocol import MisfitError, TargetError
from ...targets.base.trace import Config, Trace, TraceError
from ..defaults import TRACE_SECONDS
from ..draw.aim import Aim
from ..draw.avoid import Circumstances
from ..draw.workload import DEFAULT, Workload
from ..explore.expand import Compare, Compared, Expand, Expanded
from ..judge.differential import EventSummary
from ..judge.engines import RefusedError
from ..judge.environment_fault import FaultyEnvironment
from ..judge.outcome import Outcome
from ..judge.situations import SpeciesReporter
from ..record.activity import Observation
from ..record.answers import Answers
from ..record.history import History
from ..record.watched_lines import Watched
from .judge_loss import FROM_OUTSIDE, MEMORY_LIMIT, judge_loss, lost_outcome, unopened, unrepeated, was_killed
from .machine import memory_share
from .messages import (
    Answer,
    Answered,
    Busy,
    Done,
    Draw,
    Drawn,
    EventStarted,
    Explain,
    Explained,
    Failed,
    Fuzz,
    Observe,
    Overrides,
    Port,
    Ported,
    Ready,
    Reply,
    Request,
    Run,
    Summarize,
    Summarized,
    Supported,
    Supports,
)
from .results import Ran
from .worker_process import TIME_LIMIT, Limit, Lost, Process

Kind = TypeVar("Kind", bound=Reply)
START_SECONDS = 600.0
"""A cold engine on a busy machine imports for a minute; its very first start inspects and caches
more.
"""
BATCH = 8
"""Traces that a worker is given at once. It reports each of them as it ends."""
RESTART_WAITS = (1.0, 10.0)
"""Seconds before the second and the third try to replace a lost process."""


class Stopped(Exception):
    """The worker was stopped by `stop`."""


class InternalError(Exception):
    """hybridfuzz itself failed. `details` is the worker's traceback."""

    def __init__(self, message: str, details: str) -> None:
        super().__init__(message)
        self.details = details


class WorkerClient:
    """Runs traces on one target, also if it crashes or hangs. Use as a context manager, from one thread at a time.

    Only `stop` may be called from another thread: it kills the process, and the waiting call raises Stopped.
    `memory_limit` is in bytes, 0 for none; by default it is that of a worker which has the machine for itself. Outcomes
    of `run` and `fuzz` have the `watched` lines that ran.
    """

    def __init__(
        self,
        spec: str,
        launch: Launch,
        trace_seconds: float = TRACE_SECONDS,
        memory_limit: int | None = None,
        watched: Watched | None = None,
    ) -> None:
        self.spec = spec
        self.launch = launch
        self.trace_seconds = trace_seconds
        self.memory_limit = memory_share() if memory_limit is None else memory_limit
        self.watched = watched or {}
        self.on_busy: Callable[[str], None] = lambda what: None
        self.last_lost: Lost | None = None
        """The last loss of a process, for a caller whose request is cut off before its trace has run again."""
        self._process: Process | None = None
        self._queued_before = 0.0
        """Of earlier processes."""
        self._stopped = Event()
        self._has_started = False
        self._is_lost = False
        """True once the process is gone and until another one has started."""
        self._is_ahead = False
        """True while the process runs traces of which the replies are unread."""
        self._is_apart = False
        """True if the next process shares no device with others."""

    def __enter__(self) -> WorkerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    @property
    def node(self) -> str:
        """Return "": the process runs on this machine."""
        return ""

    @property
    def batch(self) -> int:
        """Return how many traces it should be given at once."""
        return BATCH

    @property
    def pid(self) -> int:
        """Return the id of the current process, 0 if there is none."""
        process = self._process  # another thread may stop it meanwhile
        return process.pid if process else 0

    @property
    def queued(self) -> float:
        """Return for how many seconds its processes have had work to do and no processor, 0 where nothing tells."""
        process = self._process
        return self._queued_before + (process.queued if process else 0.0)

    def start(self) -> Ready:
        """Start a process, in place of the old one if there is one. Return the target's capabilities.

        A target that has started before gets several tries: a busy machine may have been short of memory. One that
        did not come back then gets a single try each time.
        """
        waits, self._has_started = RESTART_WAITS if self._has_started else (), False
        for wait in waits:
            try:
                ready = self._start()
            except TargetError:
                self._stopped.wait(wait)
            else:
                break
        else:
            ready = self._start()
        self._has_started = True
        return ready

    def _start(self) -> Ready:
        self._close()
        try:
            launch = unshared(self.launch) if self._is_apart else self.launch
            self._process = Process(self.spec, launch, self.memory_limit, self.watched)
        except OSError as error:  # no memory, no file descriptors, no room for its home
            raise TargetError(f"target {self.spec!r}: its worker cannot be started: {error.strerror}") from error
        self._is_ahead = False
        try:
            reply = self._expect(Ready, self._limit(START_SECONDS))
        except Lost as lost:
            if lost.fault:
                raise FaultyEnvironment(lost.fault) from lost
            last = lost.last_words.splitlines()[-1:] or ["it printed nothing"]
            raise TargetError(f"target {self.spec!r} {lost.what} while starting: {last[0]}") from lost
        self._is_lost = False
        return reply

    def _close(self) -> None:
        """End the process, if there is one."""
        if process := self._process:
            self._queued_before, self._process = self.queued, None
            process.close()

    def pause(self, *, apart: bool = False) -> None:
        """End the process, so that all its memory is free. The next request starts a new one; if `apart`, one that
        shares no device with others, so that a fault of it is its own."""
        self._is_apart = apart
        self._close()
        self._is_lost, self._is_ahead = True, False

    def stop(self) -> None:
        """Kill the process now."""
        self._stopped.set()
        if process := self._process:
            process.kill()

    def run(self, trace: Trace, *, twice: bool = False) -> Outcome:
        """Run one trace. A lost process is an outcome with the event at which it happened."""
        reply = self._answer(Run(trace, twice), trace, Done, twice=twice)
        return reply.outcome if isinstance(reply, Done) else reply

    def explain(self, trace: Trace) -> tuple[Outcome, History]:
        """Run one trace and record its history; a lost process leaves only its violation."""
        reply = self._answer(Explain(trace), trace, Explained)
        if isinstance(reply, Explained):
            return reply.outcome, reply.history
        return reply, History(violation=reply.violation)

    def observe(self, trace: Trace, *, lines: bool = False, most: int | None = None) -> Observation:
        """Run one trace and record its steps and the lines that it executed; a lost process leaves its violation."""
        reply = self._answer(Observe(trace, lines, most), trace, Observation)
        return reply if isinstance(reply, Observation) else Observation(reply)

    def expand(self, request: Expand) -> Expanded | Outcome:
        """Continue traces by each event that may follow; if the process is lost, the outcome of that: for which of them
        is known if there is one branch. Each branch has the time limit of a trace."""
        parent = request.parents[0]
        trace = Trace(parent.config, (*parent.events, *parent.branches[:1]))
        return self._answer(request, trace, Expanded, renews=True)

    def compare(self, request: Compare) -> str:
        """Return what differs between two traces that have one form when both are continued; "" if nothing does."""
        reply = self._answer(request, Trace(request.config, request.left), Compared, renews=True)
        return reply.difference if isinstance(reply, Compared) else "the process was lost while both were continued"

    def _answer(
        self, request: Request, trace: Trace, kind: type[Kind], *, twice: bool = False, renews: bool = False
    ) -> Kind | Outcome:
        """Return the reply to a request that runs one trace; if the process is lost, the outcome of that.

        A process that something else killed shows nothing about the trace: that one runs once more, if it can. So does
        a trace for which there was no memory or no device, in a new process; FaultyEnvironment if there is none again.
        """
        try:
            answer = self._try(request, trace, kind, twice=twice, renews=renews)
        except FaultyEnvironment as error:
            self.pause(apart=error.fault.is_shared)
            return self._try(request, trace, kind, twice=twice, renews=renews)
        if isinstance(answer, Outcome) and was_killed(answer):
            with suppress(TargetError, TraceError):  # the loss is all that is known; a next request raises it again
                answer = self._try(request, trace, kind, twice=twice, renews=renews)
        return answer

    def _try(self, request: Request, trace: Trace, kind: type[Kind], *, twice: bool, renews: bool) -> Kind | Outcome:
        """`renews` the time limit with each event that starts."""
        event = 0
        try:
            self._send(request)
            limit = self._trace_limit(twice=twice)
            while True:
                reply = self._receive(limit)
                if isinstance(reply, EventStarted):
                    event = reply.event
                    limit = self._trace_limit(twice=twice) if renews else limit
                elif isinstance(reply, kind):
                    return reply
                else:
                    raise self._unexpected(reply, kind)
        except Lost as lost:
            if lost.fault:
                raise FaultyEnvironment(lost.fault) from lost
            return lost_outcome(lost, trace, event if lost.event is None else min(event, lost.event))

    def serve(self, trace: Trace, request: str = "") -> Answers:
        """Run one trace to its end and return what its clients receive; no answers if the process is lost."""
        reply = self._answer(Answer(trace, request), trace, Answered, twice=True)  # the prompts are sent twice
        return reply.answers if isinstance(reply, Answered) else Answers()

    def run_summarized(self, trace: Trace) -> tuple[Outcome, list[EventSummary]]:
        """Run one trace and summarize each event; a lost process leaves only its violation."""
        reply = self._answer(Summarize(trace), trace, Summarized)
        return (reply.outcome, reply.summaries) if isinstance(reply, Summarized) else (reply, [])

    def fuzz(self, request: Fuzz) -> Iterator[Ran]:
        """Draw and run many traces. After a violation, and after a fault of the environment, the process waits, and the
        worker may be used otherwise.

        After any other trace but the last the process runs ahead: a caller that stops reading there must call `start`
        before it uses the worker again.
        """
        first, end, stride, waiting = request.first, request.indexes.stop, request.stride, time.monotonic()
        while first < end:
            done = (first - request.first) // stride
            count, traces = (end - first) // stride, request.traces[done:]
            asked = structs.replace(request, first=first, count=count, traces=traces)
            trace: Trace | None = None
            try:
                self._send(asked)
                while first < end:
                    waiting, trace = time.monotonic(), None
                    trace = self._trace_of(request, first)
                    twice = bool(request.twice_every) and first % request.twice_every == 0
                    reply = self._expect(Done, self._trace_limit(twice=twice))
                    is_waiting = bool(reply.outcome.violation or reply.outcome.fault)
                    self._is_ahead = first + stride < end and not is_waiting
                    yield Ran(
                        first,
                        reply.outcome,
                        reply.trace,
                        seconds=reply.seconds,
                        lines=reply.lines,
                        species=reply.species,
                        took=reply.took,
                    )
                    first += stride
                    if is_waiting:
                        break
            except Lost as lost:
                ran = unopened(first, trace, lost.fault) if lost.fault else self._again(request, first, trace, lost)
                if ran.outcome.fault and not request.takes_unopened:
                    raise FaultyEnvironment(ran.outcome.fault) from lost
                yield structs.replace(ran, seconds=time.monotonic() - waiting)
                first += stride

    def draw(
        self,
        seed: int,
        index: int,
        overrides: Overrides,
        avoid: Sequence[Circumstances] = (),
        workload: Workload = DEFAULT,
        aim: Aim | None = None,
    ) -> Trace:
        """Return a trace of a campaign, without running it."""
        request = Draw(seed, index, overrides, avoid, workload, aim or {})
        return self._ask(request, Drawn, "while a trace was drawn").trace

    def supports(self, config: Config) -> str:
        """Return "", or the reason why the target does not support a configuration."""
        return self._ask(Supports(config), Supported, "while it was asked for a configuration").reason

    def port(self, trace: Trace) -> Ported:
        """Return the trace changed so that the target takes it. Raises TraceError if that is impossible."""
        return self._ask(Port(trace), Ported, "while a trace was ported")

    def _ask(self, request: Request, kind: type[Kind], when: str) -> Kind:
        """Return the reply to a request for which no engine runs.

        A process that is lost meanwhile, which something else may have done, is replaced once. Raises TargetError if
        the next one is lost, too.
        """
        for last in (False, True):
            try:
                self._send(request)
                return self._expect(kind, self._limit(START_SECONDS))
            except Lost as lost:
                if lost.fault and last:
                    raise FaultyEnvironment(lost.fault) from lost
                if last or lost.field == TIME_LIMIT:
                    raise TargetError(f"target {self.spec!r} {lost.what} {when}") from lost
        raise AssertionError

    def _trace_of(self, request: Fuzz, index: int) -> Trace:
        """Return a trace that runs next: given by the request, or drawn by the process, which has all the time for it:
        no engine runs then, so it cannot hang."""
        if request.traces:
            return request.traces[request.indexes.index(index)]
        return self._expect(Drawn, self._limit(START_SECONDS)).trace

    def _again(self, request: Fuzz, index: int, trace: Trace | None, lost: Lost) -> Ran:
        """Run the trace at which a process was lost alone, in a new one; None if it was lost before it had drawn it."""
        trace = trace or self.draw(request.seed, index, request.overrides, request.avoid, request.workload, request.aim)
        try:
            again = self.run(trace)
        except (TargetError, TraceError) as error:
            if isinstance(error, FaultyEnvironment) and lost.field in (*FROM_OUTSIDE, MEMORY_LIMIT):
                return unopened(index, trace, error.fault)  # the loss may have had the same reason
            return unrepeated(lost, index, trace, str(error))
        ran = judge_loss(lost, index, trace, again)
        return structs.replace(ran, species=SpeciesReporter().report(again.together))

    def _send(self, request: Request) -> None:
        """Send a request, to a new process if the last one is lost. Raises TargetError if none starts."""
        if self._is_lost:
            self.start()
        assert self._process
        assert not self._is_ahead, "the replies to an abandoned `fuzz` would be taken for those to this request"
        self._process.send(request)

    def _limit(self, seconds: float) -> Limit:
        """Return the limit for a request that was just sent."""
        assert self._process
        return self._process.limit(seconds)

    def _trace_limit(self, *, twice: bool = False) -> Limit:
        """Return the limit for one trace: `trace_seconds` for each of its runs."""
        return self._limit(self.trace_seconds * (2 if twice else 1))

    def _expect(self, kind: type[Kind], limit: Limit) -> Kind:
        """Return the next reply. Raises Lost if it is of another kind."""
        reply = self._receive(limit)
        if not isinstance(reply, kind):
            raise self._unexpected(reply, kind)
        return reply

    def _unexpected(self, reply: Reply, kind: type[Kind]) -> Lost:
        assert self._process
        self._is_lost, self._is_ahead = True, False
        answered = f"made its worker answer {type(reply).__name__}, expected {kind.__name__}"
        return self._process.misbehaved("reply", answered)

    def _receive(self, limit: Limit) -> Reply:
        """Return the next reply that is not a failure."""
        assert self._process
        if self._stopped.is_set():
            self._process.kill()
            raise Stopped
        try:
            reply, was_busy = self._process.receive(limit), False
            while isinstance(reply, Busy):
                was_busy = True
                self.on_busy(reply.what)
                reply = self._process.receive(limit)
        except Lost as lost:
            if self._stopped.is_set():
                raise Stopped from None
            self._is_lost, self._is_ahead, self.last_lost = True, False, lost
            raise
        if was_busy:
            self.on_busy("")
        if isinstance(reply, Failed):
            raise error_of(reply)
        return reply


def error_of(failed: Failed) -> Exception:
    """Return the error that a worker reported."""
    if failed.fault:
        return FaultyEnvironment(failed.fault)
    if failed.kind == "internal":
        return InternalError(failed.message, failed.details)
    errors = {"trace": TraceError, "refused": RefusedError, "misfit": MisfitError}
    return errors.get(failed.kind, TargetError)(failed.message)
