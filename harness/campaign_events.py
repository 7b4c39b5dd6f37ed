"""Events of a campaign: plain data, imported by everything that produces or consumes them.

Producers are the campaign and its workers; consumers implement `face.outputs.handler.EventHandler`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from .campaign_summary import Canary, Finding, KnownBug, Summary


class CampaignStarted(Struct, frozen=True):
    """The first worker is ready; the clock runs.

    earlier    findings of an earlier campaign in this folder
    earlier_target, earlier_asked    that campaign's target, and options of its command (`Summary.asked`)
    triage_share    the share of the workers' time that may go into failures
    resumed    traces of this campaign that ran before it was interrupted or killed
    """

    target: str
    version: str
    seed: int
    jobs: int
    out: str
    earlier: Sequence[Finding]
    resumed: int = 0
    triage_share: float = 0.0
    earlier_target: str = ""
    earlier_asked: Sequence[str] = ()


class WorkerState(Struct, frozen=True):
    """The current activity of a worker, in a word or two. `node` is "" on this machine, here and below."""

    worker: int
    state: str
    node: str = ""


class TraceDone(Struct, frozen=True):
    """A trace has ended."""

    worker: int
    index: int
    steps: int
    signature: str = ""
    node: str = ""


class TracesDone(Struct, frozen=True):
    """Traces of a node of a cluster have ended; only their totals are reported."""

    worker: int
    traces: int
    steps: int
    node: str = ""


class LinesReached(Struct, frozen=True):
    """A trace reached lines of the engine's cache modules that no earlier one had reached.

    lines    lines by module
    total    lines of the whole campaign so far
    """

    index: int
    lines: Mapping[str, Sequence[int]]
    total: int


class Found(Struct, frozen=True):
    """The first failure with a new signature; its trace is on disk."""

    finding: Finding
    node: str = ""


class Improved(Struct, frozen=True):
    """The trace of a finding got shorter, or the reducer has finished."""

    finding: Finding


class Recognized(Struct, frozen=True):
    """A finding was recognized as a known bug with a patch (`Finding.cause`)."""

    finding: Finding


class Graded(Struct, frozen=True):
    """It was found out how much a finding matters (`Finding.severity`)."""

    finding: Finding


class Merged(Struct, frozen=True):
    """A finding turned out to have the same cause as another one, `finding`, and is part of it now."""

    name: str
    finding: Finding


class WorkerLost(Struct, frozen=True):
    """A worker crashed, hung or reached its memory limit, and its trace ran clean in a new worker."""

    worker: int
    index: int
    reason: str
    node: str = ""


class NotRun(Struct, frozen=True):
    """A trace did not run, alone on its node, either: the environment lacked something (`judge.environment_fault`). It
    is not counted, and shows nothing about the engine."""

    worker: int
    index: int
    kind: str
    message: str
    node: str = ""


class WorkerGivenUp(Struct, frozen=True):
    """The environment could not carry all workers: one has ended, and `left` go on (on its node, if it has a name).

    index      the trace that failed with all workers and ran alone; -1 if the worker did not start
    """

    worker: int
    left: int
    index: int
    kind: str
    message: str
    node: str = ""


class NodeLeft(Struct, frozen=True):
    """A node of the cluster was lost or refused. Its workers go on elsewhere; what they had not reported runs again."""

    node: str
    state: Literal["lost", "refused"]
    reason: str


class CanaryDone(Struct, frozen=True):
    """The self-test has ended."""

    canary: Canary


class KnownChecked(Struct, frozen=True):
    """The traces of a known bug ran on the unpatched target."""

    bug: KnownBug


class Retested(Struct, frozen=True):
    """The trace of a bug that this campaign did not meet ran again: `shown` of `tried` runs failed."""

    target: str
    signature: str
    shown: int
    tried: int

    @property
    def fixed(self) -> bool:
        """True if no run failed."""
        return self.shown == 0 < self.tried


class Notice(Struct, frozen=True):
    """A warning about the campaign itself, for example that a broken file was put aside."""

    text: str


class Tick(Struct, frozen=True):
    """Time has passed. `left` is in seconds, None without a time limit."""

    summary: Summary
    left: float | None


class CampaignEnded(Struct, frozen=True):
    """The last event, whatever ended the campaign."""

    summary: Summary


CampaignEvent = (
    CampaignStarted
    | WorkerState
    | TraceDone
    | TracesDone
    | LinesReached
    | Found
    | Improved
    | Recognized
    | Graded
    | Merged
    | WorkerLost
    | NotRun
    | WorkerGivenUp
    | NodeLeft
    | CanaryDone
    | KnownChecked
    | Retested
    | Notice
    | Tick
    | CampaignEnded
)
