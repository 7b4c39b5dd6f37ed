"""Failures with one cause are like each other, whatever invariant broke first."""

import pytest
from msgspec import structs

from hybridfuzz.harness.group.causes.evidence import Evidence, FindingEvidence
from hybridfuzz.harness.group.causes.same_cause import (
    EVIDENCE_MAX,
    alike,
    can_start_finding,
    joined,
    learned,
    likeness,
    same_cause,
)
from hybridfuzz.harness.group.causes.weights import SAME, SAME_RELATED
from hybridfuzz.harness.judge.oracles import subject_of, titles

PADDED = Evidence(
    "S3-step-mamba-temporal",
    switches={"num_speculative_tokens": "1"},
    facts=("own now one known token", "own now prompt"),
    origins=("own stores several", "found write by other"),
    needed=("own now one known token",),
    votes={"a.py:f:1": 0.5, "a.py:f:2": 0.5},
)


def variant(**fields: object) -> Evidence:
    return Evidence(**{name: getattr(PADDED, name) for name in Evidence.__struct_fields__} | fields)  # type: ignore[arg-type]


def test_another_signature_is_no_other_cause() -> None:
    assert likeness(PADDED, PADDED) > 0.99
    assert likeness(PADDED, variant(signature="S4-step-mamba-temporal")) > 0.8


def test_the_same_signature_is_not_the_same_cause() -> None:
    other = variant(switches={"runner": "v1"}, facts=("now graph",), votes={"b.py:g:7": 1.0})
    assert likeness(PADDED, other) < SAME


def test_facts_count_most_then_votes_then_origins() -> None:
    facts, votes = variant(facts=("now x",)), variant(votes={"b.py:g:7": 1.0})
    assert likeness(PADDED, facts) < likeness(PADDED, votes) < likeness(PADDED, variant(origins=("found x",)))


def test_facts_that_separate_causes_count_more_than_accidents() -> None:
    """A request that was left out of a step is a circumstance of a defect; the length of its row is an accident."""
    plain = variant(facts=("event step", "own now drafts"))
    left_out = variant(facts=(*plain.facts, "own was left out of the step before"))
    shorter = variant(facts=(*plain.facts, "own now shorter than a full decode"))
    assert likeness(plain, left_out) < likeness(plain, shorter) < likeness(plain, plain)


def test_an_implementation_that_one_failure_needs_and_the_other_does_not_use_speaks_against_one_cause() -> None:
    """The defect of one is in code that the other does not run: replayed drafts need Mamba 2, a row that was left out
    of a step fails with every kernel."""
    needs = variant(switches={"mixer": "mamba2", "runner": "v1"}, values={"mixer": "mamba2", "runner": "v1"})
    without = variant(switches={"runner": "v1"}, values={"mixer": "gdn", "runner": "v1"})
    both = variant(switches={"runner": "v1"}, values={"mixer": "mamba2", "runner": "v1"})
    cut_off = structs.replace(both, complete=False)
    assert likeness(needs, without) == likeness(without, needs) < likeness(needs, both) < likeness(needs, cut_off)
    unknown = variant(switches={}, values={})
    assert likeness(needs, unknown) == likeness(variant(switches=needs.switches), unknown)


def test_numbers_and_modes_are_no_implementations() -> None:
    for name, one, other in (
        ("prefix_match_unit", "4", "0"),
        ("mamba_cache_mode", "align", "none"),
        ("x", "true", "false"),
    ):
        needs, another = variant(switches={name: one}, values={name: one}), variant(switches={}, values={name: other})
        assert likeness(needs, another) == likeness(needs, variant(switches={}, values={name: one}))


def test_without_votes_the_rest_has_to_agree() -> None:
    bare = variant(votes={})
    assert SAME < likeness(bare, bare) < likeness(PADDED, PADDED)
    assert likeness(PADDED, variant(votes={}, facts=("now graph",), origins=("found zeroed",))) < SAME
    assert can_start_finding(PADDED) and not can_start_finding(bare) and not can_start_finding(variant(complete=False))


def test_a_finding_is_as_like_as_its_traces_are_in_the_mean() -> None:
    """With the nearest trace instead, a single odd one draws others to its finding and joins two causes."""
    foreign = variant(signature="M1-step", facts=("now x",), origins=(), switches={"y": "1"}, votes={"c.py:h:1": 1.0})
    own, mixed = FindingEvidence([PADDED] * 3), FindingEvidence([foreign] * 3 + [PADDED])
    assert same_cause([PADDED], {"mixed": mixed, "own": own}) == "own"
    assert same_cause([PADDED], {"mixed": mixed}) == "" and likeness(PADDED, mixed.evidence[3]) > SAME
    assert same_cause([PADDED, PADDED], {}) == same_cause([], {"own": own}) == ""


