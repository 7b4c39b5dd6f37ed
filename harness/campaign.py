"""A campaign: many traces on several workers for a budget. Yields records; prints nothing.

One thread for each worker process: it takes the next few trace numbers, runs them, and when it
meets a signature first, saves, confirms and reduces that finding itself before it goes on. All
shared state is behind one lock. The first worker that is ready starts the clock.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread

from msgspec import Struct

from ..targets.base.launch import Launch
from ..targets.base.protocol import Capabilities, TargetError
from ..targets.base.trace import TraceError
from .canary import Cage, share
from .findings import OutputError, Store
from .investigate import Case
from .messages import Fuzz, Overrides, Ready
from .oracles import applicable
from .records import (
    Began,
    Canary,
    CanaryDone,
    Ended,
    Found,
    Reason,
    Record,
    Summary,
    Tick,
    TraceDone,
    WorkerLost,
    WorkerState,
)
from .states import missing_states, required_states
from .supervisor import InternalError, Ran, Stopped, Worker
from .workload import check_keys

BATCH = 8
TICK_SECONDS = 0.25
STATE_SECONDS = 5.0
OVERTIME_SECONDS = 5.0
"""What a reduction may take at least, even if the campaign's time is over by then."""


class Settings(Struct, frozen=True, kw_only=True):
    """What a campaign is asked to do. Without any limit it runs until it is stopped."""

    target: str
    launch: Launch
    seed: int
    out: Path
    jobs: int = 1
    seconds: float | None = None
    steps: int | None = None
    traces: int | None = None
    overrides: Overrides = {}
    trace_seconds: float = 60.0
    reduce_seconds: float = 20.0
    memory_limit: int = 0
    twice_every: int = 50
    canaries: Sequence[str] = ()
    """Broken targets, started as `canary_launch` says: the campaign is blind if it cannot find one."""
    canary_launch: Launch = Launch(sys.executable, {})


