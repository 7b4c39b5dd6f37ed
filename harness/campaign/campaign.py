"""A campaign: many traces on several workers for a budget. Yields records; prints nothing.

One thread for each worker process (`worker_loop`): it takes the next few trace numbers, runs them, and when it meets a
signature first, saves, confirms and reduces that finding itself before it goes on. All shared state is at the state,
behind one lock. The first worker that is ready starts the clock.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Generator, Iterator
from contextlib import suppress
from queue import Empty
from threading import Thread

from ..detection.canary import CanaryRun, share
from ..events import CampaignEnded, CampaignEvent, CampaignStarted, CanaryDone, Reason, Summary, Tick
from ..findings.store import OutputError
from ..workers.client import InternalError, WorkerClient
from .resume import alone
from .state import CampaignState, Settings
from .worker_loop import WorkerLoop, plan_chores

__all__ = ["Campaign", "Settings"]

TICK_SECONDS = 0.25
STATE_SECONDS = 5.0


class Campaign:
    """Runs once.

    `run` is a generator to be read to its end; `stop` may be called from a signal handler.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._state = CampaignState(settings)
        self._loops: list[WorkerLoop] = []
        self._canary_run = CanaryRun(settings.canary_launch, settings.seed, settings.overrides, share(settings.seconds))

    def run(self) -> Generator[CampaignEvent]:
        """All records.

        Raises OutputError, TargetError, TraceError or InternalError; findings are on disk by then.
        """
        with alone(self.settings.out):
            yield from self._run()

    def _run(self) -> Generator[CampaignEvent]:
        settings, state = self.settings, self._state
        earlier = state.store.earlier()
        chores = plan_chores(state)
        for number in range(settings.jobs):
            worker = WorkerClient(settings.target, settings.launch, settings.trace_seconds, settings.memory_limit)
            self._loops.append(WorkerLoop(number, state, worker, chores))
        threads = [Thread(target=loop.work, daemon=True) for loop in self._loops]
        if settings.canaries and (state.canary is None or state.canary.state == "unfinished"):
            threads.append(Thread(target=self._run_canary, daemon=True))
        for thread in threads:
            thread.start()
        try:
            began = False
            for record in self._collect(threads):
                if not began and state.began:
                    began = True
                    version, out = settings.launch.version, str(settings.out)
                    yield CampaignStarted(
                        settings.target, version, settings.seed, settings.jobs, out, earlier, state.resumed
                    )
                yield record
        finally:
            self._halt(everything=True)
            for thread in threads:
                thread.join()
        state.reason = state.reason or "traces"
        yield CampaignEnded(state.save())

    def stop(self, reason: Reason) -> None:
        """End the campaign. A limit lets reductions end; "interrupted" does not."""
        if self._state.reason is None:
            self._state.reason = reason
        self._halt(everything=reason == "interrupted")

    def summary(self) -> Summary:
        """The state of things."""
        return self._state.summary()

    def _collect(self, threads: list[Thread]) -> Iterator[CampaignEvent]:
        """Records as they come, a tick now and then, until all threads have ended."""
        state = self._state
        saved = ticked = time.monotonic()
        while True:
            alive = any(thread.is_alive() for thread in threads)
            try:
                record = state.records.get(timeout=TICK_SECONDS if alive else 0)
            except Empty:
                if not alive:
                    return
            else:
                if isinstance(record, Exception):
                    state.reason = "error"
                    with suppress(OutputError):
                        state.save()
                    raise record
                yield record
            now = time.monotonic()
            if state.left() == 0:
                self.stop("time")
            elif state.out_of_steps:
                self.stop("steps")
            if now - ticked >= TICK_SECONDS:
                ticked = now
                yield Tick(state.summary(), state.left())
            if now - saved >= STATE_SECONDS and state.began:
                saved = now
                state.save()

    def _halt(self, *, everything: bool) -> None:
        self._state.stopping.set()
        if everything:
            self._canary_run.stop()
        for loop in self._loops:
            if everything or not loop.busy:
                loop.worker.stop()

    def _run_canary(self) -> None:
        """Body of the canary's thread."""
        try:
            self._state.canary = canary = self._canary_run.run(self.settings.canaries)
            self._state.emit(CanaryDone(canary))
        except Exception as error:
            self._state.records.put(InternalError(f"the canary failed: {error}", traceback.format_exc()))
