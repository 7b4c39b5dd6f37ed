"""The rules of the workload for Hypothesis: a state machine with one rule for each kind of serving event.

Each rule draws one event from the same grammar as the seeded source. Events are recorded; `hypothesis_machine` runs
them in lockstep as well, `hypothesis_traces` draws whole traces. No rule looks at an engine.

Not for workers: engines' environments do not have Hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ...targets.base.alphabet import Refers, fields_with
from ...targets.base.protocol import Capabilities
from ...targets.base.trace import KINDS, AnyEvent, Arrive, Config, Event, Sleep, Step, Wake, tag_of
from .choices import Option, RandomChoices
from .configurations import draw_valid_config
from .grammar import Grammar
from .workload import DEFAULT, Workload

STEPS_MAX = 8
"""Steps of one rule."""
PACES = (2, 0, 4, 8, 16)
"""An example has one of these as its pace."""
SEEDS = 1 << 20


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
    """Draw a configuration for the running machine's target; return a grammar for it, the pace, the first arrival.

    Hypothesis draws a seed for the configuration: the attempts until one fits would use up the choices of an example.
    """
    machine: ServingRules = draw(st.runner())
    choices = HypothesisChoices(draw)
    seeded = RandomChoices(choices.integer(0, SEEDS), "configuration")
    config = draw_valid_config(seeded, machine.supports, machine.capabilities, machine.overrides, machine.workload)
    grammar = Grammar(config, machine.capabilities, choices, machine.workload)
    return grammar, choices.pick(PACES), grammar.arrive()


@st.composite
def events(draw: st.DrawFn, drawn_by: Callable[[Grammar], AnyEvent]) -> AnyEvent:
    """Draw an event with a method of the running machine's grammar."""
    machine: ServingRules = draw(st.runner())
    machine.grammar.choices = HypothesisChoices(draw)
    return drawn_by(machine.grammar)


def serving_event(
    drawn_by: Callable[[Grammar], AnyEvent], when: Callable[[Grammar], object] = lambda grammar: True
) -> Callable[[Callable[[ServingRules, AnyEvent], None]], Any]:
    """Make a method that takes an event a rule, named after the kind of event.

    The rule is enabled where the target knows this kind, and `when` holds for what the grammar expects: then the event
    is probably not a no-op. All but arrivals also wait for `pace` steps since the last such event: Hypothesis chooses
    between the enabled rules with equal chances, and a dozen rare kinds would leave no room for steps.
    """

    def decorate(method: Callable[[ServingRules, AnyEvent], None]) -> Any:
        name = method.__name__

        def is_possible(machine: ServingRules) -> bool:
            if name not in machine.grammar.events or not when(machine.grammar):
                return False
            return name == "arrive" or machine.steps_since >= machine.pace

        return precondition(is_possible)(rule(event=events(drawn_by))(method))

    return decorate


class ServingRules(RuleBasedStateMachine):
    """Events of one example. A subclass sets `capabilities` and implements `supports`."""

    overrides: ClassVar[Mapping[str, object]] = {}
    """Fields that are fixed in every configuration."""
    workload: ClassVar[Workload] = DEFAULT
    capabilities: Capabilities

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.config: Config | None = None
        self.steps_since = 0
        """Steps since the last event that is neither a step nor an arrival."""

    def supports(self, config: Config) -> str:
        """Return "", or the reason why the target does not support a configuration."""
        raise NotImplementedError

    def begin(self, config: Config) -> None:
        """Prepare for the first event."""

    @initialize(opening=openings())
    def configure(self, opening: tuple[Grammar, int, Arrive]) -> None:
        """Draw a configuration and let the first request arrive."""
        self.grammar, self.pace, first = opening
        self.config = self.grammar.config
        self.begin(self.config)
        self.happen(first)

    def happen(self, event: Event) -> None:
        """Record an event."""
        self.events.append(event)
        if not isinstance(event, Arrive):
            self.steps_since = self.steps_since + 1 if isinstance(event, Step) else 0

    @serving_event(Grammar.arrive, when=lambda grammar: len(grammar.left) < grammar.burst)
    def arrive(self, event: AnyEvent) -> None:
        """A request arrives."""
        self.happen(event)

    @rule(steps=st.lists(events(Grammar.step), min_size=1, max_size=STEPS_MAX))
    def step(self, steps: list[AnyEvent]) -> None:
        """The engine takes a few steps, with their chunks and drafts: between other events there are several."""
        for event in steps:
            self.happen(event)

    @serving_event(Grammar.dummy_run, when=lambda grammar: not grammar.left)
    def dummy_run(self, event: AnyEvent) -> None:
        """An idle data-parallel rank executes a dummy run; a no-op while requests run."""
        self.happen(event)

    @serving_event(lambda grammar: grammar.resume(grammar.pick_parked(2)), when=lambda grammar: grammar.parked(2))
    def resume(self, event: AnyEvent) -> None:
        """The next turn of a session begins."""
        self.happen(event)

    @serving_event(lambda grammar: grammar.truncate(grammar.choices.pick(grammar.cuttable())), when=Grammar.cuttable)
    def truncate(self, event: AnyEvent) -> None:
        """A session forgets its latest tokens."""
        self.happen(event)

    @serving_event(lambda grammar: grammar.fork(grammar.pick_parked()), when=Grammar.may_fork)
    def fork(self, event: AnyEvent) -> None:
        """A session goes on twice."""
        self.happen(event)


def _rare_rule(kind: type[AnyEvent]) -> Any:
    """Return the rule for a rare kind of event. It waits for what its kind acts on."""

    def method(machine: ServingRules, event: AnyEvent) -> None:
        machine.happen(event)
        if isinstance(event, Sleep):  # no engine serves while it sleeps
            machine.happen(Wake())

    def when(grammar: Grammar) -> object:
        refers = [refers for _, refers in fields_with(kind, Refers)]
        if not refers and kind.about.acts != "on the batch":
            return True
        return grammar.left or (any(one.parked for one in refers) and grammar.sessions)

    method.__name__, method.__doc__ = tag_of(kind), kind.__doc__
    return serving_event(lambda grammar: grammar.draw(kind), when)(method)


for _kind in KINDS:
    if _kind.about.percent:
        setattr(ServingRules, tag_of(_kind), _rare_rule(_kind))
