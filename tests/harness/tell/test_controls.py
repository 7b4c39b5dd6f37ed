"""Controls of a report: what is named was left out in a run that passes; what was not run is not named."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from msgspec import structs
from support import arrive, make_trace, steps

from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.verdict import Prefix, StateOf
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.record.history import History, Mark, RequestStep
from hybridfuzz.harness.tell.controls import Control, controls, on_other_models
from hybridfuzz.targets.base.deployment import Deployment
from hybridfuzz.targets.base.protocol import Capabilities, TargetError
from hybridfuzz.targets.base.stock import Setting
from hybridfuzz.targets.base.trace import Abort, Arrive, Crop, Preempt, Resume, Trace

TRACE = make_trace(
    arrive("r0", 8), arrive("r1", 9), arrive("r2", 3), *steps(3), num_speculative_tokens=2, policy="priority"
)
STOCK = (
    Setting("--speculative-config", {"num_speculative_tokens": "0"}),
    Setting("--scheduling-policy", {"policy": "fcfs"}),
    Setting("--async-scheduling", {"async_depth": "1"}),
)
ABLE = Capabilities(frozenset(), (), frozenset(), (), stock=STOCK)
VIOLATION = Violation("S3", "temporal", "it is wrong", step=1, event=1, request="r0", block=3, group=0)
HIT = RequestStep(0, 0, "r0", 4, 4, 0, admitted=True, hit=4)
LATER = RequestStep(1, 1, "r0", 8, 1, 0, admitted=False, hit=0)
HISTORY = History(violation=VIOLATION, request_steps=[HIT, LATER])


@dataclass
class Engine:
    """Fails where all of its requests and settings are there; cannot run what it refuses. `passing`: the steps of a run
    that passes."""

    needs: set[str]
    settings: Mapping[str, object]
    refuses: str = ""
    passing: tuple[RequestStep, ...] = (HIT, LATER)
    runs: int = 0

    def explain(self, trace: Trace) -> tuple[Outcome, History]:
        self.runs += 1
        names = {event.name for event in trace.events if isinstance(event, Arrive)}
        if self.refuses and self.refuses not in names:
            raise TargetError("refused")
        fails = self.needs <= names and all(
            getattr(trace.config, key, trace.config.options.get(key)) == one for key, one in self.settings.items()
        )
        return Outcome(VIOLATION if fails else None, 1, 1, {}, {}, 0), History(request_steps=[*self.passing])


def server(trace: Trace) -> Deployment:
    graphs, mixer = (trace.config.options.get(name, "") for name in ("graphs", "mixer"))
    return Deployment("An engine", ("serve", mixer), ("--enforce-eager",) if graphs == "none" else ())


def controls_of(
    engine: Engine, history: History = HISTORY, trace: Trace = TRACE, able: Capabilities = ABLE
) -> list[str]:
    return [one.words for one in controls(trace, history, engine, able, server)]


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        (Engine({"r0", "r2"}, {"policy": "priority"}), ["without --scheduling-policy", "without r2"]),
        (Engine({"r0", "r1"}, {}, refuses="r1"), []),
        (Engine(set(), {"num_speculative_tokens": 2}), ["without --speculative-config"]),
        (Engine(set(), {}), []),
    ],
)
def test_a_control_is_a_run_that_passes(engine: Engine, expected: list[str]) -> None:
    assert controls_of(engine) == expected
    assert engine.runs == 3 + 2 + 8 + 4, "settings, requests, lengths of r1 and r2, and of r0; no other schedule"


@pytest.mark.parametrize(
    "passing",
    [
        (),  # the request is not there
        (structs.replace(HIT, start=0, hit=0), LATER),  # it computes what it hit
        (HIT,),  # it does not come as far
    ],
)
def test_a_run_that_does_not_do_again_what_fails_is_no_control(passing: tuple[RequestStep, ...]) -> None:
    """Without the request that others hit, the run passed, and said nothing."""
    assert controls_of(Engine({"r0", "r1", "r2"}, {"policy": "priority"}, passing=passing)) == []


def test_the_request_that_writes_or_owns_what_is_wrong_is_not_left_out() -> None:
    """Its absence was a control."""
    history = structs.replace(HISTORY, marks=[Mark(0, 0, 3, "write", who="r1")])
    assert controls_of(Engine({"r1"}, {}), history) == []
    owned = structs.replace(VIOLATION, observed=StateOf(Prefix("r1"), 3))
    assert controls_of(Engine({"r1"}, {}), structs.replace(HISTORY, violation=owned)) == []
    numbers = structs.replace(VIOLATION, field="logprobs")
    assert controls_of(Engine({"r1"}, {}), structs.replace(HISTORY, violation=numbers)) == [], "who wrote is not known"


def test_content_is_published_again_where_no_request_fails() -> None:
    failing = structs.replace(VIOLATION, request="")
    history = History(violation=failing, marks=[Mark(0, 0, 3, "hash", content="state@4 of document a")])
    assert controls_of(Engine(set(), {"policy": "priority"}), history) == []


def test_another_option_is_a_control_with_the_flags_that_differ() -> None:
    options = {"graphs": ("decode", "none"), "mixer": ("gdn", "mamba2")}
    trace = structs.replace(TRACE, config=structs.replace(TRACE.config, options={"graphs": "decode", "mixer": "gdn"}))
    able = structs.replace(ABLE, options=options)
    assert controls_of(Engine(set(), {"graphs": "decode"}), HISTORY, trace, able) == ["with --enforce-eager"]
    assert controls_of(Engine(set(), {"mixer": "gdn"}), HISTORY, trace, able) == [], "another model is another trace"


def test_with_another_setting_an_engine_may_decline_an_operation_on_the_batch() -> None:
    """A cache that does not record its past cannot be cropped: nothing was done that could go wrong."""
    trace = structs.replace(TRACE, events=(*TRACE.events, Crop(1)))
    assert controls_of(Engine(set(), {"policy": "priority"}), HISTORY, trace) == []
    assert controls_of(OneLength({"r0"}, {}, name="r1", prompt=("a", 9)), HISTORY, trace) == [], "nor in other lengths"


def test_a_request_that_an_event_names_is_not_left_out() -> None:
    """The event did nothing then, and the run without the request passed."""
    together = make_trace(arrive("r0", 8), arrive("r1", 8), *steps(1), Abort("r0", together=("r1",)), *steps(2))
    assert "without r1" not in controls_of(Engine({"r1"}, {}), HISTORY, together)
    apart = structs.replace(together, events=tuple(one for one in together.events if not isinstance(one, Abort)))
    assert "without r1" in controls_of(Engine({"r1"}, {}), HISTORY, apart)


def test_the_only_request_is_not_left_out() -> None:
    alone = make_trace(arrive("r0", 8), *steps(2))
    engine = Engine({"r0"}, {})
    assert controls_of(engine, HISTORY, alone, Capabilities(frozenset(), (), frozenset(), ())) == []
    assert engine.runs == 1 + 4, "a larger pool, and lengths of r0"


@dataclass
class OneLength(Engine):
    """Fails only if the prompt of request `name` is this one."""

    name: str = ""
    prompt: tuple[str, int] = ("", 0)

    def explain(self, trace: Trace) -> tuple[Outcome, History]:
        outcome, history = super().explain(trace)
        prompts = [event.prompt for event in trace.events if isinstance(event, Arrive) and event.name == self.name]
        return (outcome if prompts == [(self.prompt,)] else structs.replace(outcome, violation=None)), history


def test_the_failing_request_itself_may_be_longer_or_shorter() -> None:
    """Of a one-token prompt no control was known: nothing but its length is special."""
    trace = make_trace(arrive("r0", ("a", 1)), *steps(2))
    only = OneLength({"r0"}, {}, name="r0", prompt=("a", 1))
    found = controls_of(only, HISTORY, trace, structs.replace(ABLE, stock=()))
    assert found == ["with 2 tokens in the prompt of r0 instead of 1"], "a prompt of no token is none"
    idle = replace(only, passing=())
    assert controls_of(idle, HISTORY, trace, structs.replace(ABLE, stock=())) == [], "r0 was never scheduled"


def test_a_request_that_no_longer_fits_is_no_control() -> None:
    """It was refused, or ended early, and the report said that it passes."""
    trace = make_trace(arrive("r0", ("a", 1)), *steps(2))
    only = OneLength({"r0"}, {}, name="r0", prompt=("a", 1))
    full = structs.replace(
        trace, config=structs.replace(trace.config, max_model_len=1 + trace.events[0].max_new_tokens)
    )
    assert controls_of(only, HISTORY, trace, structs.replace(ABLE, stock=()))
    assert controls_of(only, HISTORY, full, structs.replace(ABLE, stock=())) == []


def test_each_turn_of_a_session_is_told_apart_and_has_to_come_as_far() -> None:
    """The same line stood there twice, of two turns; and a run in which the later turn was refused was a control."""
    trace = make_trace(arrive("r0", ("a", 1)), *steps(1), Resume("r0", (("b", 1),), 1), *steps(2))

    @dataclass
    class OnlyAsGiven(Engine):
        def explain(self, one: Trace) -> tuple[Outcome, History]:
            outcome, history = super().explain(one)
            return (outcome if one == trace else structs.replace(outcome, violation=None)), history

    able = structs.replace(ABLE, stock=())
    found = controls_of(OnlyAsGiven({"r0"}, {}), HISTORY, trace, able)
    assert "with 2 tokens in the prompt of turn 1 of r0 instead of 1" in found
    assert "with 2 tokens in the prompt of turn 2 of r0 instead of 1" in found
    assert controls_of(OnlyAsGiven({"r0"}, {}, passing=(HIT,)), HISTORY, trace, able) == []


def test_the_call_that_goes_wrong_is_not_left_out() -> None:
    """Nothing was done that could go wrong. Without an earlier call, the later ones are for other rows."""
    trace = make_trace(arrive("r0", ("a", 1)), *steps(1), Crop(1), *steps(1), Crop(1), *steps(1))
    history = structs.replace(HISTORY, violation=structs.replace(VIOLATION, event=4))

    class OnlyAsGiven(Engine):
        def explain(self, one: Trace) -> tuple[Outcome, History]:
            outcome, history = super().explain(one)
            return (outcome if one == trace else structs.replace(outcome, violation=None)), history

    def library(one: Trace) -> Deployment:
        return Deployment("A library", calls={"crop": "Cache.crop"})

    found = [*controls(trace, history, OnlyAsGiven({"r0"}, {}), structs.replace(ABLE, stock=()), library)]
    [left_out] = [one for one in found if "Cache.crop" in one.words]
    assert left_out == Control("without Cache.crop (later calls are for the rows that remain)")


def test_another_request_may_be_longer_or_shorter() -> None:
    """The trigger was the length of a prompt beside the one that fails, and no control varied it."""
    trace = make_trace(arrive("r0", 8), arrive("r1", ("b", 4)), *steps(2))
    able = structs.replace(ABLE, stock=())
    other = "with 5 or 3 tokens in the prompt of r1 instead of 4"
    beside = OneLength({"r0"}, {}, name="r1", prompt=("b", 4))
    assert controls_of(beside, HISTORY, trace, able) == ["without r1", other]
    elsewhere = replace(beside, passing=(HIT,))
    assert controls_of(elsewhere, HISTORY, trace, able) == [], "r0 does not come as far"


def test_an_event_may_be_left_out() -> None:
    """An abort was the trigger, and no control left it out."""

    class Aborting(Engine):
        def explain(self, trace: Trace) -> tuple[Outcome, History]:
            outcome, history = super().explain(trace)
            is_left = any(isinstance(event, Abort) for event in trace.events)
            return (outcome if is_left else structs.replace(outcome, violation=None)), history

    trace = make_trace(arrive("r0", 8), arrive("r1", 8), *steps(1), Abort("r1"), *steps(2))
    found = controls_of(Aborting({"r0"}, {}), HISTORY, trace, structs.replace(ABLE, stock=()))
    assert found == ["without the abort of r1", "without r1"]


def test_controls_of_events_come_before_those_of_settings_and_what_only_shows_minimality_last() -> None:
    """A setting switches off much more than what fails, and five of them left no room for an event. A reader learned
    from "one request fewer: passes" that the trace is small, and nothing of the cause."""

    class OnlyAsGiven(Engine):
        def explain(self, one: Trace) -> tuple[Outcome, History]:
            outcome, history = super().explain(one)
            return (outcome if one == trace else structs.replace(outcome, violation=None)), history

    trace = make_trace(
        arrive("r0", 8), arrive("r1", 8), *steps(1), Abort("r1"), *steps(2), num_speculative_tokens=2, policy="priority"
    )
    found = controls_of(OnlyAsGiven({"r0"}, {}), HISTORY, trace)
    cause = ["without the abort of r1", "without --speculative-config", "without --scheduling-policy"]
    assert found[:3] == cause and found[4] == "without r1" and len(found) == 4 + 3
    told = list(controls(trace, HISTORY, OnlyAsGiven({"r0"}, {}), ABLE, server))
    assert [one.reduces for one in told] == [False] * 4 + [True] * 3


def test_without_a_hit_is_a_control_where_the_failing_request_hits() -> None:
    """Nothing told whether a prefix-cache hit is needed."""

    def cached(trace: Trace) -> Deployment:
        return Deployment("An engine", ("serve",), () if trace.config.enable_prefix_caching else ("--no-caching",))

    engine, able = Engine({"r0"}, {"enable_prefix_caching": True}), structs.replace(ABLE, stock=())
    assert Control("with --no-caching (no hit)") in [*controls(TRACE, HISTORY, engine, able, cached)]
    cold = structs.replace(HISTORY, request_steps=[structs.replace(HIT, hit=0), LATER])
    assert controls_of(engine, cold, TRACE, able) == []


def test_a_turn_may_be_sent_as_a_request_of_its_own() -> None:
    """Of a failing turn of a session only settings were controls."""
    trace = make_trace(Arrive("r0", (("a", 3),), 2, session=True), *steps(2), Resume("r0", (("b", 1),), 1), *steps(2))
    sent = list[Arrive]()

    class InSession(Engine):
        def explain(self, one: Trace) -> tuple[Outcome, History]:
            outcome, _ = super().explain(one)
            turns = [event for event in one.events if isinstance(event, Resume)]
            new = [event for event in one.events if isinstance(event, Arrive) and event.name != "r0"]
            sent.extend(new)
            own = [structs.replace(step, request=new[0].name if new else "r0") for step in (HIT, LATER)]
            return (outcome if turns else structs.replace(outcome, violation=None)), History(request_steps=own)

    found = controls_of(InSession({"r0"}, {}), HISTORY, trace, structs.replace(ABLE, stock=()))
    assert found == ["with the tokens of turn 2 of r0 sent as a new request"]
    assert sent == [Arrive("r0-new", (("a", 3), ("~", 2), ("b", 1)), 1)], "with what the client knows before it"
    later = structs.replace(trace, events=(*trace.events, Resume("r0", (("c", 1),), 1), *steps(1)))
    assert controls_of(InSession({"r0"}, {}), HISTORY, later, structs.replace(ABLE, stock=())) == []
    assert len(sent) == 2 and sent[1].prompt[-1] == ("c", 1), "a session that a later event names stays one"


def test_an_event_has_the_word_of_the_engine() -> None:
    """SGLang calls another thing a preemption."""
    trace = make_trace(arrive("r0", 8), *steps(1), Preempt("r0"), *steps(2))

    class Preempting(Engine):
        def explain(self, one: Trace) -> tuple[Outcome, History]:
            outcome, history = super().explain(one)
            is_left = any(isinstance(event, Preempt) for event in one.events)
            return (outcome if is_left else structs.replace(outcome, violation=None)), history

    def named(_: Trace) -> Deployment:
        return Deployment("An engine", nouns={"preempt": "retraction"})

    able = structs.replace(ABLE, stock=())
    assert [*controls(trace, HISTORY, Preempting({"r0"}, {}), able, named)] == [Control("without the retraction of r0")]
    assert controls_of(Preempting({"r0"}, {}), HISTORY, trace, able) == ["without the preemption of r0"]


def test_other_models_are_those_of_other_options() -> None:
    """The report said that the model must have gated delta nets, which nobody had tried."""
    able = structs.replace(ABLE, options={"graphs": ("decode", "none"), "mixer": ("gdn", "mamba2")})
    trace = structs.replace(TRACE, config=structs.replace(TRACE.config, options={"graphs": "decode", "mixer": "gdn"}))

    def served(one: Trace) -> Deployment:
        return structs.replace(server(one), model=one.config.options["mixer"], architecture="Class")

    found = [(words, other.config.options["mixer"]) for words, other in on_other_models(trace, able, served)]
    assert found == [("mamba2 (Class)", "mamba2")]


def test_the_position_of_a_state_is_that_of_its_tokens() -> None:
    """Ahead of its results, an engine plans with a draft that is rejected: without drafts it never comes as far."""
    ahead = structs.replace(VIOLATION, expected=StateOf(Prefix("r0"), 8))
    steps_ahead = [HIT, structs.replace(LATER, start=9)]
    history = History(violation=ahead, request_steps=steps_ahead)
    assert controls_of(Engine(set(), {"policy": "priority"}), history) == ["without --scheduling-policy"]
    planned = structs.replace(history, violation=VIOLATION)
    assert controls_of(Engine(set(), {"policy": "priority"}), planned) == []


def test_a_control_of_a_crash_goes_on_behind_it() -> None:
    """With one token fewer the request had ended before the step that raised."""
    crash = Violation("CRASH", "ValueError-f", "it raises", step=-1, event=2)
    trace = make_trace(arrive("r0", ("a", 1), new=2), *steps(2))
    only = OneLength({"r0"}, {}, name="r0", prompt=("a", 1), passing=(HIT, LATER))
    able = structs.replace(ABLE, stock=())
    assert controls_of(only, History(violation=crash, request_steps=[HIT]), trace, able)
    assert controls_of(only, History(violation=crash, request_steps=[HIT, LATER]), trace, able) == []


def test_a_control_computes_the_turn_that_raises() -> None:
    """With a longer answer the first turn had not ended, so that the second one did not follow, and nothing raised."""
    crash = Violation("CRASH", "KeyError-f", "it raises", step=-1, event=2)
    trace = make_trace(Arrive("r0", (("a", 1),), 2, session=True), *steps(1), Resume("r0", (("b", 1),), 1))
    before, able = History(violation=crash, request_steps=[HIT]), structs.replace(ABLE, stock=())
    second = structs.replace(LATER, admitted=True)
    for last, is_control in ((LATER, False), (second, True)):
        only = OneLength({"r0"}, {}, name="r0", prompt=("a", 1), passing=(HIT, last))
        assert bool(controls_of(only, before, trace, able)) == is_control


def test_of_requests_that_wait_a_larger_pool_is_tried() -> None:
    stuck = Violation("M8", "stall", "nothing is scheduled", step=1, event=1)
    engine = Engine({"r0"}, {"num_blocks": TRACE.config.num_blocks})
    found = list(controls(TRACE, History(violation=stuck), engine, structs.replace(ABLE, stock=()), server))
    pools = 2 * TRACE.config.num_blocks, TRACE.config.num_blocks
    assert found == [Control("with a pool of {} blocks instead of {}".format(*pools))]

    def limited(trace: Trace) -> Deployment:
        return Deployment("An engine", limits={"num_blocks": ("--pool", str(trace.config.num_blocks))})

    found = list(controls(TRACE, History(violation=stuck), engine, structs.replace(ABLE, stock=()), limited))
    assert found == [Control("with --pool {} instead of {}".format(*pools))], "the engine has a flag for it"
    assert (
        list(controls(TRACE, History(violation=stuck), Engine({"r0"}, {}), structs.replace(ABLE, stock=()), server))
        == []
    )


def test_a_control_names_the_value_that_ran() -> None:
    """A server that is left without the flag may take the same value again."""
    setting = Setting("--mixer", {"mixer": "mamba2"})

    def other_server(trace: Trace) -> Deployment:
        return Deployment("An engine", ("serve",), ("--mixer", str(trace.config.options.get("mixer", "gdn"))))

    trace = structs.replace(TRACE, config=structs.replace(TRACE.config, options={"mixer": "gdn"}))
    able = structs.replace(ABLE, stock=(setting,), options={"mixer": ("gdn", "mamba2")})
    found = list(controls(trace, HISTORY, Engine({"r0"}, {"mixer": "gdn"}), able, other_server))
    assert Control("with --mixer mamba2 instead of gdn") in found
