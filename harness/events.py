"""What a campaign says while it runs. Consumers (console, JSON, reports) need nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

Reason = Literal["time", "steps", "traces", "interrupted", "error"]


class Finding(Struct, frozen=True):
    """All traces with one signature.

    trace       path of the smallest trace so far; `events` is its length
    index       of the first trace of the campaign that showed it
    count       traces that showed it
    reproduced  whether the trace showed it again when it was run alone
    shown, tried    how often its traces showed it when they were run alone
    reduced     whether the reducer has ended with it
    """

    signature: str
    oracle: str
    message: str
    step: int
    event: int
    events: int
    trace: str
    index: int
    count: int = 1
    reproduced: bool = True
    reduced: bool = False
    shown: int = 0
    tried: int = 0


class Canary(Struct, frozen=True):
    """How the campaign's own alarm test ended.

    state   "silent": no planted mutant was found, the campaign was blind; "unfinished": interrupted before it was
            known; "none": the overrides leave no mutant that is known to be within reach
    slug    the mutant planted last; `silent` are those that were not found
    traces, seconds    over all mutants planted; CPU seconds
    """

    slug: str
    found: bool
    state: Literal["found", "silent", "unfinished", "none"]
    signature: str
    traces: int
    seconds: float
    silent: Sequence[str] = ()


class Summary(Struct, frozen=True):
    """Everything that a campaign has to show; also its state file.

    exercised, reached                every applicable oracle and required state, those with 0
    included never_exercised, never_reached    those with 0: not empty means vacuous
    canary                            None if none was asked for, or while it has not ended
    done, beyond                      trace numbers that are counted: all below, and these
    """

    target: str
    version: str
    seed: int
    overrides: Mapping[str, object]
    exit_reason: Reason | None
    traces: int
    steps: int
    seconds: float
    findings: Sequence[Finding]
    exercised: Mapping[str, int]
    reached: Mapping[str, int]
    never_exercised: Sequence[str]
    never_reached: Sequence[str]
    lost_workers: int = 0
    canary: Canary | None = None
    done: int = 0
    beyond: Sequence[int] = ()

    @property
    def blind(self) -> bool:
        """Whether the alarm did not work where it had to."""
        return self.canary is not None and self.canary.state == "silent"

    @property
    def steps_per_second(self) -> float:
        """Over the whole campaign, reductions included."""
        return self.steps / self.seconds if self.seconds else 0.0


class CampaignStarted(Struct, frozen=True):
    """The first worker is ready; the clock runs.

    `earlier` are findings of an earlier campaign in this folder; `resumed` traces of this one ran before it was
    interrupted or killed.
    """

    target: str
    version: str
    seed: int
    jobs: int
    out: str
    earlier: Sequence[Finding]
    resumed: int = 0


class WorkerState(Struct, frozen=True):
    """What a worker does now, in a word or two."""

    worker: int
    state: str


class TraceDone(Struct, frozen=True):
    """A trace has ended."""

    worker: int
    index: int
    steps: int
    signature: str = ""


class Found(Struct, frozen=True):
    """A new signature; its trace is on disk."""

    finding: Finding


class Improved(Struct, frozen=True):
    """The trace of a finding got smaller, or the reducer has ended with it."""

    finding: Finding


class WorkerLost(Struct, frozen=True):
    """A worker died or hung and did not do so again with the same trace: a warning, no finding."""

    worker: int
    index: int
    reason: str


class CanaryDone(Struct, frozen=True):
    """The alarm has been tested."""

    canary: Canary


class Notice(Struct, frozen=True):
    """Something that people should know, and that is no finding: a broken file was put aside."""

    text: str


class Tick(Struct, frozen=True):
    """Time has passed. `summary` is the state of things."""

    summary: Summary
    left: float | None


class CampaignEnded(Struct, frozen=True):
    """The last record."""

    summary: Summary


CampaignEvent = (
    CampaignStarted
    | WorkerState
    | TraceDone
    | Found
    | Improved
    | WorkerLost
    | CanaryDone
    | Notice
    | Tick
    | CampaignEnded
)
