"""Collects the evidence of one failing trace: reduces it, then finds by runs on the engine what is necessary.

Three stages, all three within one time limit:

    reduce      cut down with the symptom kept (`still_fails`), so that the reduction does not end at another cause
    questions   run every variant that differs in one property (`variants`): which switches and numbers are necessary?
    spectrum    record the steps and lines of the failing trace and of its nearest passing variants (`facts`,
                `spectrum`), and the history of the blocks of the failing one (`origins`)

Nothing runs twice: results are kept by trace. On vLLM a trace takes 60 to 90 runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import structs

from ....targets.base.protocol import Capabilities, TargetError
from ....targets.base.trace import Trace, TraceError, tag_of
from ...draw.avoid import switch_values, traits_of
from ...judge.outcome import Outcome
from ...judge.violation import Violation
from ...record.activity import Observation
from ...record.executed import Executed
from ...record.history import History
from ..reduction.reduce import Reducer, until
from ..reduction.still_fails import names_of, relation, same_symptom
from ..reduction.variants import Neighbour, neighbours, switched
from .evidence import Evidence
from .facts import facts_of
from .origins import origins_of
from .spectrum import Spectrum

ROUNDS = 2
"""Rounds of reduction; a third one rarely helps and costs as much as the questions."""
PASSING_MAX = 6
"""Passing neighbours whose lines are recorded."""


class Runner(Protocol):
    """The part of a worker that an investigation uses."""

    def run(self, trace: Trace) -> Outcome:
        """Run a trace."""
        ...

    def observe(self, trace: Trace, *, lines: bool = False, most: int | None = None) -> Observation:
        """Run a trace and record its steps, and its lines in its first `most` events."""
        ...

    def explain(self, trace: Trace) -> tuple[Outcome, History]:
        """Run a trace and record the history of its blocks."""
        ...


class Investigation:
    """One failing trace on one engine. `runs` counts what it cost."""

    def __init__(self, engine: Runner, capabilities: Capabilities, seconds: float) -> None:
        self.runs = 0
        self._engine = engine
        self._capabilities = capabilities
        self._deadline = time.monotonic() + seconds
        self._known: dict[bytes, Outcome | None] = {}
        """Result by trace, None for one that the target refuses."""

    @property
    def out_of_time(self) -> bool:
        """True if the time limit is reached."""
        return time.monotonic() >= self._deadline

    def result(self, trace: Trace) -> Outcome | None:
        """Run a trace, once. Return None if the target refuses it."""
        key = msgspec.msgpack.encode((trace.config, trace.events))
        if key not in self._known:
            self.runs += 1
            try:
                self._known[key] = self._engine.run(trace)
            except (TraceError, TargetError):
                self._known[key] = None
        return self._known[key]

    def reduce(
        self, trace: Trace, violation: Violation, on_better: Callable[[Trace], None] = lambda trace: None
    ) -> Trace:
        """Return a shorter trace with the same symptom; the same trace if it does not fail again."""
        left = self._deadline - time.monotonic()
        reducer = Reducer(
            trace, violation.signature, self._or_refuse, left, on_better, accepts=same_symptom(violation, trace)
        )
        reducer.attempt(until(violation, trace))
        for _ in range(ROUNDS):
            before = reducer.best
            reducer.drop_events()
            reducer.drop_requests()
            reducer.simplify_events()
            for other in switched(reducer.best.config, self._capabilities):
                reducer.attempt(structs.replace(reducer.best, config=other.config))
            if reducer.best == before:
                break
        return reducer.best

    def _or_refuse(self, trace: Trace) -> Outcome:
        outcome = self.result(trace)
        if outcome is None:
            raise TraceError("refused")
        return outcome

    def evidence(self, trace: Trace, history: History | None = None) -> Evidence | None:
        """Return the evidence of a reduced trace. `history` is that of the trace, None to record it.

        None if the trace does not fail, or fails otherwise while it is watched: that would be evidence of the watching,
        and the same for every finding.
        """
        seen = self._engine.observe(trace, lines=True)
        self.runs += 1
        violation = seen.outcome.violation
        if violation is None:
            return None
        if history is None:
            _, history = self._engine.explain(trace)
            self.runs += 1
        if history.violation is None or history.violation.signature != violation.signature:
            return None
        facts = facts_of(trace, seen.steps, violation)
        passing, needed = self._neighbours(trace, violation, frozenset(facts), seen.applied)
        spectrum = Spectrum(seen.executed, passing)
        return Evidence(
            signature=violation.signature,
            relation=relation(violation, names_of(trace)),
            switches=self._necessary(trace),
            events=tuple(tag_of(event) for event in trace.events),
            facts=facts,
            origins=origins_of(trace, seen.steps, history, violation),
            needed=tuple(sorted(needed)),
            traits=tuple(sorted(traits_of(trace))),
            values=switch_values(trace.config),
            places=spectrum.places(),
            votes=spectrum.votes(),
            runs=self.runs,
            complete=not self.out_of_time,
        )

    def _necessary(self, trace: Trace) -> dict[str, str]:
        """Return the switches of a trace with their values, of those that no tried value leaves failing."""
        fails: dict[str, bool] = {}
        for other in switched(trace.config, self._capabilities):
            if self.out_of_time:
                break
            outcome = self.result(structs.replace(trace, config=other.config))
            if outcome is not None:
                fails[other.switch] = fails.get(other.switch, False) or outcome.violation is not None
        values = switch_values(trace.config)
        return {name: values[name] for name, failed in fails.items() if not failed}

    def _neighbours(
        self, trace: Trace, violation: Violation, facts: frozenset[str], applied: int
    ) -> tuple[list[Sequence[Executed]], set[str]]:
        """Return the lines of the nearest passing neighbours, and the facts that any of them lacks."""
        passing: list[Neighbour] = []
        for each in neighbours(trace, violation.request):
            if self.out_of_time or len(passing) == PASSING_MAX:
                break
            outcome = self.result(each.trace)
            if outcome is not None and outcome.violation is None:
                passing.append(each)
        lines: list[Sequence[Executed]] = []
        needed: set[str] = set()
        for each in passing:
            if self.out_of_time and lines:
                break
            gone = len(trace.events) - len(each.trace.events)
            seen = self._engine.observe(each.trace, lines=True, most=applied - gone)
            self.runs += 1
            lines.append(seen.executed)
            needed |= facts - set(facts_of(each.trace, seen.steps, violation))
            needed |= traits_of(trace) - traits_of(each.trace)
        return lines, needed
