"""Facts about the steps up to a violation, as short phrases: the vocabulary of conditions.

They are read from the recorded steps (`record.activity`) and the trace alone, and mean the same for every engine. Each
is about the request that the violation names (`own`; if it names none, the rows of the step as a whole), about the
other rows, or about the step, either in the violating step (`now`) or in the one in which the request ran before
(`before`; if the violation names none, the last one that ran any request, and the last one of each request). None is
about a single bug: they are the properties that schedulers and metadata builders branch on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ....targets.base.trace import Arrive, DummyRun, Step, Trace, Turn, tag_of
from ...judge.violation import Violation
from ...record.activity import Activity, ActivityRow


class _Run(NamedTuple):
    """A trace with its steps; `block` is the smallest block of a group with states."""

    trace: Trace
    steps: Sequence[Activity]
    block: int
    prompts: dict[str, int]


def facts_of(trace: Trace, steps: Sequence[Activity], violation: Violation) -> tuple[str, ...]:
    """Return the facts of a failing run, sorted."""
    return tuple(sorted(set(_facts(_run(trace, steps), violation))))


def row_facts(trace: Trace, steps: Sequence[Activity], at: int, row: ActivityRow) -> tuple[str, ...]:
    """Return the facts of one request in one step, without its place in the batch."""
    return tuple(_row_facts(_run(trace, steps), steps, at, row))


def _run(trace: Trace, steps: Sequence[Activity]) -> _Run:
    blocks = [group.block_size for group in trace.config.groups if group.kind == "mamba"] or [
        group.block_size for group in trace.config.groups
    ]
    prompts: dict[str, int] = {}
    for event in trace.events:
        if isinstance(event, Turn):
            prompts[event.name] = prompts.get(event.name, 0) + sum(length for _, length in event.prompt)
    return _Run(trace, steps, min(blocks), prompts)


def _facts(run: _Run, violation: Violation) -> Iterator[str]:
    yield f"event {violation.event_kind}"
    real = [step for step in run.steps if not step.dummy]
    now = next((at for at in range(len(real) - 1, -1, -1) if real[at].step == violation.step), len(real) - 1)
    if now < 0:
        return
    name = violation.request
    yield from _step_facts(run, real, now, name, "now")
    earlier = [at for at in range(now) if any(not name or row.name == name for row in real[at].rows)]
    if not earlier:
        yield "own first step"
        return
    before = earlier[-1]
    if before < now - 1 and name:
        yield "own was left out of the step before"
    yield from _step_facts(run, real, before, name, "before")
    if not name:  # a dead row may be that of any request that ended
        yield from _ended_facts(run, real, before)


def _ended_facts(run: _Run, steps: Sequence[Activity], before: int) -> Iterator[str]:
    """Yield facts about the last rows of requests that ran before a step and not in it."""
    seen = {row.name for row in steps[before].rows}
    for at in reversed(range(before)):
        for row in steps[at].rows:
            if row.name not in seen:
                yield from (f"own before {what}" for what in _row_facts(run, steps, at, row))
        seen |= {row.name for row in steps[at].rows}


def _step_facts(run: _Run, steps: Sequence[Activity], at: int, name: str, when: str) -> Iterator[str]:
    step = steps[at]
    names = [row.name for row in step.rows]
    if step.graph:
        yield f"{when} graph"
    if None in step.order:
        yield f"{when} padding rows"
    if step.preempted:
        yield f"{when} preempts"
    if step.waiting:
        yield f"{when} others wait"
    if at and set(names) != {row.name for row in steps[at - 1].rows}:
        gone = {row.name for row in steps[at - 1].rows} - set(names)
        if gone:
            yield f"{when} a row of the step before is gone"
    first = steps[at - 1].event + 1 if at else 0
    for event in run.trace.events[first : step.event]:
        if not isinstance(event, Step | Arrive | DummyRun):
            yield f"{when} after {tag_of(event)}"
    for index, row in enumerate(step.rows):
        whose = "own" if row.name == name or not name else "other"
        yield from (f"{whose} {when} {what}" for what in _row_facts(run, steps, at, row))
        if row.name == name:
            if len(step.rows) == 1:
                yield f"own {when} alone"
            if step.moves and name in step.moves:
                yield f"own {when} copied"
            yield from _place_facts(run, steps, at, index, name, when)


def _place_facts(run: _Run, steps: Sequence[Activity], at: int, index: int, name: str, when: str) -> Iterator[str]:
    """Facts about the row's place in the executed batch."""
    order = steps[at].order or tuple(row.name for row in steps[at].rows)
    place = order.index(name) if name in order else index
    if at:
        last = steps[at - 1].order
        if name in last and last.index(name) != place:
            yield f"own {when} moved to another row"
    rows = {row.name: row for row in steps[at].rows}
    ahead = [rows[each] for each in order[:place] if each in rows]
    if any(row.start < run.prompts.get(row.name, 0) for row in ahead):
        yield f"own {when} behind a prompt"


def _row_facts(run: _Run, steps: Sequence[Activity], at: int, row: ActivityRow) -> Iterator[str]:
    """Facts about one request in one step."""
    k = run.trace.config.num_speculative_tokens
    prompt = run.prompts.get(row.name, 0)
    known = row.num_tokens - row.drafts
    ran = [step for step in steps[:at] if any(each.name == row.name for each in step.rows)]
    reached = max(
        (each.start + each.num_tokens - each.drafts for step in ran for each in step.rows if each.name == row.name),
        default=0,
    )
    again = row.start < reached
    if row.start < prompt:
        yield "prompt"
        yield "whole prompt" if row.start == 0 and known >= prompt else "prompt chunk"
        if known < prompt - row.start:
            yield "unfinished prompt"
    else:
        yield "recomputes output" if again or known > 1 else "decode"
    if row.admitted:
        yield "admitted again" if ran else "admitted"
    if row.hit:
        yield "prefix hit"
    if row.kept:
        yield "kept caches"
    if row.num_tokens == 1 + k:
        yield "as long as a full decode"
    elif row.num_tokens < 1 + k:
        yield "shorter than a full decode"
    if known == 1:
        yield "one known token"
    if row.drafts:
        yield "drafts"
    elif k:
        yield "no drafts"
    end = row.start + known
    if end % run.block == 0:
        yield "ends on a boundary"
    if row.start // run.block != (end - 1) // run.block:
        yield "crosses a boundary"
    if row.start and row.start % run.block == 0:
        yield "starts on a boundary"
    if ran:
        accepted = ran[-1].sampled.get(row.name)
        if accepted is not None and accepted > 1:
            yield "drafts were accepted before"
    if any(row.name in step.preempted for step in steps[: at + 1]) or _restarted(steps[: at + 1], row.name):
        yield "was preempted"


def _restarted(steps: Sequence[Activity], name: str) -> bool:
    """Return True if a request lost computed tokens and was admitted again: not every engine reports a preemption."""
    reached = 0
    for step in steps:
        for row in step.rows:
            if row.name == name:
                if row.admitted and row.start < reached:
                    return True
                reached = max(reached, row.start + row.num_tokens - row.drafts)
    return False
