"""Triage: all failures with one signature on one target are one bug, whatever worker, run or machine saw them.

    OUT/triage.json   the book: what every campaign in this folder has seen so far
    known.toml        bugs that somebody has acknowledged (`known`): a run goes red only for news

A bug's state follows from its numbers: it is *fixed* if its trace was run again and nothing showed, *known* if it is
acknowledged, *flaky* if some of its runs showed it and others did not, else *new*. Merging is idempotent: a run has a
name, and what the same run says later replaces what it said before, so that a resumed run counts nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct, structs

from ...targets.base.trace import TraceError
from ..events import Finding, Summary
from ..traces.files import write_atomically
from .known import Known, reason_for

BUG_HISTORY_FILE = "triage.json"
State = Literal["new", "known", "fixed", "flaky"]


class Bug(Struct, frozen=True):
    """One signature on one target.

    first_seen, last_seen  ISO 8601, UTC
    counts         traces that showed it, by run
    shown, tried   how often its trace showed it when it was run again, alone: the reproduction rate
    trace, events  the shortest trace, and its length
    reason         why it is no news, from known.toml
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

    @property
    def count(self) -> int:
        """Traces that showed it, over all runs."""
        return sum(self.counts.values())

    @property
    def rate(self) -> str:
        """The reproduction rate k/n."""
        return f"{self.shown}/{self.tried}"


BugHistory = dict[str, Bug]
"""Key (`bug_key`) -> bug."""


def bug_key(target: str, signature: str) -> str:
    """What makes two failures the same bug."""
    return f"{target} {signature}"


def run_name(summary: Summary) -> str:
    """What a campaign is called in `Bug.counts`: the same seed on the same target is the same run."""
    return f"{summary.target}#{summary.seed}"


def merge(book: BugHistory, summary: Summary, known: Sequence[Known], now: str) -> BugHistory:
    """The book after a campaign. `now` is ISO 8601, UTC."""
    merged = dict(book)
    for finding in summary.findings:
        key = bug_key(summary.target, finding.signature)
        merged[key] = _judged(_seen(book.get(key), finding, summary, now), known, seen=True)
    for key, bug in book.items():
        if key not in {bug_key(summary.target, finding.signature) for finding in summary.findings}:
            merged[key] = _judged(bug, known, seen=bug.state != "fixed")
    return merged


def _seen(bug: Bug | None, finding: Finding, summary: Summary, now: str) -> Bug:
    run = run_name(summary)
    fresh = Bug(
        target=summary.target,
        version=summary.version,
        signature=finding.signature,
        oracle=finding.oracle,
        message=finding.message,
        trace=finding.trace,
        events=finding.events,
        first_seen=now,
        last_seen=now,
        counts={run: finding.count},
        shown=finding.shown,
        tried=finding.tried,
    )
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
    """A bug after its trace was run again `tried` times in a later run."""
    return _judged(structs.replace(bug, shown=shown, tried=tried), known, seen=bool(shown) or not tried)


def _judged(bug: Bug, known: Sequence[Known], *, seen: bool) -> Bug:
    reason = reason_for(known, bug.signature, bug.target)
    state: State = "new"
    if not seen:
        state = "fixed"
    elif reason:
        state = "known"
    elif bug.shown < bug.tried:
        state = "flaky"
    return structs.replace(bug, state=state, reason=reason)


def bugs_of(book: BugHistory, summary: Summary) -> list[Bug]:
    """The bugs that a campaign met, news first, then by count."""
    met = [book[bug_key(summary.target, finding.signature)] for finding in summary.findings]
    return sorted(met, key=lambda bug: (bug.state == "known", -bug.count))


def is_new(bug: Bug) -> bool:
    """Whether a run that met it goes red."""
    return bug.state in ("new", "flaky")


def load_bug_history(folder: Path) -> BugHistory:
    """The book of a folder; empty where there is none. TraceError for one that cannot be read."""
    path = folder / BUG_HISTORY_FILE
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=BugHistory)
    except (OSError, msgspec.DecodeError) as error:
        raise TraceError(f"{path}: {error}; move it away to start a new book") from None


def save_bug_history(folder: Path, book: Mapping[str, Bug]) -> None:
    """Replace the book of a folder in one go. Raises OSError."""
    write_atomically(folder / BUG_HISTORY_FILE, msgspec.json.format(msgspec.json.encode(book), indent=1))
