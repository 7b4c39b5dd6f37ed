"""What a campaign gets from a worker for its traces: `Ran` for one, `Counts` for many of which only totals matter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from ...targets.base.trace import Trace
from ..judge.outcome import Outcome
from ..judge.violation import Violation


class Ran(Struct, frozen=True):
    """One trace of a campaign.

    `lost` says how its worker was lost if that did not happen again; `flaky` is that loss as a violation, None for a
    memory limit, which many traces reach together. `seconds` is CPU time, or the time waited where the worker was lost.
    `lines` are lines of the engine, by module, that are new to its worker process; `species` are those that this
    process has not reported often enough. `took` are seconds of its worker by what they went into (`stopwatch`).
    """

    index: int
    outcome: Outcome
    trace: Trace | None = None
    lost: str = ""
    flaky: Violation | None = None
    seconds: float = 0.0
    lines: Mapping[str, Sequence[int]] = {}
    species: Sequence[int] = ()
    took: Mapping[str, float] = {}


class Counts(Struct, frozen=True):
    """Totals of many traces of which nothing else is reported. Each number is in `indexes` once.

    lost       worker processes that were lost and replaced
    repeats    failing traces by signature, all of signatures that the campaign has met before
    seconds    CPU time
    species    of traces that reported any, by number
    took       seconds of workers, by what they went into
    """

    indexes: Sequence[int]
    steps: int
    exercised: Mapping[str, int]
    reached: Mapping[str, int]
    lost: int = 0
    repeats: Mapping[str, int] = {}
    seconds: float = 0.0
    species: Mapping[int, Sequence[int]] = {}
    took: Mapping[str, float] = {}
