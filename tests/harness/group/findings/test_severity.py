"""How much a finding matters: the table, what a client gets, the order of findings."""

from typing import get_args

import msgspec
import pytest

from hybridfuzz.harness.campaign_summary import Cause, Effect, Finding, Reach, Severity
from hybridfuzz.harness.group.findings.severity import (
    TABLE,
    Distance,
    distance_of,
    effect_of,
    is_on_default,
    joined,
    level_of,
    ranked,
    severity_words,
)
from hybridfuzz.harness.judge.oracles import BEYOND, ORACLES, client_of, consequence
from hybridfuzz.harness.judge.violation import Violation
from hybridfuzz.harness.record.answers import Answer, Answers

RIGHT = Answer("r0", 4, (1, 2), (1, 2))
WRONG = Answer("r1", 4, (1, 2), (1, 3))
STUCK = Answer("r2", 4, (1, 2), (1,), end="not finished")
RAISED = Answer("r3", 4, (1, 2), (1,), end="KeyError: 3")
STATE, CRASH, LOST_HIT = (
    Violation("S3", "temporal"),
    Violation("CRASH", "AssertionError-forward"),
    Violation("M8", "unpublished"),
)


def finding(name: str, severity: Severity | None = None, **more: object) -> Finding:
    return Finding("S3-a", "S3", "m", 1, 1, 3, "t.json", 0, name=name, severity=severity, **more)  # type: ignore[arg-type]


def on(*titles: str, needs: tuple[str, ...] = (), rare: tuple[str, ...] = ()) -> Reach:
    return Reach(needs, rare, implementations={title: title in titles for title in ("V2", "V1")}, default="V2")


def test_the_table_has_every_effect_and_distance_and_does_not_rise_with_the_distance() -> None:
    assert set(TABLE) == set(get_args(Effect)) - {""}
    for levels in TABLE.values():
        assert tuple(levels) == get_args(Distance)
        assert list(levels.values()) == sorted(levels.values())
    assert [effect for effect, levels in TABLE.items() if levels["stock"] == "P0"] == ["wrong tokens"]


def test_every_rule_says_what_a_client_gets() -> None:
    untested = {"ADAPTER", "RECORD", "PROTOCOL", "D1", "D2"}  # of D1 and D2 nobody knows which side is wrong
    rules = [rule for oracle in ORACLES for rule in oracle.rules] + list(BEYOND)
    for rule in rules:
        for field in ("", *rule.otherwise, *rule.fields):
            client = client_of(Violation(rule.id, field))
            assert bool(client) == (rule.id not in untested), (rule.id, field)
    assert client_of(Violation("M8", "lost")) == client_of(Violation("M8", "stall")) == "hang"
    assert client_of(LOST_HIT) == client_of(Violation("M8", "hit")) == "slower"
    assert consequence("CRASH") is None and client_of(CRASH) == "dead engine"


@pytest.mark.parametrize(
    ("violation", "rows", "effect"),
    [
        (STATE, (RIGHT, WRONG), "wrong tokens"),
        (STATE, (RIGHT,), "corrupt cache"),
        (Violation("S6", "prompt-logprobs"), (RIGHT,), "wrong tokens"),  # the wrong answer itself
        (STATE, (), "wrong tokens"),  # no run to the end: as the rule says
        (STATE, (RIGHT, STUCK), "hang"),
        (STATE, (RIGHT, RAISED), "corrupt cache"),  # behind a broken invariant the adapter may raise, too
        (LOST_HIT, (RIGHT,), "slower"),
        (LOST_HIT, (WRONG,), "wrong tokens"),
        (CRASH, (RAISED, STUCK), "dead engine"),
    ],
)
def test_what_a_run_shows_counts_before_what_the_rule_says(
    violation: Violation, rows: tuple[Answer, ...], effect: Effect
) -> None:
    assert effect_of(violation, Answers(rows)) == effect


def test_a_call_that_is_answered_with_an_error_ends_nothing() -> None:
    crash = msgspec.structs.replace(CRASH, event_kind="reset_prefix_cache")
    assert effect_of(crash, Answers((RAISED,)), {"reset_prefix_cache"}) == "failed call"
    assert effect_of(crash, Answers((RAISED,)), {"step"}) == "dead engine"
    assert effect_of(STATE, Answers((WRONG,)), {STATE.event_kind}) == "wrong tokens"


@pytest.mark.parametrize(
    ("needs", "rare", "distance"),
    [
        ((), (), "stock"),
        (("a", "b"), (), "usual"),
        (("a", "b", "c"), (), "rare"),
        (("a", "b", "c", "d"), (), "far"),
        (("x",), ("x",), "rare"),
        (("x", "a"), ("x",), "rare"),
        (("x", "a", "b"), ("x",), "far"),
        (("x", "y"), ("x", "y"), "far"),
    ],
)
def test_distance_counts_settings(needs: tuple[str, ...], rare: tuple[str, ...], distance: Distance) -> None:
    assert distance_of(Reach(needs, rare)) == distance
    assert level_of("wrong tokens", Reach(needs, rare)) == TABLE["wrong tokens"][distance]


def test_findings_are_ranked_by_level_and_the_default_implementation_comes_first() -> None:
    only_v1 = finding("v1", Severity("P0", "wrong tokens", on("V1")))
    known = finding("known", cause=Cause("c", severity=Severity("P1", "hang", on("V2", "V1"))))
    unknown, lost_hit = finding("unknown"), finding("p3", Severity("P3", "slower", on("V2")))
    worst = finding("p0", Severity("P0", "wrong tokens", on("V2")))
    found = ranked([only_v1, lost_hit, unknown, known, worst])
    assert [one.id for one in found] == ["p0", "known", "unknown", "p3", "v1"]
    assert [is_on_default(one) for one in found] == [True, True, True, True, False]


def test_a_default_that_cannot_run_the_trace_is_not_where_it_fails() -> None:
    assert not Reach(implementations={"V1": True}, default="V2").is_on_default
    assert Reach().is_on_default


def test_a_cause_shows_wherever_one_of_its_traces_does() -> None:
    v1 = Severity("P2", "wrong tokens", scheduled(on("V1", needs=("a",)), {"asynchronous": True}))
    v2 = Severity("P1", "wrong tokens", scheduled(on("V2"), {"asynchronous": False, "synchronous": True}))
    both = joined([v1, None, v2])
    assert both and both.reach and both.level == "P1" and both.reach.needs == ()
    assert both.reach.implementations == {"V2": True, "V1": True}
    assert both.reach.scheduling == {"asynchronous": True, "synchronous": True}
    assert joined([None]) is None


def scheduled(reach: Reach, scheduling: dict[str, bool]) -> Reach:
    return msgspec.structs.replace(reach, scheduling=scheduling)


def test_words() -> None:
    reach = Reach(("--x", "--y"), ("--x",), ("--y",), {"asynchronous": True, "synchronous": False}, {"V2": True})
    assert severity_words(Severity("P2", "hang", reach)) == (
        "P2, hang; needs --x, --y (not tried without); asynchronous, not synchronous scheduling"
    )
    assert severity_words(Severity("P0", "wrong tokens", on("V2"))) == (
        "P0, wrong tokens; on the stock server; V2, not V1"
    )
    unmeasured = Severity("", "hang", unmeasured="each run takes the time limit")
    assert severity_words(unmeasured) == "hang; reach not measured: each run takes the time limit"


def test_a_finding_of_an_older_version_has_no_severity() -> None:
    old = msgspec.to_builtins(finding("old"))
    del old["severity"]
    assert msgspec.convert(old, Finding).severity is None
