"""Decides whether failures have one cause, from their evidence.

The likeness of two failures is the estimated probability that they have one cause: a logistic function of seven kinds
of evidence (`weights` has the fitted numbers):

    votes     the lines at which their passing neighbours decide otherwise, as cosine of the shares
    now       the facts of the violating step, as overlap (Jaccard index of weighted facts)
    origins   the facts about where the wrong value came from, as overlap of weighted facts
    switches  the configuration switches that are necessary, as overlap
    symptom   the same signature and the same relation between expected and observed
    implementations
              a switch of the engine that chooses code by name (a runner, a kernel, a kind of graph) speaks against one
              cause if one failure needs the choice that the other does not have, or fails without it, too: the defects
              are probably in different code
    subject   oracles are about resources (estimates, progress, leaks), the cache's metadata, or what the device does:
              violations of oracles with different subjects are less likely to have one cause

Two groups of failures are as like as their traces are in the mean (average linkage): one odd trace neither draws others
to its finding nor joins two findings. Two findings that agree in more than pairs of traces can show join at a lower
likeness: if they need the same two or more switches, with values that do not exclude each other (the victim of a cause
may be the request that triggers it or another one, with different facts), or if two or more symptoms occur in both.
One symptom weighs little: one cause breaks several invariants, and several causes break the same one. Without votes (a
target that names no packages, a lost process, no passing neighbour) a trace is no reason for a further finding behind a
signature.

So a further kind of evidence is a term in `likeness`, and in `can_start_finding` if it is to count without votes.

docs/explanation/decisions.md lists what was tried and rejected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import exp, hypot
from statistics import fmean

from ....targets.base.trace import Config
from ...judge.oracles import subject_of
from .evidence import Condition, Evidence, FindingEvidence
from .weights import (
    BIAS,
    CONTRADICTION,
    FACTS,
    NOW,
    ORIGIN_FACTS,
    ORIGINS,
    OTHER_SUBJECT,
    SAME,
    SAME_RELATED,
    SHARED_MIN,
    SWITCHES,
    SYMPTOM,
    UNNEEDED,
    VOTES,
    WITHOUT_VOTES,
)

EVIDENCE_MAX = 20
"""Traces of a finding whose evidence is kept, the first ones: enough for a mean."""


def likeness(one: Evidence, other: Evidence) -> float:
    """Return how probable it is that two failures have one cause, 0 to 1."""
    known = VOTES * _cosine(one.votes, other.votes) if one.votes and other.votes else WITHOUT_VOTES
    known += NOW * _overlap(_now(one), _now(other), FACTS)
    known += ORIGINS * _overlap(one.origins, other.origins, ORIGIN_FACTS)
    known += SWITCHES * _overlap(one.switches, other.switches)
    known += SYMPTOM * ((one.signature, one.relation) == (other.signature, other.relation))
    if _needs_what_is_absent(one, other) or _needs_what_is_absent(other, one):
        known -= CONTRADICTION
    if _needs_what_is_unneeded(one, other) or _needs_what_is_unneeded(other, one):
        known -= UNNEEDED
    if _other_subject(one, other):
        known -= OTHER_SUBJECT
    return 1 / (1 + exp(-(BIAS + known)))


def _other_subject(one: Evidence, other: Evidence) -> bool:
    """Return True if two failures break rules with different subjects."""
    subjects = {subject_of(each.signature.partition("-")[0]) for each in (one, other)}
    return len(subjects - {""}) > 1


def can_start_finding(evidence: Evidence) -> bool:
    """Return True if evidence is good enough to tell a further cause behind a signature that was met before."""
    return evidence.complete and bool(evidence.votes)


def _now(evidence: Evidence) -> list[str]:
    """Return the facts of the violating step alone."""
    return [fact for fact in evidence.facts if "before" not in fact.split()[:2]]


def _implementations(evidence: Evidence) -> dict[str, str]:
    """Return the necessary switches that choose between implementations: the engine's own, with a name as value."""
    return {name: value for name, value in evidence.switches.items() if _chooses(name, value)}


def _chooses(switch: str, value: str) -> bool:
    return switch not in Config.__struct_fields__ and value not in ("true", "false") and not value.isdecimal()


def _needs_what_is_absent(one: Evidence, other: Evidence) -> bool:
    """Return True if a failure needs an implementation in whose place the other one uses another."""
    return any(other.values.get(name, value) != value for name, value in _implementations(one).items())


def _needs_what_is_unneeded(one: Evidence, other: Evidence) -> bool:
    """Return True if a failure needs an implementation that the other one uses, but fails without, too."""
    return other.complete and any(
        other.values.get(name) == value and name not in other.switches for name, value in _implementations(one).items()
    )


