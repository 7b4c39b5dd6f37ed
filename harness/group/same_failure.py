"""Tells whether a candidate of a reduction still fails in the same way: same signature, request and message pattern.

Otherwise a reduction would slip from one cause to another that shows alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..judge.violation import Violation

UNEXPLAINED = ("HANG", "DETERMINISM")
"""Oracles whose failures need more than one undisturbed run: they have no history and no evidence of a cause."""
_NAME = re.compile(r"\b[rs]\d+\w*\b")
_NUMBER = re.compile(r"\d+")
_STEP = re.compile(r" \(step \d+\)$")
"""The end of each message. A message of several clauses would have it in the last one only."""


def relation(violation: Violation) -> str:
    """Return the first clause of the message with the violating request as OWN, others as OTHER, and no numbers."""
    text = _STEP.sub("", violation.message).partition(";")[0]
    if violation.request:
        text = re.sub(rf"\b{re.escape(violation.request)}\b", "OWN", text)
    return _NUMBER.sub("N", _NAME.sub("OTHER", text))


def same_symptom(wanted: Violation) -> Callable[[Violation], bool]:
    """Return a test for a reduction of the trace that shows `wanted`: the same signature, the same request, and the
    same relation between what was expected and what was observed.

    Requests keep their names until a reduction ends, so a candidate in which another request fails is another failure.
    """
    expected = relation(wanted)

    def accepts(violation: Violation) -> bool:
        return (
            violation.signature == wanted.signature
            and violation.request == wanted.request
            and relation(violation) == expected
        )

    return accepts
