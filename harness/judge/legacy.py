"""Reads violations from files of earlier versions, which stored the expected value only as prose.

The one place that reads our own prose, once, when such a file is decoded. What it finds becomes the data of today.
"""

from __future__ import annotations

import re

from msgspec import structs

from .verdict import Block, Prefix, StateOf, Value
from .violation import Violation

_STATE = re.compile(r"state@(\d{1,9})")
_BLOCK = re.compile(r"block (\d{1,6})")


def upgraded(violation: Violation) -> Violation:
    """Return a violation as today's, with the state or block that it expected as data. Its sentence stays as told."""
    if not violation.told or not isinstance(violation.expected, str):
        return violation
    return structs.replace(violation, expected=_expected(violation.expected, violation.request))


def _expected(text: str, request: str) -> Value:
    if state := _STATE.search(text):
        return StateOf(Prefix(request), int(state[1]))
    block = _BLOCK.fullmatch(text)
    return Block(int(block[1])) if block else text
