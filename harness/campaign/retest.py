"""Runs the traces of old bugs that a campaign did not meet: which of them are fixed?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ...targets.base.protocol import TargetError
from ...targets.base.trace import Trace, TraceError
from ..campaign_events import Retested
from ..campaign_summary import Summary
from ..draw.trace_files import load_trace
from ..group.bug_history import Bug, BugHistory
from ..judge.violation import Violation
from ..workers.protocol import Worker

TRIES = 3


def unmet(history: BugHistory, summary: Summary) -> list[Bug]:
    """Return the bugs of the campaign's target that it did not meet and that are not fixed already."""
    met = {finding.id for finding in summary.findings}
    bugs = [bug for bug in history.values() if bug.target == summary.target and bug.id not in met]
    return [bug for bug in bugs if bug.state != "fixed" and Path(bug.trace).exists()]


class Rerun(NamedTuple):
    """A bug whose trace ran again. `others` are its failures that have another signature, one of each: they may be
    another symptom of the bug, or a bug of their own."""

    event: Retested
    trace: Trace
    others: tuple[Violation, ...]


def retest(bugs: list[Bug], worker: Worker) -> Iterator[Rerun]:
    """Run the trace of each bug `TRIES` times. Bugs whose traces this version of the target refuses are left out.

    Raises what a worker raises, Stopped included.
    """
    worker.start()
    for bug in bugs:
        outcomes: list[Violation | None] = []
        try:
            trace = load_trace(bug.trace)
            while len(outcomes) < TRIES:
                outcomes.append(worker.run(trace).violation)
        except TraceError:
            continue
        except TargetError:  # it does not start again after a crash, which counts
            if any(outcomes):
                yield _rerun(bug, trace, outcomes)
            raise
        yield _rerun(bug, trace, outcomes)


def _rerun(bug: Bug, trace: Trace, outcomes: Sequence[Violation | None]) -> Rerun:
    failures = [one for one in outcomes if one]
    others = {one.signature: one for one in failures if one.signature != bug.signature}
    event = Retested(bug.target, bug.id, len(failures), len(outcomes))
    return Rerun(event, trace, tuple(others.values()))
