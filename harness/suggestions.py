"""Suggests the name that was meant, where somebody mistyped one."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, others: Iterable[str]) -> str:
    """Return "; did you mean X?" for the nearest of some names, "" if none is near."""
    close = get_close_matches(name, others, n=1)
    return f"; did you mean {close[0]}?" if close else ""
