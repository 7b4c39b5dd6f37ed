"""Public reports that are related to a failure, from the known bugs that come with hybridfuzz."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

from ...targets.base.trace import Trace, TraceError
from ..findings.fixes import BUILTIN, read_fixes
from ..findings.known import Known, fitting
from ..traces.files import load_trace


def related(target: str, version: str, trace: Trace, signature: str) -> list[str]:
    """Return one line for the known bug that lists this trace; without one, for each with the same signature."""
    try:
        known = fitting(read_fixes(BUILTIN, target), target, version, datetime.date.today())
    except TraceError:
        return []
    if exact := next((entry for entry in known if _lists(entry, trace)), None):
        return [exact.reason]
    same = [entry.reason for entry in known if entry.has_symptom(signature, target)]
    return [f"Same symptom, perhaps another cause: {reason}" for reason in dict.fromkeys(same)]


def _lists(entry: Known, trace: Trace) -> bool:
    return any(one.config == trace.config and one.events == trace.events for one in _traces(entry))


def _traces(entry: Known) -> Iterator[Trace]:
    for name in entry.traces:
        yield load_trace(Path(entry.folder) / name)
