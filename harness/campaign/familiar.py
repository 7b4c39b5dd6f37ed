"""Failing traces that look like those which a known bug has explained before.

What all traces of a bug have in common, as far as it can be read from them without running them (`draw.aim`), is more
than what the bug needs, and comes closer to it with each trace. A further failure of a signature that the bug has shown
is *familiar* if it has all of that. Others are looked into first: they are where another bug hides behind the same
symptom.
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
