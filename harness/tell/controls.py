"""Controls of a bug report: runs that differ from the failing trace in one factor, and pass.

One request fewer, or one setting that another server has. A control has to do again what fails in the trace: the same
request computes the same positions after a hit like the one before, or the same content is published. A run in which
that does not happen passes without saying anything; so does one without the request that writes what is wrong. Which
implementations pass is already known (`OtherRun`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

from msgspec import structs

from ...targets.base.deployment import Deployment
from ...targets.base.protocol import Capabilities, TargetError
from ...targets.base.trace import Arrive, Config, Trace, TraceError
from ..draw.near_stock import departs
from ..draw.overrides import apply_overrides
from ..group.findings.measured_reach import setting_name
from ..judge.oracles.real_model import FIELDS as FIELDS_OF_A_MODEL
from ..judge.outcome import Outcome
from ..judge.verdict import owner_of
from ..judge.violation import Violation, wanted_depth
from ..record.history import History, RequestStep
from .script import failure_of

REQUESTS_MAX = 6
"""Requests that are left out in turn."""
MAY_BE_DECLINED = ("on the batch", "with consent")
"""What an event may be that an engine declines with other settings: then nothing is done that could go wrong."""
CONTROLS_MAX = 5
"""Controls that a report has."""


class Runner(Protocol):
    """The part of a worker that is used here."""

    def explain(self, trace: Trace) -> tuple[Outcome, History]:
        """Run a trace and record its history."""
        ...


def controls(
    trace: Trace,
    history: History,
    engine: Runner,
    capabilities: Capabilities,
    server: Callable[[Trace], Deployment],
) -> Iterator[str]:
    """Yield what is different in each control of a trace with the history of its failure. `server` returns the server
    that a trace stands for."""
    violation = history.violation
    if violation is None:
        return
    found = (words for words, other in _others(trace, history, violation, capabilities, server)
             if _is_control(engine, other, history, violation))  # fmt: skip
    yield from islice(found, CONTROLS_MAX)


def may_decline(trace: Trace) -> bool:
    """Return True for a trace of whose events an engine with other settings may decline one."""
    return any(event.about.acts in MAY_BE_DECLINED for event in trace.events)


def _others(
    trace: Trace,
    history: History,
    violation: Violation,
    capabilities: Capabilities,
    server: Callable[[Trace], Deployment],
) -> Iterator[tuple[str, Trace]]:
    """Yield what differs, and the trace: settings as the stock server has them, other options, a pool in which nobody
    needs to wait, requests."""
    is_done, here = not may_decline(trace), server(trace)
    for setting in capabilities.stock or ():
        # In another schedule the same events meet other steps.
        if "async_depth" not in setting.stock and departs(setting, trace.config) and is_done:
            other = _with(trace, apply_overrides(trace.config, setting.stock))
            name = setting_name(setting, trace.config)
            yield _instead(here, server(other), name.partition(" ")[0]) or f"without {name}", other
    stock = {name for one in capabilities.stock or () for name in one.stock
                                  if departs(one, trace.config)}  # fmt: skip
    chosen = {name for one in here.implementations for name in one.options} | stock
    for name, values in capabilities.options.items():
        for value in values if name not in chosen and is_done else ():
            other = _with(trace, structs.replace(trace.config, options={**trace.config.options, name: value}))
            if value != trace.config.options.get(name) and (words := _differs(here, server(other))):
                yield words, other
    if violation.oracle == "M8" and is_done:
        blocks = 2 * trace.config.num_blocks
        larger = _with(trace, structs.replace(trace.config, num_blocks=blocks))
        yield f"with a pool of {blocks} blocks instead of {trace.config.num_blocks}", larger
    for name in _bystanders(trace, history, violation)[:REQUESTS_MAX]:
        events = tuple(event for event in trace.events if getattr(event, "name", "") != name)
        yield f"without {name}", structs.replace(trace, events=events)


def _with(trace: Trace, config: Config) -> Trace:
    return structs.replace(trace, config=config)


def _differs(one: Deployment, other: Deployment) -> str:
    """Return how the commands of two servers of one model differ, if the other one has no more than further switches,
    as for eager execution; else "", and if their models differ."""
    if (one.command, one.model, one.variables) != (other.command, other.model, other.variables):
        return ""
    gone = [flag for flag in one.shell[1:] if flag not in other.shell]
    new = [flag for flag in other.shell[1:] if flag not in one.shell]
    if any(" " in flag for flag in new):
        return ""
    return " ".join([*(["with", *new] if new else []), *(["without", *gone] if gone else [])])


def _instead(one: Deployment, other: Deployment, flag: str) -> str:
    """Return the value of a flag that another server has instead, "" if it does not name one."""
    before, after = (
        next((each for each in server.shell[1:] if each.startswith(f"{flag} ")), "") for server in (one, other)
    )
    return f"with {after} instead of {before.removeprefix(f'{flag} ')}" if before and after else ""


def _bystanders(trace: Trace, history: History, violation: Violation) -> list[str]:
    """Return the requests that neither fail nor had a part in the block that is wrong or was copied there; none where
    that is not known, as of requests that wait."""
    if not violation.request or violation.block < 0 or violation.field in FIELDS_OF_A_MODEL:
        return []
    sources = {mark.other for mark in history.marks if mark.what == "copy" and mark.block == violation.block}
    blocks = {violation.block, *sources}
    users = [mark.who for mark in history.marks if mark.what in ("alloc", "hit", "write") and mark.block in blocks]
    involved = {violation.request, failure_of(trace, history, violation).holder, owner_of(violation.observed), *users}
    return [event.name for event in trace.events if isinstance(event, Arrive) and event.name not in involved]


def _is_control(engine: Runner, other: Trace, history: History, violation: Violation) -> bool:
    """Return True for a trace that passes and does again what fails; False also for one that cannot run."""
    if other.config.num_blocks < other.config.smallest_pool():
        return False
    try:
        outcome, after = engine.explain(other)
    except (TraceError, TargetError):
        return False
    return outcome.violation is None and _does_again(history, after, violation)


def _does_again(before: History, after: History, violation: Violation) -> bool:
    failing = [one for one in before.request_steps if one.request == violation.request and one.step <= violation.step]
    own = [one for one in after.request_steps if one.request == violation.request]
    if failing:
        depth = wanted_depth(violation)
        position = failing[-1].start if depth < 0 else depth
        return _hits(failing) == _hits(own) and any(_covers(one, position) for one in own)
    if violation.request:  # it was never scheduled
        return bool(own)
    keys = [mark.content for mark in before.marks if mark.what == "hash" and mark.block == violation.block]
    return not keys or any(mark.what == "hash" and mark.content == keys[-1] for mark in after.marks)


def _hits(steps: list[RequestStep]) -> list[tuple[int, bool]]:
    """Return the hit of the first admission, and whether anything was to be loaded."""
    return [(one.hit, one.external > 0) for one in steps if one.admitted][:1]


def _covers(step: RequestStep, position: int) -> bool:
    return step.start <= position < step.start + max(step.num_tokens, 1)
