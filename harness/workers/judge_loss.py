"""Judges the loss of a worker process: a finding, a flaky finding or a warning.

Who noticed the loss has said what it looked like (`Lost`, by `worker_process`): a crash, a hang, a limit of memory. For
want of memory or a device (`Lost.fault`) it says nothing about the engine: its trace did not run (`unopened`).
For any other loss, the trace at which it was lost runs again alone, in a new process. If that fails, the failure
is an ordinary finding. If it cannot run, as no new process starts, the loss is the result of the trace (`unrepeated`).
If it runs clean, the loss is one of three things (`judge_loss`):

    a memory limit              a warning: many traces reach it together, and the process is replaced by design
    a signal or a time limit    a flaky finding beside the clean result: a busy machine or another process can cause it
    anything else               the result of the trace: a process does not crash by itself
"""

from __future__ import annotations

from contextlib import suppress

from msgspec import structs

from ...targets.base.trace import Step, Trace, tag_of
from ..judge.environment_fault import EnvironmentFault
from ..judge.outcome import Outcome
from ..judge.verdict import Quoted, Value
from ..judge.violation import Violation
from .results import Ran
from .worker_process import TIME_LIMIT, Lost

MEMORY_LIMIT = "memory-limit"
"""Field of the violation of a process that takes too much memory."""
KILLED = frozenset({"SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"})
"""Signals that usually come from another process."""
FROM_OUTSIDE = KILLED | {TIME_LIMIT}
"""Losses that a busy machine or another process can cause: the trace counts as what it showed when it ran again."""


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