class Campaign:
    """Runs once.

    `run` is a generator to be read to its end; `stop` may be called from a signal handler.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.store = Store(settings.out, settings.target)
        self.reason: Reason | None = None
        self._lock = Lock()
        self._records: SimpleQueue[Record | Exception] = SimpleQueue()
        self._stop = Event()
        self._workers: list[Worker] = []
        self._busy: set[int] = set()
        """Workers that reduce: a limit lets them finish."""
        self._next = 0
        self._traces = self._steps = self._lost = 0
        self._exercised: Counter[str] = Counter()
        self._reached: Counter[str] = Counter()
        self._capabilities: Capabilities | None = None
        self._started: float | None = None
        self._cage = Cage(settings.canary_launch, settings.seed, settings.overrides, share(settings.seconds))
        self._canary: Canary | None = None

    def run(self) -> Generator[Record]:
        """All records.

        Raises OutputError, TargetError, TraceError or InternalError; findings are on disk by then.
        """
        settings = self.settings
        earlier = self.store.earlier()
        self._workers = [
            Worker(settings.target, settings.launch, settings.trace_seconds, settings.memory_limit)
            for _ in range(settings.jobs)
        ]
        threads = [Thread(target=self._drive, args=(number,), daemon=True) for number in range(settings.jobs)]
        if settings.canaries:
            threads.append(Thread(target=self._sing, daemon=True))
        for thread in threads:
            thread.start()
        try:
            began = False
            for record in self._collect(threads):
                if not began and self._started is not None:
                    began = True
                    version = settings.launch.version
                    yield Began(
                        settings.target,
                        version,
                        settings.seed,
                        settings.jobs,
                        str(settings.out),
                        earlier,
                    )
                yield record
        finally:
            self._halt(everything=True)
            for thread in threads:
                thread.join()
        self.reason = self.reason or "traces"
        summary = self.summary()
        self.store.save_state(summary)
        yield Ended(summary)

    def stop(self, reason: Reason) -> None:
        """End the campaign. A limit lets reductions end; "interrupted" does not."""
        if self.reason is None:
            self.reason = reason
        self._halt(everything=reason == "interrupted")

    def summary(self) -> Summary:
        """The state of things."""
        with self._lock:
            capabilities = self._capabilities
            oracles = applicable(capabilities) if capabilities else []
            states = required_states(capabilities, self.settings.overrides) if capabilities else []
            return Summary(
                target=self.settings.target,
                version=self.settings.launch.version,
                seed=self.settings.seed,
                overrides=self.settings.overrides,
                exit_reason=self.reason,
                traces=self._traces,
                steps=self._steps,
                seconds=round(time.monotonic() - self._started, 3) if self._started else 0.0,
                findings=list(self.store.findings.values()),
                exercised=dict.fromkeys(oracles, 0) | self._exercised,
                reached=dict.fromkeys(states, 0) | self._reached,
                never_exercised=[oracle for oracle in oracles if not self._exercised[oracle]],
                never_reached=missing_states(capabilities, self._reached, self.settings.overrides)
                if capabilities
                else [],
                lost_workers=self._lost,
                canary=self._canary,
            )

    def _collect(self, threads: list[Thread]) -> Iterator[Record]:
        """Records as they come, a tick now and then, until all threads have ended."""
        saved = ticked = time.monotonic()
        while True:
            alive = any(thread.is_alive() for thread in threads)
            try:
                record = self._records.get(timeout=TICK_SECONDS if alive else 0)
            except Empty:
                if not alive:
                    return
            else:
                if isinstance(record, Exception):
                    self.reason = "error"
                    with suppress(OutputError):
                        self.store.save_state(self.summary())
                    raise record
                yield record
            now = time.monotonic()
            if self._left() == 0:
                self.stop("time")
            if now - ticked >= TICK_SECONDS:
                ticked = now
                summary = self.summary()
                yield Tick(summary, self._left())
                if now - saved >= STATE_SECONDS:
                    saved = now
                    self.store.save_state(summary)

    def _left(self) -> float | None:
        """Seconds left, None without a limit or before the start."""
        if self.settings.seconds is None or self._started is None:
            return None
        return max(self._started + self.settings.seconds - time.monotonic(), 0.0)

    def _halt(self, *, everything: bool) -> None:
        self._stop.set()
        if everything:
            self._cage.stop()
        for number, worker in enumerate(self._workers):
            if everything or number not in self._busy:
                worker.stop()

    def _drive(self, number: int) -> None:
        """Body of one worker's thread."""
        worker = self._workers[number]
        try:
            with worker:
                self._say(WorkerState(number, "starting"))
                self._on_ready(worker.start())
                self._say(WorkerState(number, "fuzzing"))
                while batch := self._next_batch():
                    for ran in worker.fuzz(batch):
                        self._take(number, worker, ran)
                        if self._stop.is_set():
                            break
        except Stopped:
            pass
        except (OutputError, TargetError, TraceError, InternalError) as error:
            self._records.put(error)
        except Exception as error:
            self._records.put(InternalError(f"{type(error).__name__}: {error}", traceback.format_exc()))
        self._say(WorkerState(number, "ended"))

    def _sing(self) -> None:
        """Body of the canary's thread."""
        try:
            self._canary = self._cage.run(self.settings.canaries)
            self._say(CanaryDone(self._canary))
        except Exception as error:
            self._records.put(InternalError(f"the canary failed: {error}", traceback.format_exc()))

    def _say(self, record: Record) -> None:
        self._records.put(record)

    def _on_ready(self, ready: Ready) -> None:
        check_keys(self.settings.overrides, ready.capabilities)
        with self._lock:
            self._capabilities = ready.capabilities
            if self._started is None:
                self._started = time.monotonic()

    def _next_batch(self) -> Fuzz | None:
        """The next few trace numbers, None if there is nothing left to do."""
        settings = self.settings
        with self._lock:
            left = BATCH if settings.traces is None else settings.traces - self._next
            if self._stop.is_set() or left <= 0:
                return None
            first, count = self._next, min(left, BATCH)
            self._next += count
        return Fuzz(settings.seed, first, count, settings.overrides, settings.twice_every)

    def _take(self, number: int, worker: Worker, ran: Ran) -> None:
        """Count a trace.

        The first of its signature is saved here and now, then confirmed and reduced.
        """
        violation, steps = ran.outcome.violation, self.settings.steps
        claimed = None
        with self._lock:
            self._traces += 1
            self._steps += ran.outcome.steps
            self._exercised.update(ran.outcome.exercised)
            self._reached.update(ran.outcome.reached)
            self._lost += bool(ran.lost)
            over = steps is not None and self._steps >= steps
            if violation and ran.trace:
                claimed = self.store.claim(violation, ran.index, ran.trace)
            if claimed:
                self._busy.add(number)
        self._say(TraceDone(number, ran.index, ran.outcome.steps, violation.signature if violation else ""))
        if ran.lost:
            self._say(WorkerLost(number, ran.index, ran.lost))
        if over:
            self.stop("steps")
        if claimed and violation and ran.trace:
            self._say(Found(claimed[0]))
            self._say(WorkerState(number, f"reducing {violation.signature}"))
            left = self._left()
            seconds = self.settings.reduce_seconds
            if left is not None:
                seconds = min(seconds, max(left, OVERTIME_SECONDS))
            case = Case(self.store, self._lock, worker, self._say, seconds)
            case.investigate(violation, ran.trace, earlier=claimed[1])
            self._busy.discard(number)
            self._say(WorkerState(number, "fuzzing"))
