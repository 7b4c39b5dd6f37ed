"""Runs the traces of old bugs that a campaign did not meet: which of them are fixed?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ...targets.base.trace import TraceError
from ..events import Retested, Summary
from ..traces.files import load_trace
from ..workers.protocol import Worker
from .triage import Bug, BugHistory

TRIES = 3


def unmet(history: BugHistory, summary: Summary) -> list[Bug]:
    """Return the bugs of the campaign's target that it did not meet and that are not fixed already."""
    met = {finding.id for finding in summary.findings}
    bugs = [bug for bug in history.values() if bug.target == summary.target and bug.id not in met]
    return [bug for bug in bugs if bug.state != "fixed" and Path(bug.trace).exists()]


def retest(bugs: list[Bug], worker: Worker) -> Iterator[Retested]:
    """Run the trace of each bug `TRIES` times. Bugs whose traces this version of the target refuses are left out.

    Raises what a worker raises, Stopped included.
    """
    worker.start()
    for bug in bugs:
        try:
            trace = load_trace(bug.trace)
            violations = [worker.run(trace).violation for _ in range(TRIES)]
        except TraceError:
            continue
        shown = sum(one is not None and one.signature == bug.signature for one in violations)
        yield Retested(bug.target, bug.id, shown, TRIES)
