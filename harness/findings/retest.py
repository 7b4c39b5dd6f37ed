"""Old bugs, asked again: which of those that a campaign did not meet are fixed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...targets.base.launch import Launch
from ...targets.base.trace import TraceError
from ..events import Summary
from ..traces.files import load_trace
from ..workers.client import WorkerClient
from .known import Known
from .triage import Bug, BugHistory, bug_key, retried

TRIES = 3


def unmet(book: BugHistory, summary: Summary) -> list[Bug]:
    """Bugs of the campaign's target that it did not meet and that nobody has seen fixed."""
    met = {finding.signature for finding in summary.findings}
    bugs = [bug for bug in book.values() if bug.target == summary.target and bug.signature not in met]
    return [bug for bug in bugs if bug.state != "fixed" and Path(bug.trace).exists()]


def recheck(
    book: BugHistory, summary: Summary, launch: Launch, known: Sequence[Known], trace_seconds: float
) -> BugHistory:
    """The book after the traces of the unmet bugs have run again. A campaign that was interrupted asks nothing."""
    bugs = unmet(book, summary)
    if not bugs or summary.exit_reason in ("interrupted", "error", None):
        return book
    checked = dict(book)
    with WorkerClient(summary.target, launch, trace_seconds) as worker:
        worker.start()
        for bug in bugs:
            try:
                trace = load_trace(bug.trace)
                violations = [worker.run(trace).violation for _ in range(TRIES)]
            except TraceError:
                continue  # a trace that this version cannot run decides nothing
            shown = sum(one is not None and one.signature == bug.signature for one in violations)
            checked[bug_key(bug.target, bug.signature)] = retried(bug, shown=shown, tried=TRIES, known=known)
    return checked
