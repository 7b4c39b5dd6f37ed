"""Reads the data of a page: of a campaign, a matrix of mutants, or one finding."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ..harness.campaign_summary import Finding, Severity, Summary
from ..harness.draw.trace_files import load_trace, read_json
from ..harness.face.outputs.totals_over_time import Sample, load_samples
from ..harness.group.bug_history import Bug, bug_key, load_bug_history
from ..harness.group.findings.finding_store import HISTORY_SUFFIX, STATE_FILE, trace_path
from ..harness.judge.violation import Violation, has_words
from ..harness.measure.detection.statistics import MutantRow
from ..harness.record.history import History
from ..targets.base.trace import Trace, TraceError

MATRIX_FILE = "matrix.json"


class Shown(Struct, frozen=True):
    """One finding, its target, and what else is known: history of the bug, history of its blocks, trace; `asked`:
    options of its campaign's command."""

    finding: Finding
    target: str
    bug: Bug | None = None
    history: History | None = None
    trace: Trace | None = None
    asked: Sequence[str] = ()


class _Matrix(Struct, frozen=True):
    """The part of matrix.json that a page shows."""

    mutants: Sequence[MutantRow]


class Data(Struct, frozen=True):
    """Everything on a page."""

    title: str
    folder: str
    summary: Summary | None = None
    findings: Sequence[Shown] = ()
    samples: Sequence[Sample] = ()
    rows: Sequence[MutantRow] = ()


def load_folder(folder: Path) -> Data:
    """Return the data of a campaign's folder, a matrix's folder, or both.

    Raises TraceError if it is neither, or cannot be read.
    """
    summary = read_json(folder / STATE_FILE, Summary, "a campaign's state")
    matrix = read_json(folder / MATRIX_FILE, _Matrix, "a matrix")
    if summary is None and matrix is None:
        raise TraceError(f"{folder}: neither {STATE_FILE} nor {MATRIX_FILE} is there; name a campaign's output folder")
    book = load_bug_history(folder)
    findings: list[Shown] = []
    if summary:
        for finding in summary.findings:
            bug = book.get(bug_key(summary.target, finding.id))
            findings.append(_shown(finding, summary, bug, folder))
        findings += [_shown(_gone(bug), summary, bug, folder) for bug in book.values() if _is_gone(bug, summary)]
    title = summary.target if summary else "mutants"
    return Data(title, str(folder), summary, findings, load_samples(folder), matrix.mutants if matrix else ())


def one_finding(path: Path, trace: Trace, target: str, history: History, severity: Severity | None = None) -> Data:
    """Return the data of a single trace that was just run. Raises TraceError if it is clean."""
    violation = history.violation
    if violation is None:
        raise TraceError(f"{path} runs clean on {target}: there is nothing to report")
    finding = Finding(
        violation.signature, violation.oracle, violation.message, violation.step, violation.event, len(trace.events),
        str(path), 0, severity=severity,
    )  # fmt: skip
    return Data(violation.signature, str(path.parent), findings=[Shown(finding, target, None, history, trace)])


def _is_gone(bug: Bug, summary: Summary) -> bool:
    met = {finding.id for finding in summary.findings}
    return bug.target == summary.target and bug.state == "fixed" and bug.id not in met


def _gone(bug: Bug) -> Finding:
    """Return a fixed bug as a finding."""
    return Finding(bug.signature, bug.oracle, bug.message, -1, -1, bug.events, bug.trace, 0, bug.count, reduced=True)


def _shown(finding: Finding, summary: Summary, bug: Bug | None, folder: Path) -> Shown:
    """Return a finding with its trace and history, as far as they can be read.

    Only files of this folder are read, whatever path its state names.
    """
    trace = history = None
    with suppress(TraceError):
        path = trace_path(folder, finding.id, finding.trace)
        with suppress(TraceError):
            trace = load_trace(path)
        history = read_json(path.with_suffix(HISTORY_SUFFIX), History, "a history")
    sound = history if history and is_sound(history) else None
    return Shown(finding, summary.target, bug, sound, trace, summary.asked)


def is_sound(history: History) -> bool:
    """Return True if every index in a history that was read from a file points at something."""
    moments = range(len(history.moments))
    marks = all(mark.moment in moments and -1 <= mark.group < len(history.groups) for mark in history.marks)
    steps = all(one.moment in moments and one.num_tokens >= 0 for one in history.request_steps)
    violation = history.violation
    return marks and steps and (violation is None or _is_sound(violation, len(history.groups)))


def _is_sound(violation: Violation, groups: int) -> bool:
    return -1 <= violation.group < groups and has_words(violation)
