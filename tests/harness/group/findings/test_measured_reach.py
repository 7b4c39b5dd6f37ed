"""Reach is measured by running: what a failure needs is found on a target of which that is known."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest
from msgspec import structs
from support import arrive, make_trace

from hybridfuzz.harness.campaign_summary import Reach, Severity
from hybridfuzz.harness.draw.trace_files import load_trace
from hybridfuzz.harness.group.findings.measured_reach import (
    MORE_BLOCKS,
    RUNS_MAX,
    answers_of,
    nearest_of,
    severity_of,
    with_more_steps,
)
from hybridfuzz.harness.group.findings.severity import effect_of
from hybridfuzz.harness.judge.outcome import Outcome
from hybridfuzz.harness.judge.run import run_trace
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.record.activity import Observation
from hybridfuzz.harness.record.answers import Answer, Answers, collect_answers
from hybridfuzz.harness.record.history import History
from hybridfuzz.targets.base.deployment import Implementation
from hybridfuzz.targets.base.protocol import Capabilities
from hybridfuzz.targets.base.registry import FOLDERS, load_factory
from hybridfuzz.targets.base.stock import Setting
from hybridfuzz.targets.base.trace import Config, ExternalLoad, Step, Trace, TraceError
from hybridfuzz.targets.hybrid.factory import CAPABILITIES

STOCK = (
    Setting("sessions", events=frozenset({"resume"}), is_rare=True),
    Setting("--mode", {"mode": "plain"}, {"odd": "--mode odd"}, is_rare=True),
    Setting("--policy", {"policy": "fcfs"}, rare=frozenset({"priority"})),
    Setting("--sync", {"async_depth": "1"}),
    Setting("--drafts", {"num_speculative_tokens": "0"}),
)
ABLE = structs.replace(
    CAPABILITIES, options={"mode": ("plain", "odd"), "runner": ("v2", "v1")}, stock=STOCK, max_async_depth=1
)
RUNNERS = (Implementation("V2", {"runner": "v2"}, True), Implementation("V1", {"runner": "v1"}))
FAILURE = Violation("S3", "temporal", request="r0")
CONFIG: dict[str, object] = {"num_speculative_tokens": 2, "policy": "priority"}
OPTIONS = {"mode": "odd", "runner": "v1"}
WRONG = Answers((Answer("r0", 1, (1,), (2,)),))


Where = Callable[[SimpleNamespace], bool]


def always(run: SimpleNamespace) -> bool:
    return True


def never(run: SimpleNamespace) -> bool:
    return False


class Engine:
    """Fails, and refuses, where conditions hold for the configuration and the number of events."""

    def __init__(self, fails: Where, refuses: Where = never) -> None:
        self.fails, self.refuses, self.runs = fails, refuses, 0

    def run(self, trace: Trace) -> Outcome:
        self.runs += 1
        config = trace.config
        run = SimpleNamespace(**config.options, k=config.num_speculative_tokens, depth=config.async_depth)
        run.policy, run.blocks, run.events = config.policy, config.num_blocks, len(trace.events)
        if self.refuses(run):
            raise TraceError("refused")
        return Outcome(FAILURE if self.fails(run) else None, 1, 1, {}, {}, 0)

    def serve(self, trace: Trace, request: str = "") -> Answers:
        return WRONG

    def observe(self, trace: Trace, *, lines: bool = False, most: int | None = None) -> Observation:
        raise NotImplementedError

    def explain(self, trace: Trace) -> tuple[Outcome, History]:
        raise NotImplementedError


def trace(**config: object) -> Trace:
    made = make_trace(arrive("r0", ("a", 4)), Step())
    changed = structs.replace(made.config, **{**CONFIG, **config}, options=OPTIONS)
    return structs.replace(made, config=changed)


def measured(engine: Engine, able: Capabilities = ABLE, seconds: float = 60.0, **config: object) -> Severity:
    return severity_of(trace(**config), FAILURE, engine, able, RUNNERS, seconds)


def reach_of(fails: Where, refuses: Where = never, **config: object) -> Reach:
    reach = measured(Engine(fails, refuses), **config).reach
    assert reach
    return reach


def test_a_failure_of_the_stock_server_takes_one_reset_of_everything() -> None:
    engine = Engine(always)
    severity = measured(engine)
    assert severity.level == "P0" and severity.reach and not severity.reach.needs
    assert severity.reach.implementations == {"V2": True, "V1": True} and severity.reach.is_complete
    assert engine.runs == severity.reach.runs == 2  # all reset; V1


@pytest.mark.parametrize(
    ("fails", "needs", "rare"),
    [
        (lambda run: run.k > 0, ["--drafts"], []),
        (lambda run: run.mode == "odd", ["--mode odd"], ["--mode odd"]),
        (lambda run: run.depth == 0, ["--sync"], []),
        (lambda run: run.runner == "v1" and run.policy == "priority", ["V1", "--policy"], ["V1", "--policy"]),
        (lambda run: run.k > 0 or run.mode == "odd", ["--drafts"], []),  # the rare one is tried to be without first
    ],
)
def test_what_a_failure_needs_is_left(fails: str, needs: list[str], rare: list[str]) -> None:
    reach = reach_of(fails)
    assert (list(reach.needs), list(reach.rare)) == (needs, rare)


def test_a_setting_that_another_one_hid_is_spared_in_the_second_round() -> None:
    assert reach_of(lambda run: not (run.policy == "fcfs" and run.depth == 0) and run.k).needs == ["--drafts"]


def test_scheduling_and_implementations_are_told_by_runs() -> None:
    reach = reach_of(lambda run: run.depth == 1 and run.runner == "v2", async_depth=1)
    assert reach.needs == [] and reach.scheduling == {"asynchronous": True, "synchronous": False}
    assert reach.implementations == {"V2": True, "V1": False} and reach.is_on_default
    reach = reach_of(lambda run: run.runner == "v1")
    assert reach.implementations == {"V2": False, "V1": True} and not reach.is_on_default


def test_an_implementation_that_refuses_the_trace_is_not_listed() -> None:
    reach = reach_of(always, refuses=lambda run: run.runner == "v2")
    assert reach.implementations == {"V1": True} and not reach.is_on_default
    assert reach.needs == reach.untried == ["V1"]


def test_what_cannot_be_reset_is_needed_and_said_not_to_be_tried() -> None:
    reach = reach_of(always, refuses=lambda run: run.k == 0)
    assert reach.needs == reach.untried == ["--drafts"]


def test_another_configuration_may_get_a_larger_pool() -> None:
    blocks = trace().config.num_blocks
    assert reach_of(always, refuses=lambda run: run.depth == 1 and run.blocks < blocks + MORE_BLOCKS).needs == []


def test_another_schedule_may_get_further_steps() -> None:
    assert reach_of(lambda run: run.k > 0 and (run.depth == 0 or run.events == 3)).needs == ["--drafts"]
    steps = [len(one.events) for one in with_more_steps(trace())]
    assert steps == [3, 3, 3]


def test_events_that_no_stock_server_has_are_needed() -> None:
    session = make_trace(structs.replace(arrive("r0", ("a", 4)), session=True), Step())
    severity = severity_of(session, FAILURE, Engine(always), ABLE, (), 60.0)
    assert severity.reach and severity.reach.needs == severity.reach.rare == ["sessions"] and severity.level == "P2"


@pytest.mark.parametrize(
    ("elsewhere", "is_same"),
    [
        (structs.replace(FAILURE, field="conv", group_kind="mamba"), True),
        (structs.replace(FAILURE, request="r1"), False),
        (structs.replace(FAILURE, event_kind="dummy_run"), False),
        (structs.replace(FAILURE, oracle="S4"), False),
    ],
)
def test_another_failure_is_not_this_one(elsewhere: Violation, is_same: bool) -> None:
    class Other(Engine):
        def run(self, trace: Trace) -> Outcome:
            return Outcome(FAILURE if trace.config.num_speculative_tokens else elsewhere, 1, 1, {}, {}, 0)

    reach = measured(Other(never)).reach
    assert reach and reach.needs == ([] if is_same else ["--drafts"])


def test_stand_in_tokens_prove_nothing_of_a_real_models_numbers() -> None:
    class Right(Engine):
        def serve(self, trace: Trace, request: str = "") -> Answers:
            return Answers((Answer("r0", 1, (1,), (1,)),))

    numbers = structs.replace(FAILURE, oracle="S6", field="logprobs")
    assert effect_of(numbers, answers_of(Right(always), trace(), numbers)) == "wrong tokens"
    assert effect_of(FAILURE, answers_of(Right(always), trace(), FAILURE)) == "corrupt cache"


def test_a_rule_with_two_consequences_is_two_failures() -> None:
    class Stalls(Engine):
        def run(self, trace: Trace) -> Outcome:
            field = "stall" if trace.config.num_speculative_tokens else "hit"
            return Outcome(Violation("M8", field), 1, 1, {}, {}, 0)

    severity = severity_of(trace(), Violation("M8", "stall"), Stalls(never), ABLE, ())
    assert severity.reach and severity.reach.needs == ["--drafts"]


def test_runs_and_time_are_bounded() -> None:
    engine = Engine(
        lambda run: (
            run.k == 2 and run.policy == "priority" and run.mode == "odd" and run.runner == "v1" and run.depth == 0
        )
    )
    long = structs.replace(trace(), events=trace().events * 100)
    severity = severity_of(long, FAILURE, engine, ABLE, RUNNERS, 60.0)
    assert severity.reach and engine.runs <= RUNS_MAX + 2 and not severity.reach.is_complete
    hurried = measured(Engine(always), seconds=0.0).reach
    assert hurried and not hurried.is_complete


def test_without_a_stock_server_there_is_no_level() -> None:
    engine = Engine(always)
    severity = measured(engine, structs.replace(ABLE, stock=None))
    assert (severity.level, severity.effect, severity.reach) == ("", "wrong tokens", None)
    assert severity.unmeasured == "the target declares no stock server" and engine.runs == 0
    hang = severity_of(trace(), Violation("HANG", ""), engine, ABLE, RUNNERS)
    assert (hang.level, hang.effect, hang.unmeasured) == ("", "hang", "each run takes the time limit")
    assert severity_of(trace(), Violation("ADAPTER", ""), engine, ABLE, RUNNERS) == Severity("", "")


class Hybrid(Engine):
    """A mutant, in this process."""

    def __init__(self, slug: str) -> None:
        self.factory = load_factory(f"hybrid:{slug}")

    def run(self, trace: Trace) -> Outcome:
        return run_trace(self.factory, trace)

    def serve(self, trace: Trace, request: str = "") -> Answers:
        return collect_answers(self.factory, trace, request)


@pytest.mark.parametrize(
    ("slug", "level", "effect", "needs"),
    [
        ("accepted-count-zero--S3-step-mamba-temporal", "P1", "wrong tokens", ["mamba_cache_mode", "speculation"]),
        ("align-starvation--M8-step-stall", "P2", "hang", ["long_prefill_token_threshold"]),
        ("zeroing-wipes-loaded-kv--S2-step-attention-slot", "P2", "wrong tokens", ["connector_saves"]),
    ],
)
def test_mutants(slug: str, level: str, effect: str, needs: list[str]) -> None:
    failing, engine = load_trace(FOLDERS.parent / "corpus" / f"{slug}.json"), Hybrid(slug.partition("--")[0])
    violation = engine.run(failing).violation
    assert violation
    severity = severity_of(failing, violation, engine, CAPABILITIES, ())
    assert severity.reach and severity.reach.is_complete
    assert (severity.level, severity.effect, list(severity.reach.needs)) == (level, effect, needs)


def test_the_stock_server_of_the_built_in_target_is_the_default_configuration() -> None:
    plain = Config(2, ())
    for setting in CAPABILITIES.stock or ():
        for name, value in setting.stock.items():
            if name in Config.__struct_fields__:
                assert str(getattr(plain, name)).lower() == value, setting


def test_events_of_a_setting_go_with_it() -> None:
    """A load of a KV connector stayed behind, where it did nothing, when the connector was reset; a report told it."""
    stock = (Setting("--connector", {"mode": "plain"}, events=frozenset({"external_load"})),)
    able = structs.replace(ABLE, stock=stock)
    failing = structs.replace(trace(), events=(*trace().events, ExternalLoad("r0", 4)))
    nearest, severity = nearest_of(failing, FAILURE, Engine(always), able, (), lambda one: one.signature)
    assert nearest.events == trace().events and severity.reach and severity.reach.needs == []
    needed = Engine(lambda run: run.events == 3)
    nearest, severity = nearest_of(failing, FAILURE, needed, able, (), lambda one: one.signature)
    assert nearest.events == failing.events and severity.reach and severity.reach.needs == ["--connector"]
