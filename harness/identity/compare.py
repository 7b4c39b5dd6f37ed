"""Decides whether failures have one cause, from their evidence.

The likeness of two failures is a weighted mean of three kinds of evidence:

    lines     the arcs on which each parts from its nearest passing neighbours, as overlap of the two sets
    facts     the facts of the two runs at the violation, as overlap: all, and those of the violating step alone
    switches  the configuration switches that are necessary, as overlap

Lines alone never put two causes together on vLLM's traces, but split one cause where a neighbour takes another path;
facts and switches alone do both. Signatures decide nothing where there are lines: one cause breaks several invariants,
and several causes break the same one. Without lines (a target that names no packages, a lost process, no passing
neighbour) the symptom counts instead, and a trace is no reason for a further finding behind a signature.

Weights and thresholds were chosen on 121 failing traces of vLLM 0.33.0 (seed 31, the first 38 of seed 77, and its
corpus), from a coarse grid; figures on other traces are in benchmarks/identity.md. Tried and rejected: Ochiai weights
instead of sets of arcs (one distant neighbour hides the place), functions instead of arcs (a scheduler is one
function), equality of symptoms as a fourth kind (it added nothing).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .evidence import Condition, Evidence, FindingEvidence

LINES, FACTS, NOW, SWITCHES = 0.5, 0.4, 0.4, 0.4
"""Weights: lines, all facts, those of the violating step alone, switches."""
WITHOUT_LINES = 0.5
"""Factor for two failures of different symptoms of which one has no lines: facts and switches alone are weak."""
SAME = 0.38
"""Likeness from which a trace belongs to a finding."""
LINK = 0.48
"""Likeness from which a trace that belongs to a finding makes another one part of it: a mistake costs more here."""


def likeness(one: Evidence, other: Evidence) -> float:
    """Return how like the causes of two failures are, 0 to 1."""
    facts = FACTS * _overlap(one.facts, other.facts) + NOW * _overlap(_now(one), _now(other))
    switches = _overlap(one.switches, other.switches)
    if (one.parting or one.apart) and (other.parting or other.apart):
        lines = max(_overlap(one.parting, other.parting), _overlap(one.apart, other.apart))
        return (LINES * lines + facts + SWITCHES * switches) / (LINES + FACTS + NOW + SWITCHES)
    certain = 1.0 if (one.signature, one.relation) == (other.signature, other.relation) else WITHOUT_LINES
    return certain * (facts + SWITCHES * switches) / (FACTS + NOW + SWITCHES)


def founds(evidence: Evidence) -> bool:
    """Return True if evidence is good enough to tell a further cause behind a signature that was met before."""
    return evidence.complete and bool(evidence.parting or evidence.apart)


def _now(evidence: Evidence) -> list[str]:
    """Return the facts of the violating step alone."""
    return [fact for fact in evidence.facts if "before" not in fact.split()[:2]]


def _overlap(one: Collection[str], other: Collection[str]) -> float:
    """Return the Jaccard index; 0.5 for two empty sets, which say nothing."""
    first, second = set(one), set(other)
    return len(first & second) / len(first | second) if first | second else 0.5


def likeness_to(evidence: Evidence, finding: FindingEvidence) -> float:
    """Return the likeness to the trace of a finding that is most like it."""
    return max((likeness(evidence, each) for each in finding.evidence), default=0.0)


def same_cause(evidence: Evidence, findings: Mapping[str, FindingEvidence]) -> list[str]:
    """Return the names of findings that have the same cause, the most like first.

    More than one means that these findings have one cause, too: the trace is the link between them.
    """
    scores = {name: likeness_to(evidence, finding) for name, finding in findings.items()}
    first, *others = sorted(scores, key=lambda name: -scores[name]) or [""]
    if not first or scores[first] < SAME:
        return []
    return [first, *(name for name in others if scores[name] >= LINK)]


def best_match(evidence: Evidence, findings: Mapping[str, FindingEvidence]) -> str:
    """Return the name of the finding that has the same cause and is most like it, "" if there is none."""
    return next(iter(same_cause(evidence, findings)), "")


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
    for name in same_cause(evidence, known):
        if holds(known[name].condition, evidence):
            return name
    return ""
