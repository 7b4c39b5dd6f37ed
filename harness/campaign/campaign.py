"""A campaign: many traces on several workers for a budget. Yields events; prints nothing.

One thread for each worker (`worker_loop`), which is a process here or on a node of a cluster: it takes the next few
trace numbers and has them run. What fails is saved at once, and looked into in a share of the workers' time
(`triage`). Everything shared is in `shared_state`, behind one lock. The first worker that is ready starts the clock.
After the last trace, bugs of earlier campaigns that this one did not meet are tested again. Two more threads run
beside the workers: the self-test, and the traces of known bugs on the unpatched target.

Whatever ends a campaign short of SIGKILL, `CampaignEnded` is its last event: outputs rely on that.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator, Iterator
from itertools import count
from queue import Empty
from threading import Thread
from typing import TYPE_CHECKING

from msgspec import structs

from ...targets.base.launch import WORKER, WORKERS
from ...targets.base.protocol import TargetError
from ...targets.base.trace import TraceError
from ..campaign_events import (
    CampaignEnded,
    CampaignEvent,
    CampaignStarted,
    CanaryDone,
    Found,
    Improved,
    KnownChecked,
    Notice,
    Tick,
)
from ..campaign_summary import Reason, Summary
from ..group.findings.finding_store import OutputError
from ..workers.device_sharing import served
from ..workers.protocol import OpenWorker
from ..workers.worker_client import InternalError, Stopped, WorkerClient
from .canary import CanaryRun, share
from .retest import retest, unmet
from .schedule import Schedule
from .shared_state import CampaignState, Settings
from .worker_loop import WorkerLoop, plan_chores

if TYPE_CHECKING:  # a worker of a cluster's node has no Hypothesis
    from ..draw.hypothesis_traces import HypothesisTraces

__all__ = ["Campaign", "Settings"]

TICK_SECONDS = 0.25
STATE_SECONDS = 5.0
HYPOTHESIS_FOLDER = "hypothesis"
"""Where Hypothesis keeps its database, in the output folder."""


class Campaign:
    """Runs once.

    `run` is a generator to be read to its end; `stop` may be called from a signal handler. `publish` is called when
    files have changed, before a finding is reported; it may raise OutputError.
    """

    def __init__(
        self, settings: Settings, open_worker: OpenWorker | None = None, publish: Callable[[], None] = lambda: None
    ) -> None:
        self.settings = settings
        self._publish = publish
        self._open_worker = open_worker or self._open_here
        self._numbers = count()
        self._launch = settings.launch
        """How to start a worker on this machine; while traces run, one that uses what all of them share."""
        self._state = CampaignState(settings)
        self._traces = self._hypothesis_traces() if settings.source == "hypothesis" else None
        self._loops: list[WorkerLoop] = []
        self._canary_run = CanaryRun(
            settings.canary_launch,
            settings.seed,
            settings.overrides,
            share(settings.seconds),
            settings.memory_limit,
            settings.workload,
        )
        unpatched = settings.fixes.unpatched if settings.fixes else settings.launch
        self._known_worker = WorkerClient(settings.target, unpatched, settings.trace_seconds, settings.memory_limit)
        self._retest_worker = self._open_worker(lambda: self._state.reason != "interrupted")

    def _hypothesis_traces(self) -> HypothesisTraces:
        from ..draw.hypothesis_traces import HypothesisTraces

        settings = self.settings
        return HypothesisTraces(
            settings.seed, settings.overrides, settings.out / HYPOTHESIS_FOLDER, self._state.avoid, settings.workload
        )

    def _open_here(self, _: object) -> WorkerClient:
        """Return a worker process on this machine. It is told how many share the machine and its devices, and which of
        them it is."""
        settings = self.settings
        place = {WORKERS: str(settings.jobs), WORKER: str(next(self._numbers))}
        launch = structs.replace(self._launch, env={**self._launch.env, **place})
        watched = settings.changed.watched if settings.changed else {}
        if self._traces:
            from ..workers.hypothesis_worker import HypothesisWorker

            return HypothesisWorker(
                self._traces, settings.target, launch, settings.trace_seconds, settings.memory_limit, watched
            )
        return WorkerClient(settings.target, launch, settings.trace_seconds, settings.memory_limit, watched)

    def run(self) -> Generator[CampaignEvent]:
        """Yield all events.

        The caller keeps other campaigns out of the folder (`resume.exclusive`), from before the settings are made of
        what is in it. Raises OutputError, TargetError, TraceError or InternalError after the last event; findings are
        on disk by then, and where there are new ones a TargetError is only a warning.
        """
        state, error = self._state, None
        try:
            yield from self._run_traces()
            state.reason = state.reason or "traces"
            if state.reason not in ("interrupted", "error"):
                state.check_ran()
                yield from self._retest()
        except Exception as raised:
            state.reason, error = "error", raised
        if warning := state.refused():
            yield Notice(warning)
        if isinstance(error, TargetError) and state.summary().new_findings:
            yield Notice(f"the campaign ended early: {error}")
            error = None  # the findings count more: a target may not start again after the crash that was found
        summary = state.summary()
        if state.began:  # else the folder still holds what an earlier campaign left
            try:
                summary = state.save()
            except OutputError as raised:
                error = error or raised
        yield CampaignEnded(summary)
        if error:
            raise error

    def _run_traces(self) -> Generator[CampaignEvent]:
        here = self.settings.jobs if self._open_worker == self._open_here else 0
        with served(self.settings.launch, here) as self._launch:
            yield from self._run_workers()

    def _run_workers(self) -> Generator[CampaignEvent]:
        settings, state = self.settings, self._state
        schedule = Schedule(state, plan_chores(state))
        for number in range(settings.jobs):
            self._loops.append(WorkerLoop(number, state, self._open_worker(schedule.has_work), schedule))
        threads = [Thread(target=loop.work, daemon=True) for loop in self._loops]
        if settings.canaries and (state.canary is None or state.canary.state == "unfinished"):
            threads.append(Thread(target=self._run_canary, daemon=True))
        if settings.fixes:
            threads.append(Thread(target=self._check_known_bugs, daemon=True))
        for thread in threads:
            thread.start()
        try:
            began = False
            for event in self._collect(threads):
                if not began and state.began:
                    began = True
                    version, out, last = settings.launch.version, str(settings.out), settings.last
                    yield CampaignStarted(
                        settings.target,
                        version,
                        settings.seed,
                        settings.jobs,
                        out,
                        last.findings if last else (),
                        state.resumed,
                        settings.triage_share,
                        last.target if last else "",
                        last.asked if last else (),
                    )
                yield event
        finally:
            self._halt(everything=True)
            for thread in threads:
                thread.join()
            if self._state.recognizer:
                self._state.recognizer.close()
                self._state.recognizer = None

    def _retest(self) -> Iterator[CampaignEvent]:
        """Test bugs of earlier campaigns again; what fails in another way is a finding of this one. A target that
        cannot be started any more is only a warning here."""
        state = self._state
        bugs = unmet(self.settings.history, state.summary())
        if not bugs:
            return
        try:
            with self._retest_worker as worker:
                loop = WorkerLoop(0, state, worker, Schedule(state, []))
                for rerun in retest(bugs, worker):
                    yield rerun.event
                    for violation in rerun.others:
                        try:
                            loop.look_into_at_once(violation, rerun.trace)
                        finally:  # what is found is reported, also if the target does not start again
                            while not state.events.empty():
                                yield self._checked(state.events.get())
        except Stopped:
            state.reason = "interrupted"
        except TargetError as error:
            yield Notice(f"earlier bugs were not tested again: {error}")

    def stop(self, reason: Reason) -> None:
        """End the campaign. A limit lets reductions finish; "interrupted" does not. The check of known bugs ends with
        the time: on a GPU it can take minutes a trace."""
        if self._state.reason is None:
            self._state.reason = reason
        if reason == "time":
            self._known_worker.stop()
        self._halt(everything=reason == "interrupted")
        if reason == "interrupted":
            self._retest_worker.stop()

    def summary(self) -> Summary:
        """Return the totals so far."""
        return self._state.summary()

    def _collect(self, threads: list[Thread]) -> Iterator[CampaignEvent]:
        """Yield events as they come, a tick now and then, until all threads have ended."""
        state = self._state
        saved = ticked = time.monotonic()
        while True:
            alive = any(thread.is_alive() for thread in threads)
            try:
                event = state.events.get(timeout=TICK_SECONDS if alive else 0)
            except Empty:
                if not alive:
                    return
            else:
                yield self._checked(event)
            now = time.monotonic()
            if state.left() == 0:
                self.stop("time")
            elif state.out_of_steps and (state.triage.findings or any(loop.busy for loop in self._loops)):
                state.reason = state.reason or "steps"  # no more traces; the findings are finished
            elif state.out_of_steps:
                self.stop("steps")
            elif now - ticked >= TICK_SECONDS and state.is_below_risk():
                self.stop("risk")
            if now - ticked >= TICK_SECONDS:
                ticked = now
                yield Tick(state.summary(), state.left())
            if now - saved >= STATE_SECONDS and state.began:
                saved = now
                state.save()
                self._publish()

    def _checked(self, event: CampaignEvent | Exception) -> CampaignEvent:
        """Return an event, files of findings being published before it; raise an error of a worker."""
        if isinstance(event, Exception):
            raise event
        if isinstance(event, Found | Improved):
            self._publish()
        return event

    def _halt(self, *, everything: bool) -> None:
        self._state.stopping.set()
        if self._state.recognizer:
            self._state.recognizer.stop()
        if everything:
            self._canary_run.stop()
            self._known_worker.stop()
        for loop in self._loops:
            if everything or not loop.busy:
                loop.worker.stop()

    def _run_canary(self) -> None:
        """Run the self-test: the body of its thread. It begins once the target has accepted the configuration."""
        while not self._state.started.wait(TICK_SECONDS):
            if self._state.stopping.is_set():
                return
        try:
            self._state.canary = canary = self._canary_run.run(self.settings.canaries)
            self._state.emit(CanaryDone(canary))
        except Exception as error:
            self._state.events.put(InternalError(f"the self-test failed: {error}", traceback.format_exc()))

    def _check_known_bugs(self) -> None:
        """Run the traces of known bugs: the body of a thread. It begins when the first worker is ready."""
        state = self._state
        while not state.started.wait(TICK_SECONDS):
            if state.stopping.is_set():
                return
        for notice in state.known_bugs.notices:
            state.emit(Notice(notice))
        try:
            with self._known_worker as worker:
                for bug in state.known_bugs.check(worker):
                    state.emit(KnownChecked(bug))
        except Stopped:
            return
        except (TargetError, TraceError) as error:
            state.emit(Notice(f"known bugs were not tested: {error}"))
        except Exception as error:
            state.events.put(InternalError(f"the check of known bugs failed: {error}", traceback.format_exc()))
