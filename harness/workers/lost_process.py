"""What the loss of a worker process means: it crashed, hung, took too much memory, or something killed it.

A process that was lost for want of memory or a device (`Lost.fault`) says nothing about the engine: its trace did not
run. For any other loss, the trace at which it was lost runs again alone, in a new process. If that fails, the failure
is an ordinary finding. If it cannot run, as no new process starts, the loss is the result of the trace (`unrepeated`).
If it runs clean, the loss is one of three things (`judge_loss`):

    a memory limit              a warning: many traces reach it together, and the process is replaced by design
    a signal or a time limit    a flaky finding beside the clean result: a busy machine or another process can cause it
    anything else               the result of the trace: a process does not crash by itself
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct, structs

from ...targets.base.trace import Step, Trace, tag_of
from ..judge.environment_fault import EnvironmentFault
from ..judge.outcome import Outcome
from ..judge.verdict import Quoted, Value
from ..judge.violation import Violation
from .worker_process import TIME_LIMIT, Lost

MEMORY_LIMIT = "memory-limit"
"""Field of the violation of a process that takes too much memory."""
KILLED = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"})
"""Signals that usually come from another process."""
FROM_OUTSIDE = KILLED | {TIME_LIMIT}
"""Losses that a busy machine or another process can cause: the trace counts as what it showed when it ran again."""


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


def judge_loss(lost: Lost, index: int, trace: Trace, again: Outcome) -> Ran:
    """Return the result of a trace at which a process was lost, given its outcome when it ran again alone."""
    if again.violation:
        return Ran(index, again, trace)
    violation = _violation(lost, "lost-once")
    if lost.field == MEMORY_LIMIT:
        return Ran(index, again, trace, lost=violation.message)
    if lost.field in FROM_OUTSIDE:
        return Ran(index, again, trace, lost=violation.message, flaky=violation)
    return Ran(index, Outcome(violation, again.steps, again.events, {}, {}, 0), trace)


def unopened(index: int, trace: Trace | None, fault: EnvironmentFault) -> Ran:
    """Return the result of a trace that could not run for want of memory or a device."""
    return Ran(index, Outcome(None, 0, 0, {}, {}, 0, fault=fault), trace)


def unrepeated(lost: Lost, index: int, trace: Trace, reason: str) -> Ran:
    """Return the result of a trace at which a process was lost and that could not run again, for this reason."""
    violation = _violation(lost, "lost-unrepeated", reason=Quoted(reason))
    return Ran(index, Outcome(violation, 0, 0, {}, {}, 0), trace)


def _violation(lost: Lost, relation: str, **details: Value) -> Violation:
    return Violation(
        oracle=lost.kind,
        field=lost.field,
        relation=relation,
        details={"what": Quoted(lost.what), **details},
        observed=Quoted(lost.last_words),
    )


def was_killed(outcome: Outcome) -> bool:
    """Return True if a run ended because its process got a signal that usually comes from another process."""
    return outcome.violation is not None and outcome.violation.oracle == "CRASH" and outcome.violation.field in KILLED


def lost_outcome(lost: Lost, trace: Trace, event: int) -> Outcome:
    """Return a lost process as a finding at one event. Draining counts as the last event."""
    kind = ""
    with suppress(IndexError):
        kind = tag_of(trace.events[event])
    last = lost.last_words.splitlines()[-1:]
    said = _violation(lost, "process-lost", last=Quoted(last[0][:200]) if last else None)
    violation = structs.replace(said, event=event, event_kind=kind)
    steps = sum(isinstance(each, Step) for each in trace.events[: event + 1])
    return Outcome(violation, steps, event + 1, {}, {}, 0)
