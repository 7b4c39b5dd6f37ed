"""Decides whether failures have one cause, from their evidence.

The place where executions part is the strongest evidence: two traces of one cause part from their passing neighbours on
the same lines, whichever invariant breaks first and whatever else their requests do. Signatures decide nothing where
there are lines. Without lines (a target that names no sources, a lost process, no passing neighbour), two failures have
one cause if symptom, kinds of events and necessary facts agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .evidence import Condition, Evidence, FindingEvidence

SAME = 0.5
"""Likeness from which two failures count as one cause."""
CONTAINED = 0.8
"""Share of the smaller set of arcs that must be in the larger one, where the sets differ much in size."""
ARCS_MIN = 6
"""Arcs that the smaller set must have for that: less may be a coincidence."""


def likeness(one: Evidence, other: Evidence) -> float:
    """Return how like the causes of two failures are, 0 to 1."""
    first, second = set(one.parting), set(other.parting)
    if not first or not second:
        return _by_symptom(one, other)
    common = len(first & second)
    alike = common / len(first | second)
    smaller = min(len(first), len(second))
    if smaller >= ARCS_MIN and common / smaller >= CONTAINED and _same_place(one, other):
        alike = max(alike, SAME)
    return alike


def _same_place(one: Evidence, other: Evidence) -> bool:
    """Return True if the runs part first in the same function."""
    if not one.places or not other.places:
        return False
    first, second = one.places[0], other.places[0]
    return (first.file, first.function) == (second.file, second.function)


def _by_symptom(one: Evidence, other: Evidence) -> float:
    if one.signature != other.signature or one.relation != other.relation:
        return 0.0
    if set(one.events) != set(other.events):
        return 0.0
    return _overlap(one.needed, other.needed)


def _overlap(one: Iterable[str], other: Iterable[str]) -> float:
    first, second = set(one), set(other)
    return len(first & second) / len(first | second) if first | second else 1.0


def best_match(evidence: Evidence, findings: Mapping[str, FindingEvidence]) -> str:
    """Return the name of the finding that has the same cause, "" if none has."""
    scores = {name: likeness_to(evidence, finding) for name, finding in findings.items()}
    best = max(scores, key=lambda name: scores[name], default="")
    return best if best and scores[best] >= SAME else ""


def likeness_to(evidence: Evidence, finding: FindingEvidence) -> float:
    """Return the likeness to the trace of a finding that is most like it."""
    return max((likeness(evidence, each) for each in finding.evidence), default=0.0)


def learned(evidence: Sequence[Evidence]) -> Condition:
    """Return the condition that all failing traces of a finding satisfy."""
    if not evidence:
        return Condition()
    common = set.intersection(*(set(each.facts) for each in evidence))
    needed = set.union(*(set(each.needed) for each in evidence))
    names = set.intersection(*(set(each.switches) for each in evidence))
    switches = {name: tuple(sorted({each.switches[name] for each in evidence})) for name in sorted(names)}
    return Condition(switches, tuple(sorted(common & needed)))
