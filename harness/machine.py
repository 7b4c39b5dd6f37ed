"""The workload as a Hypothesis state machine, for pytest and for users who write rules of their own.

    class TestMine(HybridCacheMachine.for_target("hybrid")):
        pass

Each rule draws one event from the same grammar as the seeded source and runs it in lockstep. The trace is recorded. A
violation is reduced by the harness's own reducer (25 times cheaper on traces than shrinking Hypothesis's choices),
saved, and raised with the command that replays it. Hypothesis's own shrinking is therefore switched off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest import TestCase

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ..targets.base.protocol import TargetFactory
from ..targets.base.registry import load_factory
from ..targets.base.trace import AnyEvent, Arrive, CaptureGraphs, Config, Event, Reset, Sleep, Step, Trace, Wake
from .findings.store import replay_command
from .generate.choices import Option
from .generate.configurations import draw_valid_config
from .generate.grammar import Grammar
from .lockstep.lockstep import Lockstep
from .lockstep.run import run_trace
from .traces.files import save_trace
from .traces.reduce import reduce_trace
from .traces.violation import Violation

REDUCE_SECONDS = 20.0
STEPS_MAX = 8
"""Steps of one rule."""
PACES = (2, 0, 4, 8, 16)
"""An example has one of these as its pace."""
PROFILE_VARIABLE = "HYBRIDFUZZ_PROFILE"


def profile(name: str = "") -> settings:
    """Return the settings "gate" (the same examples every time) or "nightly" (new ones, more and longer ones).

    The default is the name in `--hybridfuzz-profile` or $HYBRIDFUZZ_PROFILE, else "gate". Every field that Hypothesis's
    own profiles change is set here: where $CI is set they turn derandomization on and the database off, and a nightly
    job would run the same hundred examples each time. KeyError for another name.
    """
    night = {"gate": False, "nightly": True}[name or os.environ.get(PROFILE_VARIABLE, "gate")]
    return settings(
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
        deadline=None,
        max_examples=1000 if night else 100,
        stateful_step_count=150 if night else 60,
        suppress_health_check=list(HealthCheck),
        derandomize=not night,
        database=DirectoryBasedExampleDatabase(".hypothesis/examples") if night else None,
        print_blob=False,
        backend="hypothesis",
    )


class ViolationError(AssertionError):
    """A violation in a pytest run; the message ends with the command that replays the reduced trace."""

    def __init__(self, violation: Violation, path: Path, target: str) -> None:
        super().__init__(f"{violation.message}\n  replay: {replay_command(target, str(path))}")
        self.violation = violation
        self.path = path


class HypothesisChoices:
    """Choices made by Hypothesis: its database replays failures, its generation varies them."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def pick(self, options: Sequence[Option]) -> Option:
        return options[self.integer(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        return self.integer(0, 99) >= 100 - percent


@st.composite
def openings(draw: st.DrawFn) -> tuple[Grammar, int, Arrive]:
    """Draw a configuration for the running machine's target; return a grammar for it, the pace, the first arrival."""
    machine: HybridCacheMachine = draw(st.runner())
    choices, factory = HypothesisChoices(draw), machine.factory
    config = draw_valid_config(choices, factory.supports, factory.capabilities, machine.overrides)
    grammar = Grammar(config, factory.capabilities, choices)
    return grammar, choices.pick(PACES), grammar.arrive()


@st.composite
def events(draw: st.DrawFn, drawn_by: Callable[[Grammar], AnyEvent]) -> AnyEvent:
    """Draw an event with a method of the running machine's grammar."""
    machine: HybridCacheMachine = draw(st.runner())
    machine.grammar.choices = HypothesisChoices(draw)
    return drawn_by(machine.grammar)


def serving_event(
    drawn_by: Callable[[Grammar], AnyEvent], when: Callable[[Grammar], object] = lambda grammar: True
) -> Callable[[Callable[[HybridCacheMachine, AnyEvent], None]], Any]:
    """Make a method that takes an event a rule, named after the kind of event.

    The rule is enabled where the target knows this kind and `when` holds for what the grammar expects: then the event
    is probably not a no-op. All but arrivals also wait for `pace` steps since the last such event: Hypothesis chooses
    between the enabled rules with equal chances, and a dozen rare kinds would leave no room for steps.
    """

    def decorate(method: Callable[[HybridCacheMachine, AnyEvent], None]) -> Any:
        name = method.__name__

        def is_possible(machine: HybridCacheMachine) -> bool:
            if name not in machine.factory.capabilities.events or not when(machine.grammar):
                return False
            return name == "arrive" or machine.steps_since >= machine.pace

        return precondition(is_possible)(rule(event=events(drawn_by))(method))

    return decorate


class HybridCacheMachine(RuleBasedStateMachine):
    """One lockstep run. Use `for_target`.

    There is one rule for each kind of serving event, named as in a trace file. A subclass may replace a rule, switch it
    off (`preempt = None`), add rules that call `happen`, and add Hypothesis's invariants, which find the target's view
    in `engine.view()` and the reference in `lockstep`.
    """

    target: ClassVar[str] = "hybrid"
    overrides: ClassVar[Mapping[str, object]] = {}
    directory: ClassVar[Path] = Path(os.environ.get("HYBRIDFUZZ_FINDINGS", "hybridfuzz-out/pytest"))
    reduced: ClassVar[dict[str, ViolationError]] = {}
    """Signature -> its reduced failure: Hypothesis runs a failing example several times."""

    @classmethod
    def for_target(
        cls,
        target: str,
        overrides: Mapping[str, object] | None = None,
        run: settings | None = None,
    ) -> type[TestCase]:
        """Return a test case for pytest or unittest.

        `target` is a target string as on the command line, `overrides` fix configuration fields, `run` replaces
        `profile()`.
        """
        attributes = {"target": target, "overrides": dict(overrides or {}), "reduced": {}}
        machine: type[HybridCacheMachine] = type("HybridCache", (cls,), attributes)
        test_case: type[TestCase] = machine.TestCase
        test_case.settings = run or profile()  # type: ignore[attr-defined]
        return test_case

    def __init__(self) -> None:
        super().__init__()
        self.factory: TargetFactory = load_factory(self.target)
        self.events: list[Event] = []
        self.config: Config | None = None
        self.steps_since = 0
        """Steps since the last event that is neither a step nor an arrival."""

    @initialize(opening=openings())
    def configure(self, opening: tuple[Grammar, int, Arrive]) -> None:
        """Build the target for a drawn configuration; the first request arrives."""
        self.grammar, self.pace, first = opening
        self.config = self.grammar.config
        self.engine = self.factory.open(self.config)
        capabilities = self.factory.capabilities
        self.lockstep = Lockstep(self.engine, self.config, capabilities.observes, capabilities.engine)
        self.happen(first)

    def happen(self, event: Event) -> None:
        """Let an event happen. ViolationError if an oracle finds a violation."""
        self.events.append(event)
        if not isinstance(event, Arrive):
            self.steps_since = self.steps_since + 1 if isinstance(event, Step) else 0
        self.judge(self.lockstep.apply(event, len(self.events) - 1))

    def judge(self, violation: Violation | None) -> None:
        """Reduce, save and raise a violation."""
        if violation is None:
            return
        if violation.signature not in self.reduced:
            self.reduced[violation.signature] = self.report(violation)
        raise self.reduced[violation.signature]

    def report(self, violation: Violation) -> ViolationError:
        """Save the reduced trace and return the error to raise."""
        assert self.config is not None
        trace = Trace(self.config, tuple(self.events), origin="hypothesis")  # type: ignore[arg-type]
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / f"{violation.signature}.json"
        save_trace(trace, path)
        best = reduce_trace(
            trace,
            violation.signature,
            lambda candidate: run_trace(self.factory, candidate),
            seconds=REDUCE_SECONDS,
            on_better=lambda better: save_trace(better, path),
        )
        final = run_trace(self.factory, best).violation
        return ViolationError(final or violation, path, self.target)

    @serving_event(Grammar.arrive, when=lambda grammar: len(grammar.left) < grammar.burst)
    def arrive(self, event: AnyEvent) -> None:
        """A request arrives."""
        self.happen(event)

    @rule(steps=st.lists(events(Grammar.step), min_size=1, max_size=STEPS_MAX))
    def step(self, steps: list[AnyEvent]) -> None:
        """The engine takes a few steps, with their chunks and drafts: between other events there are several."""
        for event in steps:
            self.happen(event)

    @serving_event(Grammar.preempt, when=lambda grammar: grammar.left or grammar.sessions)
    def preempt(self, event: AnyEvent) -> None:
        """A request loses its blocks and runs again later."""
        self.happen(event)

    @serving_event(Grammar.abort, when=lambda grammar: grammar.left or grammar.sessions)
    def abort(self, event: AnyEvent) -> None:
        """A client goes away."""
        self.happen(event)

    @serving_event(Grammar.dummy_run, when=lambda grammar: not grammar.left)
    def dummy_run(self, event: AnyEvent) -> None:
        """An idle data-parallel rank executes a dummy run; a no-op while requests run."""
        self.happen(event)

    @serving_event(Grammar.reset_prefix_cache)
    def reset_prefix_cache(self, event: AnyEvent) -> None:
        """The prefix cache is emptied."""
        self.happen(event)

    @serving_event(Grammar.evict)
    def evict(self, event: AnyEvent) -> None:
        """Other requests take the blocks that were cached longest ago."""
        self.happen(event)

    @serving_event(Grammar.park, when=lambda grammar: grammar.left)
    def park(self, event: AnyEvent) -> None:
        """A session's turn ends early."""
        self.happen(event)

    @serving_event(lambda grammar: grammar.resume(grammar.pick_parked(2)), when=lambda grammar: grammar.parked(2))
    def resume(self, event: AnyEvent) -> None:
        """The next turn of a session begins."""
        self.happen(event)

    @serving_event(lambda grammar: grammar.truncate(grammar.pick_parked()), when=Grammar.parked)
    def truncate(self, event: AnyEvent) -> None:
        """A session forgets its latest tokens."""
        self.happen(event)

    @serving_event(lambda grammar: grammar.fork(grammar.pick_parked()), when=Grammar.may_fork)
    def fork(self, event: AnyEvent) -> None:
        """A session goes on twice."""
        self.happen(event)

    @serving_event(lambda grammar: CaptureGraphs())
    def capture_graphs(self, event: AnyEvent) -> None:
        """The engine captures its graphs anew."""
        self.happen(event)

    @serving_event(lambda grammar: Sleep())
    def sleep(self, event: AnyEvent) -> None:
        """The engine gives its memory back, and takes it again."""
        self.happen(event)
        self.happen(Wake())

    @serving_event(Grammar.external_load, when=lambda grammar: grammar.left)
    def external_load(self, event: AnyEvent) -> None:
        """A KV connector holds the beginning of a waiting request."""
        self.happen(event)

    @serving_event(Grammar.move_tier, when=lambda grammar: grammar.left)
    def move_tier(self, event: AnyEvent) -> None:
        """A request's cached blocks move to the host's memory."""
        self.happen(event)

    @serving_event(Grammar.select, when=lambda grammar: grammar.left)
    def select(self, event: AnyEvent) -> None:
        """Some rows of a batch of plain caches stay."""
        self.happen(event)

    @serving_event(Grammar.reorder, when=lambda grammar: grammar.left)
    def reorder(self, event: AnyEvent) -> None:
        """Rows are exchanged, or take over another row (beams)."""
        self.happen(event)

    @serving_event(Grammar.repeat, when=lambda grammar: grammar.left)
    def repeat(self, event: AnyEvent) -> None:
        """Each row goes on several times."""
        self.happen(event)

    @serving_event(Grammar.crop, when=lambda grammar: grammar.left)
    def crop(self, event: AnyEvent) -> None:
        """All rows lose their latest tokens."""
        self.happen(event)

    @serving_event(lambda grammar: Reset(), when=lambda grammar: grammar.left)
    def reset(self, event: AnyEvent) -> None:
        """The caches are emptied for a new batch."""
        self.happen(event)

    def teardown(self) -> None:
        """Drain unfinished requests, check what is left over, close the target."""
        if self.config is None:
            return
        try:
            if self.lockstep.violation is None:
                self.judge(self.lockstep.drain(len(self.events)))
        finally:
            self.engine.close()
