"""Known bugs recognized by a condition: what their traces show on the target as it is now, and which failures match.

A condition alone proves little: many traces satisfy it. A failure is the known bug only if its evidence is also like
that of the entry's traces, which are therefore run once, at the start of a campaign or at a gate's first failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from ....targets.base.protocol import Capabilities
from ....targets.base.trace import TraceError
from ..causes.evidence import Evidence, FindingEvidence
from ..causes.investigate import Investigation, Runner
from ..causes.same_cause import known_cause
from .known_toml import Known


def with_conditions(entries: Iterable[Known], target: str) -> list[Known]:
    """Return the entries for a target that know failures by a condition and traces."""
    return [entry for entry in entries if entry.condition and entry.traces and fnmatchcase(target, entry.target)]


def evidence_of(
    entry: Known, engine: Runner, capabilities: Capabilities, seconds: float
) -> tuple[FindingEvidence | None, str]:
    """Return the evidence of an entry's traces, None if none of them fails, and why a trace could not be used.

    `seconds` is the limit for each trace. A trace is refused if this version of the target lacks its configuration.
    """
    seen: list[Evidence] = []
    problem = ""
    for trace in entry.read_traces():
        try:
            if evidence := Investigation(engine, capabilities, seconds).evidence(trace):
                seen.append(evidence)
        except TraceError as error:
            problem = str(error)
    return FindingEvidence(seen, entry.condition) if entry.condition and seen else None, problem


def matching(evidence: Evidence, entries: Iterable[Known], known: Mapping[str, FindingEvidence]) -> Known | None:
    """Return the entry whose bug a failing trace shows, None for a new one. `known` has their evidence by title."""
    title = known_cause(evidence, known)
    return next((entry for entry in entries if entry.title == title), None) if title else None
