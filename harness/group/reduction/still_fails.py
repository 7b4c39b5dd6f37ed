"""Tells whether a candidate of a reduction still fails in the same way: same signature, request and message pattern.

Otherwise a reduction would slip from one cause to another that shows alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ....targets.base.trace import Trace
from ...judge.violation import Violation

UNEXPLAINED = ("HANG", "DETERMINISM")
"""Oracles whose failures need more than one undisturbed run: they have no history and no evidence of a cause."""


def relation(violation: Violation, names: Collection[str] = ()) -> str:
    """Return the pattern of a violation; `names` are those of the trace's requests, for the text of exceptions."""
    return violation.pattern(names)


def names_of(trace: Trace) -> frozenset[str]:
    """Return the names of the requests in a trace."""
    return frozenset(name for event in trace.events if (name := getattr(event, "name", "")))


def same_symptom(wanted: Violation, trace: Trace) -> Callable[[Violation], bool]:
    """Return a test for a reduction of `trace`, which shows `wanted`: the same signature, the same request, and the
    same relation between what was expected and what was observed.

    Requests keep their names until a reduction ends, so a candidate in which another request fails is another failure.
    """
    names = names_of(trace)
    expected = relation(wanted, names)

    def accepts(violation: Violation) -> bool:
        return (
            violation.signature == wanted.signature
            and violation.request == wanted.request
            and relation(violation, names) == expected
        )

    return accepts
