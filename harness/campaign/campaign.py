"""A campaign: many traces on several workers for a budget. Yields records; prints nothing.

One thread for each worker process (`shift`): it takes the next few trace numbers, runs them, and when it meets a
signature first, saves, confirms and reduces that finding itself before it goes on. All shared state is at the desk,
behind one lock. The first worker that is ready starts the clock.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Generator, Iterator
from contextlib import suppress
from queue import Empty
from threading import Thread

from ..detection.canary import Cage, share
from ..events import Began, CanaryDone, Ended, Reason, Record, Summary, Tick
from ..findings.store import OutputError
from ..workers.client import InternalError, Worker
from .resume import alone
from .state import Desk, Settings
from .worker_loop import Shift, plan_chores

__all__ = ["Campaign", "Settings"]

TICK_SECONDS = 0.25
STATE_SECONDS = 5.0


class Campaign:
    """Runs once.

    `run` is a generator to be read to its end; `stop` may be called from a signal handler.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._desk = Desk(settings)
        self._shifts: list[Shift] = []
        self._cage = Cage(settings.canary_launch, settings.seed, settings.overrides, share(settings.seconds))

    def run(self) -> Generator[Record]:
        """All records.

        Raises OutputError, TargetError, TraceError or InternalError; findings are on disk by then.
        """
        with alone(self.settings.out):
            yield from self._run()

    def _run(self) -> Generator[Record]:
        settings, desk = self.settings, self._desk
        earlier = desk.store.earlier()
        chores = plan_chores(desk)
        for number in range(settings.jobs):
            worker = Worker(settings.target, settings.launch, settings.trace_seconds, settings.memory_limit)
            self._shifts.append(Shift(number, desk, worker, chores))
        threads = [Thread(target=shift.work, daemon=True) for shift in self._shifts]
        if settings.canaries and (desk.canary is None or desk.canary.state == "unfinished"):
            threads.append(Thread(target=self._sing, daemon=True))
        for thread in threads:
            thread.start()
        try:
            began = False
            for record in self._collect(threads):
                if not began and desk.began:
                    began = True
                    version, out = settings.launch.version, str(settings.out)
                    yield Began(settings.target, version, settings.seed, settings.jobs, out, earlier, desk.resumed)
                yield record
        finally:
            self._halt(everything=True)
            for thread in threads:
                thread.join()
        desk.reason = desk.reason or "traces"
        yield Ended(desk.save())

    def stop(self, reason: Reason) -> None:
        """End the campaign. A limit lets reductions end; "interrupted" does not."""
        if self._desk.reason is None:
            self._desk.reason = reason
        self._halt(everything=reason == "interrupted")

    def summary(self) -> Summary:
        """The state of things."""
        return self._desk.summary()

    def _collect(self, threads: list[Thread]) -> Iterator[Record]:
        """Records as they come, a tick now and then, until all threads have ended."""
        desk = self._desk
        saved = ticked = time.monotonic()
        while True:
            alive = any(thread.is_alive() for thread in threads)
            try:
                record = desk.records.get(timeout=TICK_SECONDS if alive else 0)
            except Empty:
                if not alive:
                    return
            else:
                if isinstance(record, Exception):
                    desk.reason = "error"
                    with suppress(OutputError):
                        desk.save()
                    raise record
                yield record
            now = time.monotonic()
            if desk.left() == 0:
                self.stop("time")
            elif desk.out_of_steps:
                self.stop("steps")
            if now - ticked >= TICK_SECONDS:
                ticked = now
                yield Tick(desk.summary(), desk.left())
            if now - saved >= STATE_SECONDS and desk.began:
                saved = now
                desk.save()

    def _halt(self, *, everything: bool) -> None:
        self._desk.stopping.set()
        if everything:
            self._cage.stop()
        for shift in self._shifts:
            if everything or not shift.busy:
                shift.worker.stop()

    def _sing(self) -> None:
        """Body of the canary's thread."""
        try:
            self._desk.canary = canary = self._cage.run(self.settings.canaries)
            self._desk.say(CanaryDone(canary))
        except Exception as error:
            self._desk.records.put(InternalError(f"the canary failed: {error}", traceback.format_exc()))