def test_findings_that_need_the_same_switches_join_earlier() -> None:
    """The victim of a cause may be the request that triggers it or another one: other facts, the same switches."""
    switches = {"runner": "v1", "graphs": "decode"}
    own = variant(switches=switches, votes={"a.py:f:1": 1.0})
    victim = variant(
        switches=switches | {"policy": "priority"},
        facts=("now graph",),
        votes={"a.py:f:2": 1.0},
        origins=PADDED.origins[:1],
    )
    victim = structs.replace(victim, signature="S4-step-mamba-temporal")
    assert SAME_RELATED < likeness(own, victim) < SAME
    findings = {"own": FindingEvidence([own]), "victim": FindingEvidence([victim])}
    assert same_cause([victim], findings, but="victim") == "own"
    assert same_cause([victim], {"own": findings["own"]}) == ""
    single = structs.replace(own, switches={"runner": "v1"})
    assert same_cause([single], {"victim": findings["victim"]}, but="x") == ""
    other = structs.replace(own, switches={"runner": "v1", "graphs": "none"})
    assert likeness(other, victim) > SAME_RELATED
    assert same_cause([other], {"victim": findings["victim"]}, but="x") == "", "they need another kind of graph"


def test_findings_that_need_other_numbers_or_modes() -> None:
    """Numbers of drafts may differ. Cache modes may not: T30 of benchmarks/mixtures.py lost a cause by that."""
    three = variant(switches={"num_speculative_tokens": "3", "mamba_cache_mode": "all"})
    one = variant(
        switches={"num_speculative_tokens": "1", "mamba_cache_mode": "all"},
        facts=("now graph",),
        votes={"b.py:g:1": 1.0},
        origins=PADDED.origins[:1],
    )
    one = structs.replace(one, signature="S4-step-mamba-temporal")
    aligned = structs.replace(one, switches={"num_speculative_tokens": "1", "mamba_cache_mode": "align"})
    assert SAME_RELATED < likeness(three, aligned) <= likeness(three, one) < SAME
    findings = {"three": FindingEvidence([three])}
    assert same_cause([one], findings, but="x") == "three"
    assert same_cause([aligned], findings, but="x") == ""


def test_findings_that_show_the_same_two_symptoms_join_earlier() -> None:
    """One symptom in common is what two causes often have; two are more than chance."""
    first = [variant(relation=each, switches={}) for each in ("reads zeros", "reads another state")]
    second = [structs.replace(each, facts=("now graph",), votes={"a.py:f:2": 1.0}, origins=()) for each in first]
    assert SAME_RELATED < alike(first, second) < SAME
    findings = {"first": FindingEvidence(first)}
    assert same_cause(second, findings, but="second") == "first"
    assert same_cause(second[:1], findings, but="second") == ""
    assert same_cause(second, findings) == "", "the group is no finding"


def test_rules_with_different_subjects_speak_against_one_cause() -> None:
    """T9 lost the cause of a wrong estimate (M7) to one that writes into shared blocks (M5)."""
    estimate = variant(signature="M7-step-blocks")
    assert likeness(estimate, variant(signature="M9-step-blocks")) > likeness(estimate, PADDED)
    assert likeness(variant(signature="M2-step-mamba-key"), estimate) == likeness(estimate, PADDED)
    crash = variant(signature="CRASH-step-KeyError-free")
    assert likeness(crash, estimate) == likeness(crash, PADDED), "a crash breaks no rule"


def test_every_rule_has_a_subject() -> None:
    assert {subject_of(oracle) for oracle in titles()} == {"resources", "cache", "device"}
    assert {oracle for oracle in titles() if subject_of(oracle) == "resources"} == {"M7", "M8", "M9"}
    assert not any(map(subject_of, ("CRASH", "HANG", "D1", "X9")))


def test_groups_are_compared_as_a_whole() -> None:
    other = variant(votes={"a.py:f:2": 1.0})
    assert alike([PADDED, other], [PADDED]) == pytest.approx((likeness(PADDED, PADDED) + likeness(PADDED, other)) / 2)
    assert alike([], [PADDED]) == 0.0


def test_the_first_traces_of_a_finding_are_kept() -> None:
    known = joined(None, [PADDED])
    assert list(known.evidence) == [PADDED] and known.condition == learned([PADDED])
    many = joined(known, [variant(relation=str(number)) for number in range(EVIDENCE_MAX)])
    assert [each.relation for each in many.evidence] == ["", *map(str, range(EVIDENCE_MAX - 1))]


def test_a_condition_holds_what_all_traces_have_and_some_neighbour_lacks() -> None:
    other = variant(switches={"num_speculative_tokens": "3", "runner": "v1"}, facts=("own now one known token",))
    condition = learned([PADDED, other])
    assert condition.facts == ("own now one known token",)
    assert condition.switches == {"num_speculative_tokens": ("1", "3")}
    assert learned([]).facts == ()
