"""Entries of the known bugs that come with hybridfuzz that match a failure, and the public reports that they name."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from ...targets.base.patches import PATCH_BYTES_MAX
from ...targets.base.trace import Trace, TraceError
from ..draw.trace_files import load_trace, read_regular
from ..group.fixes import BUILTIN, read_fixes
from ..group.known import Known, fitting

_NUMBER = re.compile(r"#\d+")


class RelatedEntry(Struct, frozen=True):
    """An entry of hybridfuzz, which is no public report.

    is_exact  the entry lists the failing trace; otherwise it has the same signature, perhaps by another cause
    patch     the text of its fix, "" without one; only if the entry lists the trace
    """

    name: str
    reason: str
    is_exact: bool = True
    patch: str = ""


def related(target: str, version: str, trace: Trace, signature: str) -> list[RelatedEntry]:
    """Return the entry that lists this trace; without one, each with the same signature."""
    try:
        known = fitting(read_fixes(BUILTIN, target), target, version, datetime.date.today())
    except TraceError:
        return []
    if exact := next((entry for entry in known if _lists(entry, trace)), None):
        return [RelatedEntry(exact.title, exact.reason, patch=_patch(exact))]
    same = {entry.reason: entry for entry in known if entry.has_symptom(signature, target)}
    return [RelatedEntry(entry.title, entry.reason, is_exact=False) for entry in same.values()]


def public_reports(entries: Sequence[RelatedEntry]) -> list[str]:
    """Return the numbers of the public reports that entries for this very failure name."""
    return [*dict.fromkeys(number for one in entries if one.is_exact for number in _NUMBER.findall(one.reason))]


def _patch(entry: Known) -> str:
    if not entry.patch:
        return ""
    return read_regular(Path(entry.folder) / entry.patch, PATCH_BYTES_MAX, "a patch").decode("utf-8", "replace")


def _lists(entry: Known, trace: Trace) -> bool:
    return any(one.config == trace.config and one.events == trace.events for one in _traces(entry))


def _traces(entry: Known) -> Iterator[Trace]:
    for name in entry.traces:
        yield load_trace(Path(entry.folder) / name)
