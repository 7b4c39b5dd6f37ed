"""Bug history: one finding on one target is one bug, whatever worker, run or machine met it.

    OUT/triage.json   the bug history: what every campaign in this folder has met so far
    known.toml        acknowledged bugs (`known`): a run fails only for findings that are not among them

The state of a bug follows from its numbers: *fixed* if its trace ran again and nothing failed, *known* if it is
acknowledged, *flaky* if some runs of its trace failed and others did not, else *new*. Merging is idempotent: a run has
a name, and a later report of the same run replaces an earlier one, so that a resumed run counts nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct, structs

from ...targets.base.trace import TraceError
from ..campaign_summary import Finding, Summary
from ..draw.trace_files import encode_json, read_json, write_atomically
from ..quoting import one_line
from .findings.finding_store import trace_path
from .known.known_toml import Known, reason_for

BUG_HISTORY_FILE = "triage.json"
KEY_SHOWN_MAX = 500
State = Literal["new", "known", "fixed", "flaky"]


class Bug(Struct, frozen=True):
    """One cause on one target, under the name of its finding.

    signature      the symptom of its shortest trace
    first_seen, last_seen  ISO 8601, UTC
    counts         number of failing traces, by run
    shown, tried   how often its trace failed when it ran again alone, and how often it ran: the reproduction rate
    trace, events  the shortest trace, and its length
    reason         the reason in known.toml, "" if it is not acknowledged
    """

    target: str
    version: str
    signature: str
    oracle: str
    message: str
    trace: str
    events: int
    first_seen: str
    last_seen: str
    counts: dict[str, int]
    shown: int = 0
    tried: int = 0
    state: State = "new"
    reason: str = ""
    name: str = ""

    @property
    def id(self) -> str:
        """The name of its finding."""
        return self.name or self.signature

    @property
    def count(self) -> int:
        """Number of failing traces over all runs."""
        return sum(self.counts.values())


BugHistory = dict[str, Bug]
"""Bugs by key (`bug_key`)."""


def bug_key(target: str, name: str) -> str:
    """Return the key of a bug: findings with the same key are one bug."""
    return f"{target} {name}"


def run_name(summary: Summary) -> str:
    """Return the name of a campaign in `Bug.counts`: the same seed on the same target is the same run.

    A shard of it is a run of its own until it is merged with the others (`group.merge`). So are the traces that
    Hypothesis draws from the seed.
    """
    source = "" if summary.source == "seeded" else f":{summary.source}"
    return f"{summary.target}#{summary.seed}{source}" + (f":{summary.shard}" if summary.shard else "")


def merge(history: BugHistory, summary: Summary, known: Sequence[Known], now: str) -> BugHistory:
    """Return the history with a campaign merged into it. `now` is ISO 8601, UTC."""
    merged = dict(history)
    met = {bug_key(summary.target, finding.id): finding for finding in summary.findings}
    for key, finding in met.items():
        merged[key] = judged(_seen(history.get(key), finding, summary, now), known, seen=True)
    for key, bug in history.items():
        if key not in met:
            merged[key] = judged(bug, known, seen=bug.state != "fixed")
    return merged


def without(history: BugHistory, summary: Summary, name: str) -> BugHistory:
    """Return the history without what a campaign counted for a finding that turned out to be part of another one."""
    key, run = bug_key(summary.target, name), run_name(summary)
    bug = history.get(key)
    if bug is None or run not in bug.counts:
        return history
    counts = {one: count for one, count in bug.counts.items() if one != run}
    rest = {one: each for one, each in history.items() if one != key}
    return {**rest, key: structs.replace(bug, counts=counts)} if counts else rest


def bug_of(finding: Finding, summary: Summary, seen: tuple[str, str], counts: dict[str, int]) -> Bug:
    """Return a finding of a campaign as a bug; `seen`: when it was seen first and last."""
    return Bug(
        target=summary.target,
        version=summary.version,
        signature=finding.signature,
        oracle=finding.oracle,
        message=finding.message,
        trace=finding.trace,
        events=finding.events,
        first_seen=seen[0],
        last_seen=seen[1],
        counts=counts,
        shown=finding.shown,
        tried=finding.tried,
        name=finding.name,
    )


def _seen(bug: Bug | None, finding: Finding, summary: Summary, now: str) -> Bug:
    run = run_name(summary)
    fresh = bug_of(finding, summary, (now, now), {run: finding.count})
    if bug is None:
        return fresh
    again = bug.counts.get(run) == finding.count
    shorter = finding.events <= bug.events or not Path(bug.trace).exists()
    return structs.replace(
        fresh if shorter else bug,
        version=summary.version,
        first_seen=bug.first_seen,
        last_seen=bug.last_seen if again else now,
        counts={**bug.counts, run: finding.count},
        shown=finding.shown,
        tried=finding.tried,
    )


def retried(bug: Bug, *, shown: int, tried: int, known: Sequence[Known]) -> Bug:
    """Return a bug after its trace ran again `tried` times in a later run, of which `shown` failed."""
    return judged(structs.replace(bug, shown=shown, tried=tried), known, seen=bool(shown) or not tried)


def judged(bug: Bug, known: Sequence[Known], *, seen: bool) -> Bug:
    """Return a bug with its state. `seen` is False if its trace ran again and nothing failed."""
    reason = reason_for(known, bug.signature, bug.target)
    state: State = "new"
    if not seen:
        state = "fixed"
    elif reason:
        state = "known"
    elif bug.shown < bug.tried:
        state = "flaky"
    return structs.replace(bug, state=state, reason=reason)


def bugs_of(history: BugHistory, summary: Summary) -> list[Bug]:
    """Return the bugs that a campaign met: known ones last, then by count."""
    keys = [bug_key(summary.target, finding.id) for finding in summary.findings]
    met = [history[key] for key in keys if key in history]
    return sorted(met, key=lambda bug: (bug.state == "known", -bug.count))


def load_bug_history(folder: Path) -> BugHistory:
    """Return the bug history of a folder, empty where there is none. Raises TraceError for one that cannot be used."""
    path, cure = folder / BUG_HISTORY_FILE, "; move it away to start a new bug history"
    history = read_json(path, BugHistory, "a bug history", cure) or {}
    for key, bug in history.items():
        if key != bug_key(bug.target, bug.id):
            problem = one_line(f"{key!r} is not the key of {bug.id!r} on {bug.target!r}", KEY_SHOWN_MAX)
            raise TraceError(f"{path}: {problem}{cure}")
    try:
        return {key: _inside(folder, bug) for key, bug in history.items()}
    except TraceError as error:
        raise TraceError(f"{path}: {one_line(str(error), KEY_SHOWN_MAX)}{cure}") from None


def _inside(folder: Path, bug: Bug) -> Bug:
    """Return a bug with the path of its trace in this folder."""
    return structs.replace(bug, trace=str(trace_path(folder, bug.id, bug.trace)))


def save_bug_history(folder: Path, history: Mapping[str, Bug]) -> None:
    """Replace the bug history of a folder in one go. Raises OSError."""
    write_atomically(folder / BUG_HISTORY_FILE, encode_json(history))
