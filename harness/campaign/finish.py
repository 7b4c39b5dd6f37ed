"""What a campaign leaves behind when it has ended: the folder's book of bugs, its rates, and a page to read."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from ...targets.base.launch import Launch
from ..events import Summary
from ..findings.known import Known, load_known
from ..findings.retest import recheck
from ..findings.store import OutputError
from ..findings.triage import Bug, bugs_of, load_bug_history, merge, save_bug_history
from ..outputs.rates import Rates

KNOWN_FILE = "known.toml"


def known_bugs(wanted: Path | None, folder: Path) -> Sequence[Known]:
    """Acknowledged bugs: of the file that was asked for, or else of the output folder's own, if it has one.

    Raises TraceError for a file that cannot be used.
    """
    if wanted is None and not (folder / KNOWN_FILE).exists():
        return ()
    return load_known(wanted or folder / KNOWN_FILE)


def record_bugs(folder: Path, summary: Summary, known: Sequence[Known]) -> list[Bug]:
    """Merge a campaign into the book of its folder; returns the bugs that it met, news first.

    Raises OutputError if the book cannot be written, TraceError if the old one cannot be read.
    """
    book = merge(load_bug_history(folder), summary, known, datetime.now(UTC).isoformat(timespec="seconds"))
    try:
        save_bug_history(folder, book)
    except OSError as error:
        raise OutputError(f"cannot write the book of bugs in {folder}: {error.strerror}") from error
    return bugs_of(book, summary)


def check_old_bugs(
    folder: Path, summary: Summary, launch: Launch, known: Sequence[Known], trace_seconds: float
) -> list[Bug]:
    """Run the traces of the book's bugs that this campaign did not meet; returns those that are fixed now.

    Raises OutputError if the book cannot be written.
    """
    book = load_bug_history(folder)
    checked = recheck(book, summary, launch, known, trace_seconds)
    try:
        if checked != book:
            save_bug_history(folder, checked)
    except OSError as error:
        raise OutputError(f"cannot write the book of bugs in {folder}: {error.strerror}") from error
    return [bug for key, bug in checked.items() if bug.state == "fixed" and book[key].state != "fixed"]


def leave_report(folder: Path, rates: Rates) -> Path:
    """Write the rates and the page beside the findings; returns the page. Raises OutputError."""
    from ...reports.data import load_folder
    from ...reports.page import write_report

    page = folder / "report.html"
    try:
        rates.save(folder)
        write_report(load_folder(folder), page)
    except OSError as error:
        raise OutputError(f"cannot write {page}: {error.strerror}") from error
    return page