def _overlap(one: Collection[str], other: Collection[str], weights: Mapping[str, float] | None = None) -> float:
    """Return the Jaccard index, of weighted members if there are weights (1 where none is listed).

    0.5 for two empty sets, which are no evidence.
    """
    first, second, each = set(one), set(other), weights or {}
    union = sum(each.get(member, 1.0) for member in first | second)
    return sum(each.get(member, 1.0) for member in first & second) / union if union else 0.5


def _cosine(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the cosine of two vectors that are not empty."""
    product = sum(share * other.get(line, 0.0) for line, share in one.items())
    return product / (hypot(*one.values()) * hypot(*other.values()))


def alike(one: Sequence[Evidence], other: Sequence[Evidence]) -> float:
    """Return the mean likeness of the failures of two groups, 0 if one is empty."""
    return fmean(likeness(each, its) for each in one for its in other) if one and other else 0.0


def same_cause(seen: Sequence[Evidence], findings: Mapping[str, FindingEvidence], *, but: str = "") -> str:
    """Return the name of the finding, other than `but`, that has the cause of a group of failures and is most like it,
    "" for none.

    With `but` the group is a finding, too: two findings that are related join at a lower likeness.
    """
    scores = {
        name: score
        for name, finding in findings.items()
        if name != but
        and (score := alike(seen, finding.evidence)) >= SAME_RELATED
        and (score >= SAME or (but and _related(seen, finding.evidence)))
    }
    return max(scores, key=lambda name: scores[name], default="")


def _related(one: Sequence[Evidence], other: Sequence[Evidence]) -> bool:
    """Return True if two findings need the same switches, or have symptoms in common: at least SHARED_MIN of them."""
    return _need_the_same(one, other) or len(_symptoms(one) & _symptoms(other)) >= SHARED_MIN


def _symptoms(seen: Sequence[Evidence]) -> set[tuple[str, str]]:
    return {(each.signature, each.relation) for each in seen}


def _need_the_same(one: Sequence[Evidence], other: Sequence[Evidence]) -> bool:
    """Return True if the switches that all traces of one finding need are those of another one, or some of them.

    Numbers may differ. Of names (a cache mode, a runner) both findings need at least one in common.
    """
    first, second = _needed_by_all(one), _needed_by_all(other)
    both = first.keys() & second.keys()
    if len(both) < max(SHARED_MIN, min(len(first), len(second))):
        return False
    return all(
        not first[name].isdisjoint(second[name]) or all(value.isdecimal() for value in first[name] | second[name])
        for name in both
    )


def _needed_by_all(seen: Sequence[Evidence]) -> dict[str, set[str]]:
    """Return the switches that every trace with complete evidence needs, with the values that they have."""
    needed = [each.switches for each in seen if each.complete]
    names = set.intersection(*map(set, needed)) if needed else set()
    return {name: {switches[name] for switches in needed} for name in names}


def joined(known: FindingEvidence | None, more: Sequence[Evidence]) -> FindingEvidence:
    """Return what is known about the cause of a finding after more of its traces, with the condition learned anew."""
    kept = [*(known.evidence if known else ()), *more][:EVIDENCE_MAX]
    return FindingEvidence(kept, learned(kept))


def learned(evidence: Sequence[Evidence]) -> Condition:
    """Return the condition that all failing traces of a finding satisfy."""
    if not evidence:
        return Condition()
    common = set.intersection(*(set(each.facts) for each in evidence))
    needed = set.union(*(set(each.needed) for each in evidence))
    traits = set.intersection(*(set(each.traits) for each in evidence))
    names = set.intersection(*(set(each.switches) for each in evidence))
    switches = {name: tuple(sorted({each.switches[name] for each in evidence})) for name in sorted(names)}
    return Condition(switches, tuple(sorted(common & needed)), tuple(sorted(traits & needed)))


def holds(condition: Condition, evidence: Evidence) -> bool:
    """Return True if a failing trace satisfies a condition. One without switches and facts holds for no trace."""
    if not condition.switches and not condition.facts:
        return False
    if any(evidence.values.get(name, "") not in allowed for name, allowed in condition.switches.items()):
        return False
    return set(condition.facts) <= set(evidence.facts)


def known_cause(evidence: Evidence, known: Mapping[str, FindingEvidence]) -> str:
    """Return the name of the known bug that a failing trace shows, "" if it is a new one.

    Both have to agree: the condition of the known bug holds, and the evidence is like that of its traces. When in doubt
    the failure is new.
    """
    name = same_cause([evidence], known)
    return name if name and holds(known[name].condition, evidence) else ""
