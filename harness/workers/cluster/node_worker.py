"""A worker on a node of a cluster: it owns a worker process there and reports to a campaign elsewhere.

Nothing here knows how messages travel. `stop` comes from another thread than the other calls.

Of clean traces only totals are reported. Of failing traces with one signature the first, second, fourth, eighth and so
on are reported by themselves, for the campaign to sort them by cause; only totals of the others.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version as version_of
from threading import Event

from msgspec import structs

from ....targets.base.launch import Launch
from ....targets.base.patched_copy import patched
from ....targets.base.protocol import TargetError
from ....targets.base.registry import prepare
from ....targets.base.trace import TraceError
from ...judge.environment_fault import FaultyEnvironment
from ...judge.outcome import Outcome
from ...units import add_seconds
from ..messages import Answer as Serve
from ..messages import Answered, Done, Explain, Explained, Failed, Fuzz, Observe, Run
from ..results import Counts, Ran
from ..worker_client import InternalError, Stopped, WorkerClient
from .messages import Answer, Call, Halted, NodeReport, Pause, Paused, Refused, Started, pack, unpack_call, unpack_setup

CHUNK_MAX = 8
CHUNK_SECONDS = 0.5
"""A worker process is given so many traces at once that it needs about this long, but at most `CHUNK_MAX`."""
WANTED_MAX = 2
"""Traces that are reported for a state that the corpus lacks, in one report."""


class NodeWorker:
    """The body of an actor."""

    def __init__(self, setup: bytes) -> None:
        self._setup = unpack_setup(setup)
        self._client: WorkerClient | None = None
        self._ending = Event()
        self._met = Counter[str]()
        """Failing traces by signature."""
        self._seconds_each = CHUNK_SECONDS

    def start(self) -> bytes:
        """Start the worker process; the target's environment is made once on each node. Returns an `Answer`."""
        return pack(self._safely(self._start))

    def call(self, call: bytes) -> bytes:
        """Answer a `Call`. Returns an `Answer`."""
        return pack(self._safely(lambda: self._answer(unpack_call(call))))

    def stop(self) -> None:
        """Kill the worker process: the call that is running ends with what it has."""
        self._ending.set()
        if self._client:
            self._client.stop()

    def _safely(self, work: Callable[[], Answer]) -> Answer:
        """Return an answer, or the error that came instead."""
        try:
            return work()
        except Stopped:
            return Halted()
        except FaultyEnvironment as error:
            return Failed("environment", str(error), fault=error.fault)
        except TargetError as error:
            return Failed("target", str(error))
        except TraceError as error:
            return Failed("trace", str(error))
        except InternalError as error:
            return Failed("internal", str(error), error.details)
        except Exception as error:
            return Failed("internal", f"{type(error).__name__}: {error}", traceback.format_exc())

    def _start(self) -> Answer:
        setup = self._setup
        if (ours := version_of("hybridfuzz")) != setup.hybridfuzz:
            return Refused(f"it has hybridfuzz {ours}, the campaign {setup.hybridfuzz}")
        try:
            launch = patched(prepare(setup.target, lambda _: None), setup.patches)
        except TargetError as error:
            return Refused(str(error))
        if launch.version != setup.version:
            return Refused(f"{setup.target} is {launch.version or 'unknown'} there, {setup.version or 'unknown'} here")
        try:
            return self._restart(launch)
        except FaultyEnvironment:  # the node can take part once there is room
            raise
        except TargetError as error:
            return Refused(str(error))

    def _restart(self, launch: Launch) -> Started:
        if self._client:
            self._client.__exit__()
        self._client = client = WorkerClient(self._setup.target, launch, memory_limit=self._setup.memory_limit)
        if self._ending.is_set():
            client.stop()
        return Started(client.start())

    def _answer(self, call: Call) -> Answer:
        assert self._client
        self._client.trace_seconds = call.trace_seconds
        request = call.request
        if isinstance(request, Run):
            return Done(self._client.run(request.trace, twice=request.twice))
        if isinstance(request, Explain):
            return Explained(*self._client.explain(request.trace))
        if isinstance(request, Serve):
            return Answered(self._client.serve(request.trace, request.request))
        if isinstance(request, Observe):
            return self._client.observe(request.trace, lines=request.lines, most=request.most)
        if isinstance(request, Pause):
            self._client.pause()
            return Paused()
        return self._fuzz(request, call.seconds)

    def _fuzz(self, request: Fuzz, seconds: float) -> NodeReport:
        deadline = time.monotonic() + seconds
        tally, rans = Tally(), list[Ran]()
        wanted = Counter(dict.fromkeys(request.wanted, WANTED_MAX))
        try:
            for ran in self._chunks(request, wanted, deadline):
                violation = ran.outcome.violation
                if ran.outcome.fault or (violation and self._is_sent(violation.signature)):
                    rans.append(ran)
                    break  # the campaign may want this worker for the finding, or for the trace alone
                if ran.flaky or (ran.trace and not violation):
                    wanted -= Counter([state for state in wanted if ran.outcome.reached.get(state)])
                    rans.append(ran)
                else:
                    tally.add(ran)
        except Stopped:
            pass  # what has ended counts
        return NodeReport(tally.counts(), rans)

    def _is_sent(self, signature: str) -> bool:
        """Count a failing trace; return True if it is reported by itself: the first, second, fourth, eighth, ..."""
        self._met[signature] += 1
        number = self._met[signature]
        return number & (number - 1) == 0

    def _chunks(self, request: Fuzz, wanted: Counter[str], deadline: float) -> Iterator[Ran]:
        """Yield traces until all have run, or time is up: the worker process is never left with traces to run."""
        assert self._client
        left = request.indexes
        while left and not self._ending.is_set():
            count = max(1, min(len(left), CHUNK_MAX, int(CHUNK_SECONDS / max(self._seconds_each, 1e-6))))
            began = time.monotonic()
            chunk = structs.replace(request, first=left[0], count=count, wanted=sorted(wanted))
            yield from self._client.fuzz(chunk)
            self._seconds_each = (time.monotonic() - began) / count
            left = left[count:]
            if time.monotonic() >= deadline:
                return


class Tally:
    """Adds up traces of which only totals are reported."""

    def __init__(self) -> None:
        self._indexes: list[int] = []
        self._steps = self._lost = 0
        self._seconds = 0.0
        self._exercised = Counter[str]()
        self._reached = Counter[str]()
        self._repeats = Counter[str]()
        self._species: dict[int, Sequence[int]] = {}
        self._took: dict[str, float] = {}

    def add(self, ran: Ran) -> None:
        """Add a trace."""
        outcome: Outcome = ran.outcome
        self._indexes.append(ran.index)
        self._steps += outcome.steps
        self._lost += bool(ran.lost)
        self._seconds += ran.seconds
        self._exercised.update(outcome.exercised)
        self._reached.update(outcome.reached)
        add_seconds(self._took, ran.took)
        if ran.species:
            self._species[ran.index] = ran.species
        if outcome.violation:
            self._repeats[outcome.violation.signature] += 1

    def counts(self) -> Counts:
        """Return the totals."""
        return Counts(
            indexes=self._indexes,
            steps=self._steps,
            exercised=self._exercised,
            reached=self._reached,
            lost=self._lost,
            repeats=self._repeats,
            seconds=self._seconds,
            species=self._species,
            took=self._took,
        )
