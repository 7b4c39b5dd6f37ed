"""What a campaign was asked to do, and all that its workers share, behind one lock.

The state on disk is exact: a finding and the number of the trace that showed it are written in one go, so a campaign
that was killed at any moment goes on without losing a finding or counting a trace twice (`progress`, `resume`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock

from msgspec import Struct

from ...targets.base.launch import Launch
from ...targets.base.protocol import Capabilities
from ...targets.base.trace import Trace
from ..events import CampaignEvent, Canary, Finding, Notice, Reason, Summary
from ..findings.store import FindingStore, OutputError
from ..generate.overrides import check_overrides
from ..lockstep.state_catalogue import required_oracles, required_states
from ..oracles import applicable
from ..traces.violation import Violation
from ..workers.client import Ran
from ..workers.messages import Fuzz, Overrides, Ready
from .corpus import CampaignCorpus
from .progress import Progress

BATCH = 8


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
    earlier: Summary | None = None
    """The last state of this very campaign, if it was killed or interrupted."""


class Claim(Struct, frozen=True):
    """A finding that is new here: somebody has to confirm and reduce it. `shorter` is an earlier campaign's trace."""

    finding: Finding
    shorter: Trace | None


class CampaignState:
    """The shared state. Methods may be called from any thread; `lock` is for those who change findings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.lock = Lock()
        self.stopping = Event()
        self.records: SimpleQueue[CampaignEvent | Exception] = SimpleQueue()
        self.store = FindingStore(settings.out, settings.target)
        self.corpus = CampaignCorpus(settings.out)
        self.reason: Reason | None = None
        self.canary: Canary | None = None
        self._progress = Progress(settings.earlier)
        self._capabilities: Capabilities | None = None
        self._started: float | None = None
        self._keeping = True
        if settings.earlier:
            self.canary = settings.earlier.canary
            self.store.findings = {finding.signature: finding for finding in settings.earlier.findings}

    @property
    def began(self) -> bool:
        """Whether a worker was ready: then the clock runs."""
        return self._started is not None

    def ready(self, ready: Ready) -> None:
        """A worker is ready. TraceError if the overrides mean nothing to the target."""
        check_overrides(self.settings.overrides, ready.capabilities)
        with self.lock:
            self._capabilities = ready.capabilities
            if self._started is None:
                self._started = time.monotonic()

    def emit(self, record: CampaignEvent) -> None:
        """For whoever reads the campaign."""
        self.records.put(record)

    def spent(self) -> float:
        """Seconds since the start, those before a kill included."""
        return self._progress.seconds + (time.monotonic() - self._started if self._started else 0.0)

    def left(self) -> float | None:
        """Seconds left, None without a limit or before the start."""
        if self.settings.seconds is None or self._started is None:
            return None
        return max(self.settings.seconds - self.spent(), 0.0)

    def next_batch(self) -> Fuzz | None:
        """The next few trace numbers, None if there is nothing left to do."""
        settings = self.settings
        with self.lock:
            batch = range(0) if self.stopping.is_set() else self._progress.allot(BATCH, settings.traces)
            wanted = self.corpus.wanted(self._states()) if self._keeping else []
        if not batch:
            return None
        return Fuzz(settings.seed, batch.start, len(batch), settings.overrides, settings.twice_every, wanted)

    def take(self, ran: Ran) -> Claim | None:
        """Count a trace. If its violation is new, it is on disk when this returns, together with the count."""
        violation, trace = ran.outcome.violation, ran.trace
        with self.lock:
            claim = self._claim(violation, trace, ran.index) if violation and trace else None
            self._progress.count(ran)
            if trace and not violation:
                self._keep(trace, ran.outcome.reached, None)
            if claim:
                self.store.save_state(self._summary())
        return claim

    def claim(self, violation: Violation, trace: Trace, index: int) -> Claim | None:
        """A violation of a trace that is not counted."""
        with self.lock:
            return self._claim(violation, trace, index)

    def _claim(self, violation: Violation, trace: Trace, index: int) -> Claim | None:
        claimed = self.store.claim(violation, index, trace)
        return Claim(*claimed) if claimed else None

    def keep(self, trace: Trace, reached: dict[str, int], path: Path) -> None:
        """Decide anew about a trace of the corpus."""
        with self.lock:
            self._keep(trace, reached, path)

    def _keep(self, trace: Trace, reached: dict[str, int], path: Path | None) -> None:
        """A corpus that cannot be written costs the next campaign time: no reason to end this one."""
        if not self._keeping:
            return
        try:
            self.corpus.offer(trace, reached, self._states(), path)
        except OutputError as error:
            self._keeping = False
            self.emit(Notice(f"{error}: no more traces are kept in the corpus"))

    @property
    def out_of_steps(self) -> bool:
        """Whether the step limit is reached."""
        return self.settings.steps is not None and self._progress.steps >= self.settings.steps

    @property
    def resumed(self) -> int:
        """Traces that ran before a kill."""
        return self.settings.earlier.traces if self.settings.earlier else 0

    def summary(self) -> Summary:
        """The state of things."""
        with self.lock:
            return self._summary()

    def save(self) -> Summary:
        """The state of things, on disk. Raises OutputError."""
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
        )
