"""Failing traces that look like those which a known bug has explained before.

The features that all explained traces of a bug share, read without running them (`draw.aim`), are more than the bug
needs, and come closer to that with each trace. A further failure with a signature that the bug has shown is *familiar*
if it has all these features. Unfamiliar ones are looked into first: another bug may hide behind the same signature.
"""

from __future__ import annotations

from collections import defaultdict

from ...targets.base.trace import Trace
from ..draw.aim import features_of
from ..group.reduction.reduce import until
from ..judge.violation import Violation

Features = frozenset[str]


class Familiar:
    """What the explained traces of each bug have in common. Call its methods under one lock."""

    def __init__(self) -> None:
        self._common: dict[str, Features] = {}
        """By name of the bug."""
        self._bugs: defaultdict[str, set[str]] = defaultdict(set)
        """Names of bugs by the signatures that they have shown."""

    def learn(self, bug: str, trace: Trace, violation: Violation) -> None:
        """Note that a bug explains a trace."""
        seen = features_of(until(violation, trace))
        self._common[bug] = self._common.get(bug, seen) & seen
        self._bugs[violation.signature].add(bug)

    def has(self, trace: Trace, violation: Violation) -> bool:
        """Return True if a trace looks like those of a bug that has shown its signature."""
        bugs = self._bugs.get(violation.signature)
        if not bugs:
            return False
        seen = features_of(until(violation, trace))
        return any(self._common[bug] <= seen for bug in bugs)
