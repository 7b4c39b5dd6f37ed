"""Settings of a campaign, and everything that its workers share, behind one lock.

The state on disk is exact: a finding and the number of the trace that failed are written in one go, so a campaign that
was killed at any moment continues without losing a finding or counting a trace twice (`progress`, `resume`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock

from msgspec import Struct, structs

from ...targets.base.launch import Launch
from ...targets.base.protocol import Capabilities
from ...targets.base.trace import Trace
from ..events import CampaignEvent, Canary, Finding, Found, Improved, Notice, Reason, Summary
from ..findings.fixes import Fixes
from ..findings.known import Known, reason_for
from ..findings.store import FindingStore, OutputError
from ..findings.triage import BugHistory
from ..findings.watch import KnownBugs
from ..generate.overrides import check_overrides
from ..lockstep.state_catalogue import required_oracles, required_states
from ..oracles import applicable
from ..traces.violation import Violation
from ..workers.losses import Ran
from ..workers.messages import Fuzz, Overrides, Ready
from .corpus import CampaignCorpus
from .trace_counts import Progress

BATCH = 8


class Settings(Struct, frozen=True, kw_only=True):
    """Settings of a campaign. Without any limit it runs until it is stopped.

    seconds, steps, traces    limits
    trace_seconds     time limit of one trace; a trace that takes longer is a hang
    reduce_seconds    time limit for the reduction of each finding
    memory_limit      bytes for each worker, 0 for none
    twice_every       every so many traces run twice, to find nondeterminism; 0 for none
    canaries          broken targets, started as `canary_launch`: the campaign is blind if it finds none of them
    earlier           the last state of this very campaign if it was killed or interrupted
    left_behind       findings of another, earlier campaign in this folder
    known             acknowledged bugs
    fixes             known bugs for this target, with those whose patch is in effect
    last              the last state of another, earlier campaign in this folder
    history           bugs of earlier campaigns in this folder: those that are not met are tested again
    """

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
    canary_launch: Launch = Launch(sys.executable, {})
    earlier: Summary | None = None
    left_behind: Sequence[Finding] = ()
    known: Sequence[Known] = ()
    fixes: Fixes | None = None
    last: Summary | None = None
    history: BugHistory = {}


class Claim(Struct, frozen=True):
    """A finding that has yet to be confirmed and reduced. `shorter` is the trace of an earlier campaign."""

    finding: Finding
    shorter: Trace | None


class CampaignState:
    """The shared state. Methods may be called from any thread; `lock` guards changes to findings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lock = Lock()
        self.stopping = Event()
        self.started = Event()
        self.events: SimpleQueue[CampaignEvent | Exception] = SimpleQueue()
        self.store = FindingStore(settings.out, settings.target)
        self.corpus = CampaignCorpus(settings.out)
        self.known_bugs = KnownBugs(settings.fixes, settings.last)
        self.reason: Reason | None = None
        self.canary: Canary | None = None
        self._progress = Progress(settings.earlier)
        self._capabilities: Capabilities | None = None
        self._started: float | None = None
        self._keeping = True
        if settings.earlier:
            self.canary = settings.earlier.canary
            self.store.resume(
                [structs.replace(one, known=self._known(one.signature)) for one in settings.earlier.findings]
            )

    @property
    def began(self) -> bool:
        """True once a worker was ready: then the clock runs."""
        return self._started is not None

    def ready(self, ready: Ready) -> None:
        """Start the clock when the first worker is ready. Raises TraceError for overrides that the target lacks."""
        check_overrides(self.settings.overrides, ready.capabilities)
        with self.lock:
            self._capabilities = ready.capabilities
            if self._started is None:
                self._started = time.monotonic()
        self.started.set()

    def emit(self, record: CampaignEvent) -> None:
        """Report an event to the reader of the campaign."""
        self.events.put(record)

    def spent(self) -> float:
        """Return the seconds since the start, those before a kill included."""
        return self._progress.seconds + (time.monotonic() - self._started if self._started else 0.0)

    def left(self) -> float | None:
        """Return the seconds left, None without a limit or before the start."""
        if self.settings.seconds is None or self._started is None:
            return None
        return max(self.settings.seconds - self.spent(), 0.0)

    def next_batch(self) -> Fuzz | None:
        """Return the next few trace numbers, None if there is nothing left to do."""
        settings = self.settings
        with self.lock:
            batch = range(0) if self.stopping.is_set() else self._progress.allot(BATCH, settings.traces)
            wanted = self.corpus.wanted(self._states()) if self._keeping else []
        if not batch:
            return None
        return Fuzz(settings.seed, batch.start, len(batch), settings.overrides, settings.twice_every, wanted)

    def take(self, ran: Ran) -> Claim | None:
        """Count a trace. If its violation is new, it is on disk when this returns, together with the count.

        A loss of the worker that did not happen again is a finding, too, but one that cannot be reduced.
        """
        violation, trace = ran.outcome.violation, ran.trace
        with self.lock:
            claim = self._claim(violation, trace, ran.index) if violation and trace else None
            loss = self._claim(ran.flaky, trace, ran.index) if ran.flaky and trace else None
            if loss:
                finding = self.store.settle(loss.finding.signature, reproduced=False, shown=0, tried=1)
                self.emit(Found(finding))
                self.emit(Improved(finding))
            self._progress.count(ran)
            if trace and not violation:
                self._keep(trace, ran.outcome.reached, None)
            if claim or loss:
                self.store.save_state(self._summary())
        return claim

    def claim(self, violation: Violation, trace: Trace, index: int) -> Claim | None:
        """Return the claim for a violation of a trace that is not counted, None if its signature was met before."""
        with self.lock:
            return self._claim(violation, trace, index)

    def _claim(self, violation: Violation, trace: Trace, index: int) -> Claim | None:
        claimed = self.store.claim(violation, index, trace, self._known(violation.signature))
        return Claim(*claimed) if claimed else None

    def _known(self, signature: str) -> str:
        return reason_for(self.settings.known, signature, self.settings.target)

    def keep(self, trace: Trace, reached: dict[str, int], path: Path) -> None:
        """Decide again about a trace of the corpus."""
        with self.lock:
            self._keep(trace, reached, path)

    def _keep(self, trace: Trace, reached: dict[str, int], path: Path | None) -> None:
        """Keep a trace if it reaches rare states. A corpus that cannot be written does not end the campaign."""
        if not self._keeping:
            return
        try:
            self.corpus.offer(trace, reached, self._states(), path)
        except OutputError as error:
            self._keeping = False
            self.emit(Notice(f"{error}: no more traces are kept in the corpus"))

    @property
    def out_of_steps(self) -> bool:
        """True if the step limit is reached."""
        return self.settings.steps is not None and self._progress.steps >= self.settings.steps

    @property
    def resumed(self) -> int:
        """Number of traces that ran before a kill."""
        return self.settings.earlier.traces if self.settings.earlier else 0

    def summary(self) -> Summary:
        """Return the totals so far."""
        with self.lock:
            return self._summary()

    def save(self) -> Summary:
        """Write the totals so far to disk and return them. Raises OutputError."""
        with self.lock:
            summary = self._summary()
            self.store.save_state(summary)
        return summary

    def _states(self) -> list[str]:
        return required_states(self._capabilities, self.settings.overrides) if self._capabilities else []

    def _oracles(self) -> list[str]:
        return required_oracles(self._capabilities, self.settings.overrides) if self._capabilities else []

    def _summary(self) -> Summary:
        settings, progress, states = self.settings, self._progress, self._states()
        oracles = applicable(self._capabilities) if self._capabilities else []
        return Summary(
            target=settings.target,
            version=settings.launch.version,
            seed=settings.seed,
            overrides=settings.overrides,
            exit_reason=self.reason,
            traces=progress.traces,
            steps=progress.steps,
            seconds=round(self.spent(), 3),
            findings=list(self.store.findings.values()),
            exercised=dict.fromkeys(oracles, 0) | progress.exercised,
            reached=dict.fromkeys(states, 0) | progress.reached,
            never_exercised=[oracle for oracle in self._oracles() if not progress.exercised[oracle]],
            never_reached=[state for state in states if not progress.reached[state]],
            lost_workers=progress.lost,
            canary=self.canary,
            done=progress.done,
            beyond=sorted(progress.beyond),
            known_bugs=self.known_bugs.reports(self.store.findings.values(), progress.traces),
        )
