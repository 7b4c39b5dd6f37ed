"""What the loss of a worker process means: it crashed, hung, took too much memory, or something killed it.

The trace at which it was lost runs again alone, in a new process. If that fails, the failure is an ordinary finding. If
it cannot run, as no new process starts, the loss is the result of the trace (`unrepeated`).
If it runs clean, the loss is one of three things (`judge_loss`):

    a memory limit              a warning: many traces reach it together, and the process is replaced by design
    a signal or a time limit    a flaky finding beside the clean result: a busy machine or another process can cause it
    anything else               the result of the trace: a process does not crash by itself
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from ...targets.base.trace import Step, Trace
from ..judge.outcome import Outcome
from ..judge.violation import Violation
from .process import TIME_LIMIT, Lost

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
    `lines` are lines of the engine, by module, that are new to its worker process.
    """

    index: int
    outcome: Outcome
    trace: Trace | None = None
    lost: str = ""
    flaky: Violation | None = None
    seconds: float = 0.0
    lines: Mapping[str, Sequence[int]] = {}


class Counts(Struct, frozen=True):
    """Totals of many traces of which nothing else is reported. Each number is in `indexes` once.

    lost       worker processes that were lost and replaced
    repeats    failing traces by signature, all of signatures that the campaign has met before
    seconds    CPU time
    """

    indexes: Sequence[int]
    steps: int
    exercised: Mapping[str, int]
    reached: Mapping[str, int]
    lost: int = 0
    repeats: Mapping[str, int] = {}
    seconds: float = 0.0


def judge_loss(lost: Lost, index: int, trace: Trace, again: Outcome) -> Ran:
    """Return the result of a trace at which a process was lost, given its outcome when it ran again alone."""
    if again.violation:
        return Ran(index, again, trace)
    what = f"{lost.kind}: the target {lost.what} and did not when the trace ran again, alone"
    if lost.field == MEMORY_LIMIT:
        return Ran(index, again, trace, lost=what)
    violation = Violation(oracle=lost.kind, field=lost.field, message=what, observed=lost.last_words)
    if lost.field in FROM_OUTSIDE:
        return Ran(index, again, trace, lost=what, flaky=violation)
    return Ran(index, Outcome(violation, again.steps, again.events, {}, {}, 0), trace)


def unrepeated(lost: Lost, index: int, trace: Trace, reason: str) -> Ran:
    """Return the result of a trace at which a process was lost and that could not run again, for this reason."""
    what = f"{lost.kind}: the target {lost.what}, and the trace could not run again: {reason}"
    violation = Violation(oracle=lost.kind, field=lost.field, message=what, observed=lost.last_words)
    return Ran(index, Outcome(violation, 0, 0, {}, {}, 0), trace)


def was_killed(outcome: Outcome) -> bool:
    """Return True if a run ended because its process got a signal that usually comes from another process."""
    return outcome.violation is not None and outcome.violation.oracle == "CRASH" and outcome.violation.field in KILLED


def lost_outcome(lost: Lost, trace: Trace, event: int) -> Outcome:
    """Return a lost process as a finding at one event. Draining counts as the last event."""
    kind = ""
    with suppress(IndexError):
        kind = str(trace.events[event].__struct_config__.tag)
    last = lost.last_words.splitlines()[-1:]
    end = f"; its last output: {last[0][:200]}" if last else ""
    violation = Violation(
        oracle=lost.kind,
        field=lost.field,
        message=f"{lost.kind}: the target {lost.what} in event {event} ({kind}){end}",
        expected="an answer",
        observed=lost.last_words,
        event=event,
        event_kind=kind,
    )
    steps = sum(isinstance(each, Step) for each in trace.events[: event + 1])
    return Outcome(violation, steps, event + 1, {}, {}, 0)
