"""How near a server as it comes is to one that fails: the reach of a finding, measured on its reduced trace.

The settings of the trace are reset to those of the stock server (`Capabilities.stock`), all at once and then one after
the other, and the trace runs again. A reset is kept if the trace still fails in the same way (`_likeness`). What is
left is a set of which no member can be spared; that there is no smaller one is not proved.

Everything runs on the campaign's worker. A trace that does not fail after a change shows that *this trace*
needs the setting: another one of the same cause may not. In asynchronous scheduling the same events meet other steps:
the trace is also tried with further steps (`with_more_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Protocol

from msgspec import structs

from ....targets.base.deployment import Implementation
from ....targets.base.protocol import Capabilities, TargetError
from ....targets.base.registry import describe
from ....targets.base.stock import Setting
from ....targets.base.trace import AnyEvent, Config, Step, Trace, TraceError, needed_events, tag_of
from ...campaign_summary import Reach, Severity
from ...draw.near_stock import departs, value_of
from ...draw.overrides import apply_overrides
from ...judge.oracles import client_of, consequence
from ...judge.oracles.real_model import FIELDS as FIELDS_OF_A_MODEL
from ...judge.violation import Violation
from ...record.answers import Answers
from ..causes.investigate import Investigation, Runner
from ..reduction.still_fails import UNEXPLAINED
from .severity import effect_of, level_of

SECONDS = 20.0
"""Time for one trace where nothing else waits."""
RUNS_MAX = 60
"""Runs for one finding; in the median it takes 22."""
MORE_BLOCKS = 16
"""For a pool that is too small for another configuration."""
PASSES = 2
"""Rounds over the settings: what one could not do without may be spared once another is reset."""


Likeness = Callable[[Violation], object]
"""What two failures share that count as the same."""


class Engine(Runner, Protocol):
    """The part of a worker that is used here."""

    def serve(self, trace: Trace, request: str = "") -> Answers:
        """Run a trace to its end and return what its clients receive."""
        ...


def severity_of(
    trace: Trace,
    violation: Violation,
    engine: Engine,
    capabilities: Capabilities,
    implementations: Sequence[Implementation],
    seconds: float = SECONDS,
    declines: Collection[str] = (),
) -> Severity:
    """Return the severity of a failing, reduced trace, measured for at most `seconds`, and at most twice that for the
    answers of its clients. `implementations` and `declines` are those of `deployment.Deployment`."""
    return nearest_of(trace, violation, engine, capabilities, implementations, _likeness, seconds, declines)[1]


def nearest_of(
    trace: Trace,
    violation: Violation,
    engine: Engine,
    capabilities: Capabilities,
    implementations: Sequence[Implementation],
    likeness: Likeness,
    seconds: float = SECONDS,
    declines: Collection[str] = (),
) -> tuple[Trace, Severity]:
    """Return the trace that fails nearest to the stock server, and `severity_of` it. Failures with one `likeness` are
    the same."""
    declared = client_of(violation)
    if capabilities.stock is None:
        return trace, Severity("", declared, unmeasured="the target declares no stock server")
    if not declared or violation.oracle in UNEXPLAINED:
        return trace, Severity("", declared, unmeasured="each run takes the time limit" if declared else "")
    tried = Investigation(engine, capabilities, seconds)
    nearest, reach = _Reaching(tried, violation, capabilities, implementations, likeness).measure(trace)
    effect = effect_of(violation, answers_of(engine, nearest, violation), declines)
    return nearest, Severity(level_of(effect, reach), effect, reach)


def severity_on(
    target: str,
    version: str,
    trace: Trace,
    violation: Violation,
    engine: Engine,
    capabilities: Capabilities,
    seconds: float = SECONDS,
) -> Severity:
    """Return `severity_of` a trace that fails on a target, of whose engine the version is known."""
    server = describe(target, trace, version)
    return severity_of(trace, violation, engine, capabilities, server.implementations, seconds, server.declines)


def answers_of(engine: Engine, trace: Trace, violation: Violation) -> Answers:
    """Return what the clients of a trace receive; nothing if it cannot run to its end, and where only a real model's
    numbers are wrong, of which the tokens of the stand-in layers prove nothing."""
    if violation.field in FIELDS_OF_A_MODEL:
        return Answers()
    try:
        return engine.serve(trace, violation.request)
    except (TraceError, TargetError):
        return Answers()


class _Reaching:
    """Finds the reach of one trace."""

    def __init__(
        self,
        tried: Investigation,
        violation: Violation,
        capabilities: Capabilities,
        implementations: Sequence[Implementation],
        likeness: Likeness,
    ) -> None:
        self._tried = tried
        self._likeness = likeness
        self._violation = violation
        self._capabilities = capabilities
        self._implementations = implementations
        self._settings = [*_as_settings(implementations), *(capabilities.stock or ())]
        self._untried = set[str]()
        self._failed = set[bool]()
        """Whether a run that failed was scheduled asynchronously."""

    def measure(self, trace: Trace) -> tuple[Trace, Reach]:
        """Return the trace that fails nearest to the stock server, and its reach."""
        self._failed.add(trace.config.async_depth > 0)
        nearest = self._without_each(self._fails_with(trace, self._settings) or trace)
        left = self._departures(nearest)
        names = list(dict.fromkeys(setting_name(one, nearest.config) for one in left))
        rare = {setting_name(one, nearest.config) for one in left if _is_rare(one, nearest.config)}
        reach = Reach(
            names,
            [name for name in names if name in rare],
            [name for name in names if name in self._untried],
            self._scheduling(nearest),
            dict(self._elsewhere(nearest)),
            next((one.title for one in self._implementations if one.default), ""),
            self._tried.runs,
            not self._is_over,
        )
        return nearest, reach

    @property
    def _is_over(self) -> bool:
        return self._tried.out_of_time or self._tried.runs >= RUNS_MAX

    def _without_each(self, trace: Trace) -> Trace:
        """Return the trace without the settings that it can do without, and without the events that need them."""
        for _ in range(PASSES):
            before = trace
            for setting in self._settings:
                is_there = departs(setting, trace.config) or setting.events & needed_events(trace.events)
                if is_there and not self._is_over:
                    trace = self._fails_with(trace, [setting]) or trace
            if trace == before:
                break
        return trace

    def _fails_with(self, trace: Trace, settings: Sequence[Setting]) -> Trace | None:
        """Return the trace with settings reset, if it fails still, else None. Without a single one its events go, too.

        It may get a larger pool, if another configuration needs one, and other steps, if they are scheduled otherwise.
        """
        config = trace.config
        for setting in settings:
            if departs(setting, trace.config):
                config = apply_overrides(config, setting.stock)
        gone = settings[0].events if len(settings) == 1 else frozenset[str]()
        trace = structs.replace(trace, events=tuple(event for event in trace.events if tag_of(event) not in gone))
        failed = None
        for blocks in (0, MORE_BLOCKS):
            pool = max(config.num_blocks, config.smallest_pool()) + blocks
            candidate = structs.replace(trace, config=structs.replace(config, num_blocks=pool))
            failed = self._fails(candidate)
            if failed is not None:
                break
        if failed is None and len(settings) == 1:
            self._untried.add(setting_name(settings[0], trace.config))
        if failed is False and config.async_depth != trace.config.async_depth:
            return next((one for one in with_more_steps(candidate) if not self._is_over and self._fails(one)), None)
        return candidate if failed else None

    def _fails(self, trace: Trace) -> bool | None:
        """Return True if a trace fails in the same way, None if it cannot run."""
        outcome = self._tried.result(trace)
        if outcome is None:
            return None
        is_same = outcome.violation is not None and self._likeness(outcome.violation) == self._likeness(self._violation)
        self._failed |= {trace.config.async_depth > 0} if is_same else set()
        return is_same

    def _departures(self, trace: Trace) -> list[Setting]:
        events = needed_events(trace.events)
        return [one for one in self._settings if departs(one, trace.config) or one.events & events]

    def _scheduling(self, trace: Trace) -> dict[str, bool]:
        """Return whether the trace fails in each way of scheduling, where the target has both."""
        if not self._capabilities.max_async_depth or self._is_over:
            return {}
        for depth in (1, 0):
            if (depth > 0) not in self._failed:
                self._fails_with(trace, [Setting("", {"async_depth": str(depth)})])
        return {"asynchronous": True in self._failed, "synchronous": False in self._failed}

    def _elsewhere(self, trace: Trace) -> Iterator[tuple[str, bool]]:
        """Yield each implementation, and whether the trace fails there; without those that cannot run it."""
        for one in self._implementations:
            options = {**trace.config.options, **one.options}
            chosen = structs.replace(trace, config=structs.replace(trace.config, options=options))
            if chosen == trace:
                yield one.title, True
            elif not self._is_over and (failed := self._fails(chosen)) is not None:
                yield one.title, failed


def _likeness(violation: Violation) -> tuple[object, ...]:
    """Return what two failures share that count as the same: rule, consequence, kind of event and request.

    Fields and groups may differ, as with the blocks that a setting publishes. Of crashes they are the same.
    """
    what = consequence(violation.oracle, violation.field) or violation.field
    return violation.oracle, what, violation.event_kind, violation.request


def with_more_steps(trace: Trace) -> Iterator[Trace]:
    """Yield the trace with a plain step behind each of its steps, then with one at each place: in another schedule its
    events meet other steps."""
    events: list[AnyEvent] = []
    for event in trace.events:
        events += [event, Step()] if isinstance(event, Step) else [event]
    yield structs.replace(trace, events=tuple(events))
    for place in range(1, len(trace.events) + 1):
        yield structs.replace(trace, events=(*trace.events[:place], Step(), *trace.events[place:]))


def _as_settings(implementations: Sequence[Implementation]) -> Iterator[Setting]:
    """Yield the settings that leave the default implementations."""
    default = next((one for one in implementations if one.default), None)
    for name, value in default.options.items() if default else ():
        titles = {one.options[name]: one.title for one in implementations if name in one.options}
        yield Setting(name, {name: value}, titles, is_rare=True)


def setting_name(setting: Setting, config: Config) -> str:
    """Return what a person types for a setting with the value that a configuration has."""
    field = next(iter(setting.stock), "")
    return setting.by_value.get(str(value_of(config, field)), setting.name) if field else setting.name


def _is_rare(setting: Setting, config: Config) -> bool:
    return setting.is_rare or str(value_of(config, next(iter(setting.stock), ""))) in setting.rare
